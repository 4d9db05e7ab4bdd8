//! Helpers for all tests: a clean start, policies, and waiting for the node's status.

use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{Cluster, Containerd, DriverMode, Gpu, HostDriver, RealNode, eventually, test_failures::DIAGNOSIS_HEADING};
use gpu_operator_common::quantity;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus, Phase, keys,
    policy::{DeletionPolicy, DriverSource, Operand, PluginFlavor, Stage},
    reason::Reason,
};
use gpu_operator_plan::catalogue::Catalogue;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, ResourceExt, api::ListParams};

use crate::nodes::{self, Hold, Need};

/// The number of GPUs of the node.
pub const GPUS: u32 = 8;
/// The stages of a policy without MPS.
pub const PLAIN_STAGES: [Stage; 3] = [Stage::Driver, Stage::Toolkit, Stage::DevicePlugin];
/// The driver that an H100 gets by default.
pub const DEFAULT_DRIVER: &str = "595.91.07";
/// The driver version of Google's installer, for examples without a version.
pub const GOOGLES_DRIVER: &str = "535.309.01";
/// A checksum for `.run` files, which the stand-in neither downloads nor checks.
pub const UNCHECKED: &str = "0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// The label by which a policy or a pod selects one node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Arguments of `kubectl delete` for objects that may not exist.
const GONE: [&str; 2] = ["--ignore-not-found", "--timeout=60s"];
/// The time limit from applying a policy until its node is ready, on a slow machine.
pub const READY: Duration = Duration::from_mins(2);
/// The time limit for a failure to be reported.
pub const SHOWN: Duration = Duration::from_mins(1);

/// Runs a test on its own node from a clean start; a failure prints the state of the cluster. Other tests run on other
/// nodes at the same time.
pub fn test<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    test_with(|_| Ok(Need::default()), body);
}

/// Like [`test`], for tests that take more than a minute.
pub fn long_test<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    test_with(|_| Ok(Need { long: true, ..Need::default() }), body);
}

/// Like [`test`], on a node with containerd 1.7.
pub fn test_on_containerd_1<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    test_with(|_| Ok(Need { containerd: Containerd::One, ..Need::default() }), body);
}

/// Like [`test`], on a node without the operator's pod, which can be switched off while other tests run.
pub fn test_beside_the_operator<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let elsewhere = |cluster: &Cluster| {
        install_chart(cluster)?;
        let operator = ["-l", "app.kubernetes.io/name=nodestack-gpu-operator", "-o=jsonpath={.items[*].spec.nodeName}"];
        let node = cluster.kubectl(&[&["get", "pods", "-n", cluster.namespace()], &operator[..]].concat())?;
        ensure!(!node.is_empty() && !node.contains(' '), "the operator runs on {node:?}");
        Ok(Need { except: Some(node), ..Need::default() })
    };
    test_with(elsewhere, body);
}

fn test_with<F, Fut>(need: impl FnOnce(&Cluster) -> Result<Need>, body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let take = |cluster: &Cluster| nodes::one(cluster, &need(cluster).expect("the requirements of the test"));
    run(take, async |mut fixtures: Vec<Fixture>| body(fixtures.remove(0)).await);
}

/// Runs a test on the node of the operator's pod while no other test runs: for tests that change or check cluster-wide
/// objects. The other nodes are clean.
pub fn alone<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    run(nodes::all, async |mut fixtures: Vec<Fixture>| {
        let operators = fixtures[0].operators_node().await?;
        let own = fixtures.iter().position(|fixture| fixture.host.name() == operators).context("no such node")?;
        body(fixtures.swap_remove(own)).await
    });
}

/// Runs a test on all nodes, while no other test runs.
pub fn everywhere<F, Fut>(body: F)
where
    F: FnOnce(Vec<Fixture>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    run(nodes::all, async |fixtures: Vec<Fixture>| body(fixtures).await);
}

fn run(take: impl FnOnce(&Cluster) -> Hold, test: impl AsyncFnOnce(Vec<Fixture>) -> Result<()>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connected = runtime.block_on(Cluster::connect());
    let cluster = connected.expect("a cluster");
    // Waits until other tests have released the nodes.
    let hold = take(&cluster);
    let began = Instant::now();
    let outcome: Result<()> = runtime.block_on(async {
        install_chart(&cluster)?;
        let clean = hold.nodes.iter().map(|host| Fixture::clean(&cluster, host.clone()));
        let fixtures = futures::future::try_join_all(clean).await.context("a clean start")?;
        eprintln!("clean after {:.1} s", began.elapsed().as_secs_f32());
        test(fixtures).await
    });
    let names: Vec<String> = hold.nodes.iter().map(RealNode::name).collect();
    eprintln!("on {} for {:.1} s", names.join(", "), began.elapsed().as_secs_f32());
    if let Err(error) = outcome {
        panic!("{error:?}\n{DIAGNOSIS_HEADING}\n{}", cluster.diagnosis(&hold.nodes));
    }
}

/// Installs the chart if a failed test has left no chart or no running operator.
pub fn install_chart(cluster: &Cluster) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let available = "-o=jsonpath={.status.availableReplicas}";
    let found = cluster.kubectl(&["get", "deployment/nodestack-gpu-operator", "-n", cluster.namespace(), available]);
    if found.is_ok_and(|available| !available.is_empty()) {
        return Ok(());
    }
    cluster.install_chart()
}

/// A node of the cluster, and the operations of its test.
pub struct Fixture {
    pub cluster: Cluster,
    pub host: RealNode,
    /// The name of the policy that selects only this node.
    pub policy: String,
}

impl Fixture {
    /// Resets the node: the chart is installed, no policy selects the node, it has no operands and no driver, and it
    /// has eight GPUs.
    async fn clean(cluster: &Cluster, host: RealNode) -> Result<Self> {
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
        cluster.kubectl(&["delete", "pods", "--all", "--namespace", users, "--grace-period=1", "--timeout=60s"])?;
        // The policy of the installation example does not have the node in its name, and its nodes leave after a minute.
        let (successor, example) = (fixture.successor().policy, "fleet");
        let policies = [fixture.policy.as_str(), &successor, example];
        if cluster.kubectl(&["get", "clustergpupolicy", example]).is_ok() {
            let at_once = r#"{"spec": {"deletionPolicy": "Now"}}"#;
            cluster.kubectl(&["patch", "clustergpupolicy", example, "--type=merge", "--patch", at_once])?;
        }
        cluster.kubectl(&[&["delete", "clustergpupolicies"], &policies[..], &GONE].concat())?;
        cluster.kubectl(&["label", "node", node, &format!("{}-", keys::MANAGED)])?;
        // If the driver is in use, its container ignores SIGTERM until the pod's grace period ends.
        let ended = ["--grace-period=1", "--wait=false", "--namespace", cluster.namespace(), "--selector", keys::STAGE];
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
            fixture.plug(&[]).await?;
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

    /// Returns the same node with the policy of another name.
    pub fn successor(&self) -> Self {
        Self { cluster: self.cluster.clone(), host: self.host.clone(), policy: format!("{}-successor", self.policy) }
    }

    /// Returns the namespace of the test's own pods.
    pub fn users(&self) -> String {
        format!("users-of-{}", self.host.name())
    }

    /// Returns the node of the operator's pod.
    pub async fn operators_node(&self) -> Result<String> {
        let operator = ListParams::default().labels("app.kubernetes.io/name=nodestack-gpu-operator");
        eventually(READY, "the operator's node", || async {
            let pods = self.pods(self.cluster.namespace()).list(&operator).await?;
            let staying = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
            staying.and_then(|pod| pod.spec?.node_name).context("no pod")
        })
        .await
    }

    /// Applies a policy with this spec, in YAML, to the node, with the local images. The next test need not wait until the node
    /// has left it, unless the spec sets a `deletionPolicy`.
    pub async fn apply(&self, spec: &str) -> Result<()> {
        let mut policy = ClusterGpuPolicy::new(&self.policy, serde_yaml::from_str(spec)?);
        policy.spec.deletion_policy.get_or_insert(DeletionPolicy::Now);
        policy.spec.images.registry = "localhost:5999".into();
        // NVIDIA's plugin reads the kernel's list of MIG's device nodes under /proc/driver, where tests cannot create
        // files.
        let plugins = policy.spec.pools.iter_mut().map(|pool| &mut pool.device_plugin);
        for plugin in plugins.chain([&mut policy.spec.defaults.device_plugin]).filter(|plugin| plugin.mig.is_some()) {
            take_image(&mut plugin.operand, "localhost:5999/stand-in/k8s-device-plugin");
        }
        let selector = policy.spec.node_selector.get_or_insert_default();
        selector.match_labels.insert(HOSTNAME.into(), self.host.name());
        let params = kube::api::PatchParams::apply("test").force();
        self.policies().patch(&self.policy, &params, &kube::api::Patch::Apply(&policy)).await?;
        Ok(())
    }

    /// Applies an example unchanged, except for its name and its images.
    pub async fn apply_example(&self, example: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let policy: ClusterGpuPolicy = serde_yaml::from_str(&text)?;
        let mut spec = policy.spec;
        let pools = spec.pools.iter_mut().map(|pool| (&mut pool.driver, &mut pool.device_plugin));
        for (driver, plugin) in pools.chain([(&mut spec.defaults.driver, &mut spec.defaults.device_plugin)]) {
            let installs = matches!(driver.source, Some(DriverSource::GkeUbuntu | DriverSource::RunFile));
            if installs && driver.version.is_none() {
                // The stand-in installs the given version and does not choose one.
                driver.version = Some(GOOGLES_DRIVER.to_owned());
            }
            for (is_googles, operand) in
                [(installs, &mut driver.operand), (plugin.flavor == Some(PluginFlavor::Gke), &mut plugin.operand)]
            {
                if is_googles || operand.image.is_some() {
                    take_image(operand, "localhost:5999/google/stand-in");
                }
            }
        }
        self.apply(&serde_yaml::to_string(&spec)?).await
    }

    pub fn policies(&self) -> Api<ClusterGpuPolicy> {
        Api::all(self.cluster.client())
    }

    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    pub async fn node(&self) -> Result<Node> {
        Ok(Api::<Node>::all(self.cluster.client()).get(&self.host.name()).await?)
    }

    /// Returns the node's status; fails if it has none.
    pub async fn status(&self) -> Result<GpuNodeStatus> {
        let gpu_node = Api::<GpuNode>::all(self.cluster.client()).get(&self.host.name()).await?;
        gpu_node.status.context("no status")
    }

    /// Returns the allocatable GPUs.
    pub async fn allocatable(&self) -> Result<u32> {
        Ok(gpus_among(self.node().await?.status.and_then(|status| status.allocatable)))
    }

    /// Returns the GPUs that are registered with kubelet, healthy or not.
    pub async fn capacity(&self) -> Result<u32> {
        Ok(gpus_among(self.node().await?.status.and_then(|status| status.capacity)))
    }

    /// Waits until this number of GPUs is allocatable.
    pub async fn wait_for_allocatable(&self, gpus: u32, within: Duration) -> Result<()> {
        eventually(within, &format!("{gpus} allocatable GPUs"), || async move {
            let allocatable = self.allocatable().await?;
            ensure!(allocatable == gpus, "{allocatable} allocatable GPUs");
            Ok(())
        })
        .await
    }

    /// Waits until the node's status passes a check.
    pub async fn wait_for_status(&self, what: &str, check: impl Fn(&GpuNodeStatus) -> Result<()>) -> Result<()> {
        let check = &check;
        eventually(READY, what, || async move { check(&self.status().await?) }).await
    }

    /// Waits until the node and the policy are ready.
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.wait_for_status("a ready node", |status| {
            ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await?;
        ensure!(self.allocatable().await? == GPUS, "Ready, but allocatable is {}", self.allocatable().await?);
        self.wait_for_condition("Ready", "True").await
    }

    /// Waits until the node and the policy are ready with this quantity of a resource.
    pub async fn wait_until_ready_with(&self, resource: &str, count: u32) -> Result<()> {
        eventually(READY, &format!("{count} of {resource}"), || async move {
            let allocatable = self.node().await?.status.and_then(|status| status.allocatable).unwrap_or_default();
            let found = allocatable.get(resource).map(|quantity| quantity::count(&quantity.0)).transpose()?;
            ensure!(found == Some(count), "{found:?}");
            let status = self.status().await?;
            ensure!(status.is_ready(), "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await?;
        self.wait_for_condition("Ready", "True").await
    }

    /// Waits until a condition of the policy has this status.
    pub async fn wait_for_condition(&self, kind: &str, wanted: &str) -> Result<()> {
        eventually(READY, &format!("condition {kind}={wanted}"), || async move {
            let status = self.policies().get(&self.policy).await?.status.context("no status")?;
            let condition =
                status.conditions.iter().find(|condition| condition.type_ == kind).context("no such condition")?;
            ensure!(condition.status == wanted, "{condition:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the node's status has a reason, for at most [`SHOWN`], and returns its message.
    pub async fn wait_for_reason(&self, reason: Reason) -> Result<String> {
        eventually(SHOWN, &format!("reason {reason}"), || async move {
            let status = self.status().await?;
            ensure!(status.reason() == Some(reason), "{:?} {:?}: {}", status.phase, status.reason(), status.message);
            Ok(status.message)
        })
        .await
    }

    /// Returns the node's pods of a stage.
    pub async fn operands(&self, stage: Stage) -> Result<Vec<Pod>> {
        self.pods_here(&format!("{}={}", keys::STAGE, stage.as_str())).await
    }

    /// Returns the node's pods in the operator's namespace with this label.
    pub async fn pods_here(&self, label: &str) -> Result<Vec<Pod>> {
        let here = ListParams::default().labels(label).fields(&format!("spec.nodeName={}", self.host.name()));
        Ok(self.pods(self.cluster.namespace()).list(&here).await?.items)
    }

    /// Waits for the single pod of a stage.
    pub async fn operand(&self, stage: Stage) -> Result<Pod> {
        eventually(READY, &format!("one {} pod", stage.as_str()), || async move {
            let pods = self.operands(stage).await?;
            let [pod] = pods.as_slice() else { bail!("{} pods", pods.len()) };
            Ok(pod.clone())
        })
        .await
    }

    /// Deletes the single pod of a stage, and waits until a new one is running.
    pub async fn remake(&self, stage: Stage) -> Result<Pod> {
        let before = self.operand(stage).await?;
        self.cluster.kubectl(&["delete", "pod", &before.name_any(), "-n", self.cluster.namespace()])?;
        eventually(READY, &format!("another {} pod that runs", stage.as_str()), || async {
            let pod = self.operand(stage).await?;
            ensure!(pod.uid() != before.uid(), "the old pod still exists");
            ensure!(started(&pod).is_some(), "{:?}", pod.status);
            Ok(pod)
        })
        .await
    }

    /// Waits until no operand is left.
    pub async fn wait_for_no_operands(&self) -> Result<()> {
        eventually(READY, "no operand pods", || async move {
            for stage in Stage::ALL {
                let left: Vec<_> = self.operands(stage).await?.iter().map(ResourceExt::name_any).collect();
                ensure!(left.is_empty(), "{left:?}");
            }
            Ok(())
        })
        .await
    }

    /// Waits until nothing has been written to the node's objects and its policy for this time.
    pub async fn wait_until_settled(&self, quiet: Duration) -> Result<()> {
        self.wait_until_quiet(&self.policy, quiet).await
    }

    /// Waits until nothing has been written to the node's objects and this policy for this time.
    pub async fn wait_until_quiet(&self, policy: &str, quiet: Duration) -> Result<()> {
        let versions = || {
            let version = "-o=jsonpath={.metadata.resourceVersion}";
            let gpu_node = self.cluster.kubectl(&["get", "gpunode", &self.host.name(), version])?;
            let policy = self.cluster.kubectl(&["get", "clustergpupolicy", policy, version])?;
            let generation = "-o=jsonpath={.items[*].metadata.generation}";
            let sets = self.cluster.kubectl(&[
                "get",
                "daemonsets",
                "-A",
                "-l",
                &format!("{}={policy}", keys::POLICY),
                generation,
            ])?;
            anyhow::Ok((gpu_node, policy, sets))
        };
        eventually(READY, "a time without a write", || async {
            let before = versions()?;
            // The absence of writes has no event to wait for.
            tokio::time::sleep(quiet).await;
            let after = versions()?;
            ensure!(before == after, "{before:?} {after:?}");
            Ok(())
        })
        .await
    }

    /// Runs a pod that holds one GPU and does nothing.
    pub async fn run_gpu_pod(&self, name: &str) -> Result<()> {
        self.run_on_gpu(name, &["/usr/bin/entrypoint", "hold"]).await.map(drop)
    }

    /// Creates a pod with one GPU and this command, and waits until it is running.
    pub async fn run_on_gpu(&self, name: &str, command: &[&str]) -> Result<Pod> {
        self.create_on_gpu(name, command).await?;
        self.runs(name).await
    }

    /// Creates a pod with one GPU and this command. The variable `MARK` in its environment identifies its processes.
    pub async fn create_on_gpu(&self, name: &str, command: &[&str]) -> Result<()> {
        self.create(self.gpu_pod(name, command)).await
    }

    /// Creates a pod of the test's own.
    pub async fn create(&self, pod: serde_json::Value) -> Result<()> {
        let pod = serde_json::from_value(pod)?;
        self.pods(&self.users()).create(&kube::api::PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Returns a pod of the test's own on the node, as created by [`Fixture::create_on_gpu`].
    pub fn gpu_pod(&self, name: &str, command: &[&str]) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeSelector": {HOSTNAME: self.host.name()},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": "localhost:5999/nvml-probe:dev",
                    "command": command,
                    "env": [{"name": "MARK", "value": name}],
                    "resources": {"limits": {keys::GPU_RESOURCE: "1"}},
                }],
            },
        })
    }

    /// Waits until one of the test's own pods is running.
    pub async fn runs(&self, name: &str) -> Result<Pod> {
        eventually(READY, "a running GPU pod", || async move {
            let pod = self.pods(&self.users()).get(name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            ensure!(phase == "Running", "{phase}");
            Ok(pod)
        })
        .await
    }

    /// Checks that a marked pod sees exactly one GPU.
    pub fn sees_one_gpu(&self, name: &str) -> Result<()> {
        self.sees_gpus(name, 1)
    }

    /// Checks that a marked pod sees this number of GPUs.
    pub fn sees_gpus(&self, name: &str, count: u32) -> Result<()> {
        let mut devices = self.lists(name, "/dev")?;
        devices.retain(|device| device.starts_with("nvidia"));
        let is_gpu = |device: &&String| device.trim_start_matches("nvidia").parse::<u32>().is_ok();
        let gpus = u32::try_from(devices.iter().filter(is_gpu).count())?;
        ensure!(gpus == count && devices.contains(&"nvidiactl".to_owned()), "{name} sees {devices:?}");
        Ok(())
    }

    /// Returns the files in a folder that a marked pod sees.
    pub fn lists(&self, name: &str, folder: &str) -> Result<Vec<String>> {
        let script = r#"for process in /proc/[0-9]*; do
            if tr '\0' '\n' < "$process/environ" 2>/dev/null | grep -qx "MARK=$1"; then
                ls "$process/root$2" && exit 0
            fi
        done; echo "no process is marked $1" >&2; exit 1"#;
        let listed = self.host.exec(&["/bin/sh", "-c", script, "lists", name, folder])?;
        Ok(listed.split_whitespace().map(str::to_owned).collect())
    }

    /// Returns the label of the objects of the node's policy.
    pub fn of_policy(&self) -> String {
        format!("{}={}", keys::POLICY, self.policy)
    }

    /// Returns the operator's response to a request.
    pub async fn ask_operator(&self, path: &str) -> Result<String> {
        let label = ListParams::default().labels("app.kubernetes.io/name=nodestack-gpu-operator");
        self.ask(self.pods(self.cluster.namespace()).list(&label).await?.items, path).await
    }

    /// Returns the response of the node's probe to a request.
    pub async fn ask_probe(&self, path: &str) -> Result<String> {
        self.ask(self.pods_here("app.kubernetes.io/name=nvml-probe").await?, path).await
    }

    /// Returns the response of the single pod that is not being deleted, at its first port, through the API server.
    async fn ask(&self, pods: Vec<Pod>, path: &str) -> Result<String> {
        let pod = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).context("no pod")?;
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("no container")?;
        let port = container.ports.as_ref().and_then(|ports| ports.first()).context("no port")?.container_port;
        let (namespace, name) = (self.cluster.namespace(), pod.name_any());
        let request = http::Request::get(format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}"));
        Ok(self.cluster.client().request_text(request.body(Vec::new())?).await?)
    }

    /// Returns the node's labels that belong to the operator or are published by it.
    pub async fn operators_labels(&self, published: &[&str]) -> Result<BTreeMap<String, String>> {
        let mut labels = self.node().await?.labels().clone();
        labels.retain(|key, _| key.starts_with(keys::PREFIX) || published.contains(&key.as_str()));
        Ok(labels)
    }
}

/// Sets an operand's image to that of a stand-in.
fn take_image(operand: &mut Operand, repository: &str) {
    let image = operand.image.get_or_insert_default();
    image.repository = Some(repository.to_owned());
    image.tag = Some("dev".to_owned());
}

fn gpus_among(resources: Option<BTreeMap<String, Quantity>>) -> u32 {
    let gpus = resources.unwrap_or_default().remove(keys::GPU_RESOURCE);
    gpus.and_then(|quantity| quantity::count(&quantity.0).ok()).unwrap_or_default()
}

/// Returns whether the pod's init containers have not finished yet.
pub fn is_in_init(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.clone()).unwrap_or_default();
    !statuses.is_empty() && !statuses.iter().all(|status| status.ready)
}

/// Returns when the last init container of a pod, which has ended, started.
pub fn last_init_container_started(pod: &Pod) -> Option<k8s_openapi::jiff::Timestamp> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?.last()?;
    Some(status.state.as_ref()?.terminated.as_ref()?.started_at.as_ref()?.0)
}

/// Returns when a pod's main container started.
pub fn started(pod: &Pod) -> Option<k8s_openapi::jiff::Timestamp> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}
