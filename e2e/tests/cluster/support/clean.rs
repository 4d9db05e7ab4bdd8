//! A clean start, and the GPUs and drivers of the machine.

use anyhow::{Context, Result, bail, ensure};
use cluster::{
    node::{
        real_node::{HostDriver, RealNode},
        runtime::Runtime,
    },
    standin::{DriverMode, Gpu},
};
use cluster_client::handle::Cluster;
use gpu_operator_crd::{GpuNodeStatus, keys, reason::Reason};
use gpu_operator_plan::catalogue::Catalogue;
use harness::wait::eventually;

use super::{Fixture, GPUS, READY};

/// Arguments of `kubectl delete` for objects that may not exist.
const GONE: [&str; 2] = ["--ignore-not-found", "--timeout=5m"];

impl Fixture {
    /// Resets the node: the chart is installed, no policy selects the node, it has no operands and no driver, and it
    /// has eight GPUs.
    pub(super) async fn clean(cluster: &Cluster, host: RealNode) -> Result<Self> {
        let policy = host.name().replace("gpu-node", "fleet");
        let fixture = Self { cluster: cluster.clone(), host, policy };
        let (cluster, node, users) = (&fixture.cluster, &fixture.host.name(), &fixture.users());
        let standin = fixture.host.standin();
        fixture.host.start_kubelet()?;
        standin.set_driver_mode(&DriverMode::Ok)?;
        standin.set_other_references(0)?;
        standin.plug(&Gpu::h100(GPUS))?;
        if cluster.kubectl(&["get", "namespace", users]).is_err() {
            cluster.kubectl(&["create", "namespace", users])?;
        }
        // Deleted before the policy, because they keep its driver from being unloaded.
        // What creates pods again goes first.
        let workloads = "deployments,jobs,poddisruptionbudgets,pods";
        cluster.kubectl(&["delete", workloads, "--all", "--namespace", users, "--grace-period=1", "--timeout=5m"])?;
        // The policy of the installation example does not have the node in its name, and its nodes leave after a minute.
        let (successor, example) = (fixture.successor().policy, "fleet");
        let policies = [fixture.policy.as_str(), &successor, example];
        let at_once = r#"{"spec": {"deletionPolicy": "Now"}}"#;
        let patched = cluster.kubectl(&["patch", "clustergpupolicy", example, "--type=merge", "--patch", at_once]);
        // It seldom exists, and the clean start of another node may delete it at any time.
        if let Err(error) = patched
            && !format!("{error:#}").contains("(NotFound)")
        {
            return Err(error);
        }
        cluster.kubectl(&[&["delete", "clustergpupolicies"], &policies[..], &GONE].concat())?;
        cluster.kubectl(&["label", "node", node, &format!("{}-", keys::MANAGED)])?;
        // If the driver is in use, its container ignores SIGTERM until the pod's grace period ends. The toolkit's pod is Docker's default
        // runtime, without which no container starts, and needs time to be replaced.
        let grace = if fixture.host.runtime() == Runtime::Docker { "--grace-period=-1" } else { "--grace-period=1" };
        let ended = [grace, "--wait=false", "--namespace", cluster.namespace(), "--selector", keys::STAGE];
        let here = format!("--field-selector=spec.nodeName={node}");
        cluster.kubectl(&[&["delete", "pods", &here], &ended[..]].concat())?;
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
        cluster.kubectl(&["uncordon", node])?;
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

    /// Replaces the GpuNode by one without the history of other tests.
    ///
    /// The operator may still carry out a write that it planned for the former GpuNode: the Node's allocatable GPUs have just
    /// changed. The new GpuNode would then remember the former GPUs, so it is replaced again.
    async fn forget(&self) -> Result<()> {
        let delete = || self.cluster.kubectl(&[&["delete", "gpunode", &self.host.name()], &GONE[..]].concat());
        delete()?;
        eventually(READY, "the report and the status of a GpuNode without history", || async {
            let status = self.status().await?;
            let report = status.report.as_ref().context("no report")?;
            ensure!(report.driver.loaded.is_none() && report.driver.installed.is_empty(), "{report:?}");
            ensure!(status.reason() == Some(Reason::NoPolicy), "the operator has not seen the new GpuNode");
            let GpuNodeStatus { gpus, validation, .. } = status;
            if gpus.most_seen.is_some() || validation.is_some() {
                delete()?;
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
