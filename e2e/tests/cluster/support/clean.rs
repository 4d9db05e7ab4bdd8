//! A clean start, and the GPUs and drivers of the machine.

use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};
use cluster::{
    node::{
        real_node::{HostDriver, RealNode},
        runtime::Runtime,
    },
    standin::{DriverMode, Gpu},
};
use cluster_client::{handle::Cluster, ignore_not_found};
use gpu_operator_crd::{GpuNode, GpuNodeStatus, keys, reason::Reason};
use gpu_operator_plan::catalogue::Catalogue;
use harness::wait::eventually;
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{AND, Fixture, GPUS, READY};

impl Fixture {
    /// Resets the node: the chart is installed, no policy selects the node, it has no operands and no driver, and it
    /// has eight GPUs.
    pub(super) async fn clean(cluster: &Cluster, host: RealNode) -> Result<Self> {
        let fixture = Self::on(cluster, host);
        let (cluster, node, users) = (&fixture.cluster, &fixture.host.name(), &fixture.users());
        let standin = fixture.host.standin();
        fixture.host.start_kubelet()?;
        standin.set_driver_mode(&DriverMode::Ok)?;
        standin.set_other_references(0)?;
        standin.plug(&Gpu::h100(GPUS))?;
        fixture.delete_workloads(users).await?;
        fixture.delete_policies().await?;
        let nodes = Api::<Node>::all(cluster.client());
        let patch = async |patch: Value| nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await;
        patch(json!({"metadata": {"labels": {keys::MANAGED: null}}})).await?;
        // If the driver is in use, its container ignores SIGTERM until the pod's grace period ends. The toolkit's pod is Docker's default
        // runtime, without which no container starts, and needs time to be replaced.
        let at_once = DeleteParams::default().grace_period(1);
        let grace = if fixture.host.runtime() == Runtime::Docker { DeleteParams::default() } else { at_once };
        for pod in fixture.pods_here(keys::STAGE).await? {
            ignore_not_found(fixture.pods(cluster.namespace()).delete(&pod.name_any(), &grace).await)?;
        }
        fixture.wait_for_no_operands().await?;
        // Kubelet removes the GPUs some seconds after the plugin's end.
        fixture.wait_for_allocatable(0, READY).await?;
        fixture.host.set_host_driver(&HostDriver::Absent)?;
        fixture.host.set_install_dir(false)?;
        // A driver's container that was killed leaves its root mounted.
        let leftovers = "rm -rf /usr/local/nvidia/toolkit /opt/nvidia /run/nvidia/nvidia-driver.state
            while mountpoint -q /run/nvidia/driver; do umount --lazy /run/nvidia/driver; done";
        fixture.host.exec(&["/bin/sh", "-ec", leftovers])?;
        standin.reset_loads()?;
        patch(json!({"spec": {"unschedulable": null}})).await?;
        fixture.forget().await?;
        let report = fixture.status().await?.report.context("no report")?;
        if report.gpus.iter().any(|gpu| !gpu.health.causes.is_empty()) {
            // The probe keeps the causes of GPUs that it has not read since, and drops those of removed GPUs.
            standin.plug(&[])?;
            fixture.wait_until_forgotten().await?;
            fixture.plug(&Gpu::h100(GPUS)).await?;
        }
        Ok(fixture)
    }

    /// Deletes the pods of the test before, which keep its driver from being unloaded, and first what creates them again.
    async fn delete_workloads(&self, namespace: &str) -> Result<()> {
        async fn all<K>(api: Api<K>) -> Result<()>
        where
            K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
        {
            api.delete_collection(&DeleteParams::background().grace_period(1), &ListParams::default()).await?;
            Ok(())
        }
        let client = || self.cluster.client();
        let namespaces = Api::<Namespace>::all(client());
        if namespaces.get_opt(namespace).await?.is_none() {
            let created = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
            namespaces.create(&PostParams::default(), &created).await?;
        }
        all(Api::<Deployment>::namespaced(client(), namespace)).await?;
        all(Api::<Job>::namespaced(client(), namespace)).await?;
        all(Api::<PodDisruptionBudget>::namespaced(client(), namespace)).await?;
        self.cluster.kubectl(&["delete", "resourceclaims", "--all", "-n", namespace, "--wait=false"])?;
        let pods = Api::<Pod>::namespaced(client(), namespace);
        eventually(READY, "the end of the earlier pods", || async {
            all(pods.clone()).await?;
            let left = pods.list_metadata(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{:?}", left.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
            Ok(())
        })
        .await
    }

    /// Deletes the policies that selected the node.
    async fn delete_policies(&self) -> Result<()> {
        let policies = self.policies();
        // The policy of the installation example does not have the node in its name, and its nodes leave after a minute.
        let (successor, example) = (self.successor().policy, "fleet");
        let at_once = Patch::Merge(json!({"spec": {"deletionPolicy": "Now"}}));
        // It seldom exists, and the clean start of another node may delete it at any time.
        ignore_not_found(policies.patch(example, &PatchParams::default(), &at_once).await)?;
        let mut names = vec![self.policy.clone(), successor, example.to_owned()];
        // Those of two nodes.
        let all =
            policies.list_metadata(&ListParams::default()).await?.items.into_iter().map(|policy| policy.name_any());
        names
            .extend(all.filter(|name| name.split_once(AND).is_some_and(|(a, b)| a == self.policy || b == self.policy)));
        for name in &names {
            ignore_not_found(policies.delete(name, &DeleteParams::default()).await)?;
        }
        eventually(READY, "the end of the earlier policies", || async {
            for name in &names {
                ensure!(policies.get_opt(name).await?.is_none(), "{name} exists");
            }
            Ok(())
        })
        .await
    }

    /// Replaces the GpuNode by one without the history of other tests.
    ///
    /// The operator may still carry out a write that it planned for the former GpuNode: the Node's allocatable GPUs have just
    /// changed. The new GpuNode would then remember the former GPUs, so it is replaced again.
    async fn forget(&self) -> Result<()> {
        let (gpu_nodes, name) = (Api::<GpuNode>::all(self.cluster.client()), self.host.name());
        let delete = async || ignore_not_found(gpu_nodes.delete(&name, &DeleteParams::default()).await);
        delete().await?;
        eventually(READY, "the report and the status of a GpuNode without history", || async {
            let status = self.status().await?;
            let report = status.report.as_ref().context("no report")?;
            ensure!(report.driver.loaded.is_none() && report.driver.installed.is_empty(), "{report:?}");
            ensure!(status.reason() == Some(Reason::NoPolicy), "the operator has not seen the new GpuNode");
            let GpuNodeStatus { gpus, validation, .. } = status;
            if gpus.most_seen.is_some() || validation.is_some() {
                delete().await?;
                bail!("the new GpuNode got the history of the former one: {gpus:?}, {validation:?}");
            }
            Ok(())
        })
        .await
    }

    /// Sets the GPUs of a machine whose node no policy governs, and waits until the probe has reported them and the operator
    /// has seen that: a policy that is applied earlier uses the old ones.
    pub async fn plug(&self, gpus: &[Gpu]) -> Result<()> {
        self.host.standin().plug(gpus)?;
        let catalogue = Catalogue::builtin()?;
        let id =
            |gpu: &Gpu| gpu.pci_device_id.trim_start_matches("0x").chars().take(4).collect::<String>().to_lowercase();
        let plugged: Vec<_> = gpus.iter().map(|gpu| (gpu.pci_address.clone(), id(gpu))).collect();
        self.wait_for_status("the GPUs in the probe's report", |status| {
            let report = status.report.as_ref().context("no report")?;
            let seen: Vec<_> = report.gpus.iter().map(|gpu| (gpu.pci_address.clone(), gpu.device_id.clone())).collect();
            ensure!(seen == plugged, "{seen:?}");
            // The model is what the operator records of an unmanaged node's GPUs.
            let ids = plugged.first().and_then(|(_, id)| u16::from_str_radix(id, 16).ok());
            let model = ids.and_then(|id| catalogue.model_of_pci(id, None)).map(|model| &model.name);
            ensure!(status.model.as_ref() == model, "{:?}, not {model:?}", status.model);
            Ok(())
        })
        .await
    }

    /// Installs and loads a driver on the host, and waits until the probe has reported it: a policy that is applied
    /// earlier may install its own.
    pub async fn load_host_driver(&self, version: &str) -> Result<()> {
        self.host.set_host_driver(&HostDriver::Loaded(version.into()))?;
        self.wait_for_status("the host's driver in the report", |status| {
            let report = status.report.clone().unwrap_or_default();
            ensure!(report.driver.loaded.as_deref() == Some(version), "{report:?}");
            ensure!(report.driver.installed.iter().any(|found| found.root == "/"), "{report:?}");
            Ok(())
        })
        .await
    }
}
