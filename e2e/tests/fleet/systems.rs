//! The supported systems, one test each: the example policy becomes Ready on nodes like those of the system, and then
//! the check passes that users of the system make.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use e2e::{
    HostDriver, eventually,
    fleet::{FleetNode, MEMBER_LABEL, os},
};
use gpu_operator_crd::{ClusterGpuPolicy, Phase, keys, policy::Stage, reason::Reason, report::HostRuntime};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{DEADLINE, Fixture, POLICY, test};

const GKE: &str = "cloud.google.com/gke-accelerator";
/// PCI ids.
const K80: &str = "102d";
const P100: &str = "15f9";
const K620: &str = "13bb";
const GEFORCE: &str = "1e07";
const T4: &str = "1eb8";
const H100: &str = "2330";
const A100: &str = "20b0";

/// Returns a node with an operating system.
fn node(name: &str, gpu: &str, count: usize, system: (&str, &str)) -> FleetNode {
    FleetNode { os: os(system.0, system.1), ..FleetNode::with_gpus(name, gpu, count) }
}

fn with_label(mut node: FleetNode, key: &str, value: &str) -> FleetNode {
    node.labels.insert(key.into(), value.into());
    node
}

fn with_driver(mut node: FleetNode, version: &str) -> FleetNode {
    node.host_driver = HostDriver::Loaded(version.into());
    node
}

fn with_runtime(mut node: FleetNode, runtime: &str) -> FleetNode {
    node.runtime = runtime.into();
    node
}

/// Returns a node whose image has NVIDIA's runtime as the default.
fn with_host_runtime(mut node: FleetNode, file: &str) -> FleetNode {
    node.host_runtimes = vec![HostRuntime { file: file.into(), handler: "nvidia".into(), default: true }];
    node
}

/// An example policy and its nodes.
struct System {
    f: Fixture,
}

impl System {
    /// Adds the nodes, applies the example to only them, and waits until all of them are ready.
    async fn ready(f: Fixture, example: &str, nodes: Vec<FleetNode>) -> Result<Self> {
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        f.fleet.join(nodes).await?;
        let system = Self { f };
        system.apply(example).await?;
        for name in names {
            system.until_ready(&name).await?;
        }
        eventually(DEADLINE, "a Ready policy", || async {
            let status = system.f.policy().await?.status.context("no status")?;
            let ready =
                status.conditions.iter().find(|condition| condition.type_ == "Ready").context("no such condition")?;
            ensure!(ready.status == "True", "{}: {}", ready.reason, ready.message);
            Ok(())
        })
        .await?;
        Ok(system)
    }

    async fn apply(&self, example: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut policy: ClusterGpuPolicy = serde_yaml::from_str(&text)?;
        policy.metadata.name = Some(POLICY.to_owned());
        let mut selector = policy.spec.node_selector.take().unwrap_or_default();
        selector.match_labels.insert(MEMBER_LABEL.0.to_owned(), MEMBER_LABEL.1.to_owned());
        policy.spec.node_selector = Some(selector);
        let apply = PatchParams::apply("test").force();
        self.f.policies().patch(POLICY, &apply, &Patch::Apply(&policy)).await?;
        Ok(())
    }

    async fn until_ready(&self, node: &str) -> Result<()> {
        eventually(DEADLINE, &format!("{node} ready"), || async {
            let status = self.f.gpu_nodes().get(node).await?.status.unwrap_or_default();
            ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await
    }

    /// Returns the pod template of each stage's DaemonSets, by stage.
    async fn stages(&self) -> Result<BTreeMap<String, Vec<DaemonSet>>> {
        let mut stages: BTreeMap<String, Vec<DaemonSet>> = BTreeMap::new();
        for set in self.f.daemon_sets().await?.into_values() {
            let stage = set.metadata.labels.as_ref().and_then(|labels| labels.get(keys::STAGE)).cloned();
            stages.entry(stage.unwrap_or_default()).or_default().push(set);
        }
        Ok(stages)
    }

    /// Checks the number of DaemonSets of each stage.
    async fn has_stages(&self, wanted: &[(Stage, usize)]) -> Result<()> {
        let stages = self.stages().await?;
        let found: BTreeMap<&str, usize> = stages.iter().map(|(stage, sets)| (stage.as_str(), sets.len())).collect();
        let wanted: BTreeMap<&str, usize> = wanted.iter().map(|(stage, count)| (stage.as_str(), *count)).collect();
        ensure!(found == wanted, "{found:?}, expected {wanted:?}");
        Ok(())
    }

    /// Returns a node's GPUs as shown by `kubectl get nodes -o=custom-columns=…`.
    async fn allocatable(&self, node: &str, resource: &str) -> Result<Option<String>> {
        let node = Api::<Node>::all(self.f.cluster.client()).get(node).await?;
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        Ok(allocatable.get(resource).map(|quantity| quantity.0.clone()))
    }

    async fn label(&self, node: &str, key: &str) -> Result<Option<String>> {
        let node = Api::<Node>::all(self.f.cluster.client()).get(node).await?;
        Ok(node.metadata.labels.and_then(|labels| labels.get(key).cloned()))
    }

    /// Runs a user's pod that requests one of a resource on nodes with these labels, and returns its node.
    async fn runs_on(&self, resource: &str, selector: Value) -> Result<String> {
        let pods = Api::<Pod>::namespaced(self.f.cluster.client(), "default");
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "vectoradd-"},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": selector,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "vectoradd",
                    "image": "registry.example.com/cuda-sample:vectoradd",
                    "resources": {"limits": {resource: "1"}},
                }],
            },
        }))?;
        let name = pods.create(&PostParams::default(), &pod).await?.metadata.name.context("no name")?;
        eventually(DEADLINE, "a running pod", || async {
            let pod = pods.get(&name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            ensure!(phase == "Running", "{phase}: {:?}", pod.status.and_then(|status| status.conditions));
            pod.spec.and_then(|spec| spec.node_name).context("no node")
        })
        .await
    }

    async fn end(self) -> Result<Fixture> {
        let pods = Api::<Pod>::namespaced(self.f.cluster.client(), "default");
        pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
        Ok(self.f)
    }
}

/// Returns a DaemonSet's pod template as JSON text, for searches.
fn text(set: &DaemonSet) -> Result<String> {
    Ok(serde_json::to_string(&set.spec.as_ref().context("no spec")?.template)?)
}

#[test]
fn centos_7_with_tesla_k80s_and_a_packaged_driver() {
    test(|f| async move {
        // These systems came with 384.66, which is too old for current device plugins; the plan's own tests check that
        // message.
        let k80s = with_driver(node("k80s", K80, 4, ("centos", "7")), "470.256.02");
        let s = System::ready(f, "legacy-k80", vec![k80s]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.allocatable("k80s", keys::GPU_RESOURCE).await?.as_deref() == Some("4"));
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-k80"})).await? == "k80s");
        s.end().await
    });
}

#[test]
fn centos_7_with_tesla_k80s_and_a_run_file_from_a_mirror() {
    test(|f| async move {
        let s = System::ready(f, "legacy-k80-run-file", vec![node("k80s", K80, 4, ("centos", "7"))]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        let driver = text(&s.stages().await?["driver"][0])?;
        for word in [
            "https://mirror.example.com/nvidia/",
            "NVIDIA_DRIVER_SHA256",
            "HTTPS_PROXY",
            "10.8.0.0/16",
            "el7-nvidia-install",
        ] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-k80"})).await? == "k80s");
        s.end().await
    });
}

#[test]
fn docker_with_two_geforce_cards_per_node() {
    test(|f| async move {
        let cards = |name: &str| {
            let node = with_runtime(node(name, GEFORCE, 2, ("rhel", "8.10")), "docker://27.0.3");
            with_label(with_driver(node, "430.34"), "host", name)
        };
        // In one node's daemon.json NVIDIA's runtime was configured by hand, in the other's it was not.
        let by_hand = with_host_runtime(cards("by-hand"), "/etc/docker/daemon.json");
        let cpu = FleetNode::without_gpus("cpu-only");
        let s = System::ready(f, "docker", vec![cards("geforce"), by_hand]).await?;
        s.f.fleet.join([cpu]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 2)]).await?;
        ensure!(s.label("by-hand", keys::TOOLKIT).await?.is_none(), "a manual configuration must be left unchanged");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"host": "by-hand"})).await? == "by-hand");
        let toolkit = text(&s.stages().await?["toolkit"][0])?;
        for word in ["/etc/docker", "docker.sock", "--no-daemon"] {
            ensure!(toolkit.contains(word), "no {word} in {toolkit}");
        }
        ensure!(s.allocatable("geforce", keys::GPU_RESOURCE).await?.as_deref() == Some("2"));
        ensure!(s.allocatable("cpu-only", keys::GPU_RESOURCE).await?.is_none());
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"host": "geforce"})).await? == "geforce");
        s.end().await
    });
}

#[test]
fn gke_with_container_optimized_os() {
    test(|f| async move {
        let k80 = with_label(node("cos", K80, 1, ("cos", "117")), GKE, "nvidia-tesla-k80");
        let s = System::ready(f, "gke-cos", vec![k80]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        let stages = s.stages().await?;
        let (driver, plugin) = (text(&stages["driver"][0])?, text(&stages["device-plugin"][0])?);
        for word in ["/home/kubernetes/bin/nvidia", "--version=default", "install"] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        for word in ["--enable-container-gpu-metrics", "2112", "/home/kubernetes/bin/nvidia"] {
            ensure!(plugin.contains(word), "no {word} in {plugin}");
        }
        ensure!(s.label("cos", GKE).await?.as_deref() == Some("nvidia-tesla-k80"), "the cloud's label was changed");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({GKE: "nvidia-tesla-k80"})).await? == "cos");
        s.end().await
    });
}

#[test]
fn gke_with_ubuntu() {
    test(|f| async move {
        let t4 = with_label(node("ubuntu", T4, 1, ("ubuntu", "22.04")), GKE, "nvidia-tesla-t4");
        let s = System::ready(f, "gke-ubuntu", vec![t4]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({GKE: "nvidia-tesla-t4"})).await? == "ubuntu");
        s.end().await
    });
}

#[test]
fn gke_with_its_own_driver_and_plugin() {
    test(|f| async move {
        let mut managed = with_label(node("managed", H100, 8, ("cos", "117")), GKE, "nvidia-h100-80gb");
        managed.labels.insert("cloud.google.com/gke-gpu-driver-version".into(), "default".into());
        managed.host_driver_root = "/home/kubernetes/bin/nvidia".into();
        let addon = addon()?;
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        sets.patch("nvidia-gpu-device-plugin", &apply, &Patch::Apply(&addon)).await?;
        let s = System::ready(f, "gke-managed", vec![with_driver(managed, "535.309.01")]).await?;
        s.has_stages(&[]).await?;
        ensure!(s.allocatable("managed", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-h100-80gb"})).await? == "managed");
        let status = s.f.gpu_nodes().get("managed").await?.status.unwrap_or_default();
        ensure!(
            status.message.contains("kube-system/nvidia-gpu-device-plugin"),
            "the message does not name the plugin: {}",
            status.message
        );
        sets.delete("nvidia-gpu-device-plugin", &DeleteParams::default()).await?;
        s.end().await
    });
}

#[test]
fn a_third_party_device_plugin_is_left_unchanged_until_the_operator_takes_over_its_node() {
    test(|f| async move {
        let third_party =
            with_label(with_driver(node("third-party", A100, 8, ("ubuntu", "22.04")), "580.173.02"), "static", "yes");
        let a100 = |name: &str| with_driver(node(name, A100, 8, ("ubuntu", "22.04")), "580.173.02");
        let operated = with_label(a100("operated"), "nvidia.com/gpu.deploy.device-plugin", "true");
        let name = "nvidia-device-plugin-daemonset";
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        let of_operator = plugin("of-nvidias-operator", ("nvidia.com/gpu.deploy.device-plugin", "true"))?;
        let dra = dra_driver("nvidia-dra-driver-gpu-kubelet-plugin", ("claims", "yes"))?;
        for set in [plugin(name, ("static", "yes"))?, of_operator, dra] {
            let name = set.metadata.name.clone().context("no name")?;
            sets.patch(&name, &apply, &Patch::Apply(&set)).await?;
        }
        let s = System::ready(f, "beside-other-stacks", vec![third_party, operated, a100("bare")]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        let status = s.f.gpu_nodes().get("operated").await?.status.unwrap_or_default();
        ensure!(status.message.contains("kube-system/of-nvidias-operator"), "{}", status.message);
        s.f.fleet.join([with_label(a100("claimed"), "claims", "yes")]).await?;
        s.f.until_reason("claimed", Reason::ForeignDraDriver).await?;
        ensure!(
            s.label("claimed", keys::DEVICE_PLUGIN).await?.is_none(),
            "the operator's plugin runs next to a DRA driver"
        );
        s.f.until_condition("Ready", "True").await?;
        let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
        ensure!(status.reason() == Some(Reason::ForeignDevicePlugin), "{:?}: {}", status.reason(), status.message);
        ensure!(
            s.label("third-party", keys::DEVICE_PLUGIN).await?.is_none(),
            "the operator's plugin runs next to a third-party one"
        );
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"static": "yes"})).await? == "third-party");

        let label = |key: &'static str, value: Value| {
            let nodes = Api::<Node>::all(s.f.cluster.client());
            let patch = json!({"metadata": {"labels": {key: value}}});
            async move { nodes.patch("third-party", &PatchParams::default(), &Patch::Merge(patch)).await }
        };
        label("example.com/gpu-stack", json!("gpu-operator")).await?;
        eventually(DEADLINE, "a message with the way to remove the third-party plugin", || async {
            let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
            ensure!(status.message.contains("nodeSelector"), "{}", status.message);
            Ok(())
        })
        .await?;
        label("static", Value::Null).await?;
        eventually(DEADLINE, "the operator's plugin instead of the third-party one", || async {
            let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
            let all = status.is_ready() && status.foreign.is_empty();
            ensure!(
                all && status.reason() == Some(Reason::AllGpusAllocatable),
                "{:?} {}",
                status.reason(),
                status.message
            );
            let pods = Api::<Pod>::namespaced(s.f.cluster.client(), s.f.cluster.namespace());
            let plugins = format!("{}={}", keys::STAGE, Stage::DevicePlugin.as_str());
            let here = ListParams::default().labels(&plugins).fields("spec.nodeName=third-party,status.phase=Running");
            ensure!(pods.list(&here).await?.items.len() == 1, "the operator's plugin is not running");
            Ok(())
        })
        .await?;
        for name in [name, "of-nvidias-operator", "nvidia-dra-driver-gpu-kubelet-plugin"] {
            sets.delete(name, &DeleteParams::default()).await?;
        }
        s.end().await
    });
}

/// GKE's device plugin, as deployed by its add-on manager.
fn addon() -> Result<DaemonSet> {
    plugin("nvidia-gpu-device-plugin", (GKE, "nvidia-h100-80gb"))
}

/// A third party's DRA driver on the nodes with a label.
fn dra_driver(name: &str, label: (&str, &str)) -> Result<DaemonSet> {
    let mut set = plugin(name, label)?;
    let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).context("no pod")?;
    let folder = json!([{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}]);
    pod.volumes = serde_json::from_value(folder)?;
    pod.containers[0].name = "gpus".into();
    pod.containers[0].image = Some("registry.example.com/nvidia/k8s-dra-driver-gpu:v25".into());
    Ok(set)
}

/// A third party's device plugin on the nodes with a label.
fn plugin(name: &str, (key, value): (&str, &str)) -> Result<DaemonSet> {
    let labels = json!({"k8s-app": name});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {key: value},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": name,
                        "image": "registry.example.com/nvidia-gpu-device-plugin:1",
                        "volumeMounts": [{"name": "sockets", "mountPath": "/device-plugin"}],
                    }],
                    "volumes": [{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
                },
            },
        },
    }))?)
}

#[test]
fn workstations_with_a_custom_label() {
    test(|f| async move {
        let workstation = |name: &str| {
            let node = with_runtime(node(name, K620, 1, ("ubuntu", "20.04")), "docker://20.10.24");
            with_host_runtime(with_driver(node, "450.66"), "/etc/docker/daemon.json")
        };
        let nodes = (1..=3).map(|n| workstation(&format!("worker-amd64-gpuceph-node{n}"))).collect();
        let s = System::ready(f, "bare-metal-labels", nodes).await?;
        s.has_stages(&[(Stage::DevicePlugin, 1)]).await?;
        ensure!(s.label("worker-amd64-gpuceph-node2", "gpu/nividia").await?.as_deref() == Some("P630"));
        let model = s.label("worker-amd64-gpuceph-node2", keys::MODEL).await?;
        ensure!(model.as_deref() == Some("nvidia-quadro-k620"), "{model:?}");
        let node = s.runs_on(keys::GPU_RESOURCE, json!({"gpu/nividia": "P630"})).await?;
        ensure!(node.starts_with("worker-amd64-gpuceph-node"), "{node}");
        s.end().await
    });
}

#[test]
fn workstations_with_a_run_file_googles_plugin_and_no_toolkit() {
    test(|f| async move {
        let labelled = |name: &str| with_label(node(name, K620, 1, ("ubuntu", "20.04")), "gpu/nividia", "P630");
        let nodes = vec![labelled("ceph-node1"), labelled("ceph-node2")];
        let s = System::ready(f, "bare-metal-run-file", nodes).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        let stages = s.stages().await?;
        let (driver, plugin) = (text(&stages["driver"][0])?, text(&stages["device-plugin"][0])?);
        for word in ["XFree86/Linux-x86_64/460.56", "nvidia-driver-install:20.04"] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        ensure!(plugin.contains("nvidia-plugin:promethues"), "{plugin}");
        ensure!(
            s.label("ceph-node1", "gpu/nividia").await?.as_deref() == Some("P630"),
            "the user's own label was changed"
        );
        s.runs_on(keys::GPU_RESOURCE, json!({"gpu/nividia": "P630"})).await?;
        s.end().await
    });
}

#[test]
fn k80s_and_p100s_and_newer_models_in_one_cluster() {
    test(|f| async move {
        let b200 = node("b200", "2901", 8, ("ubuntu", "22.04"));
        let nodes = [("k80", K80), ("p100", P100), ("t4", T4), ("h100", H100)];
        let mut nodes: Vec<_> = nodes
            .iter()
            .map(|(name, gpu)| {
                // The last driver branch for Kepler has no image for a newer Ubuntu.
                node(name, gpu, 2, ("ubuntu", if *gpu == K80 { "20.04" } else { "22.04" }))
            })
            .collect();
        nodes.push(b200);
        let s = System::ready(f, "mixed-models", nodes).await?;
        let drivers = &s.stages().await?["driver"];
        ensure!(drivers.len() == 5, "{} driver DaemonSets", drivers.len());
        for version in ["470.256.02", "580.173.02", "595.91.07"] {
            ensure!(drivers.iter().any(|set| text(set).is_ok_and(|text| text.contains(version))), "no {version}");
        }
        for (model, node) in [("nvidia-tesla-k80", "k80"), ("nvidia-tesla-p100", "p100"), ("nvidia-b200", "b200")] {
            let found = s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": model})).await?;
            ensure!(found == node, "{model} on {found}");
        }
        // A version that a model does not support is rejected only for nodes with that model.
        let pin = json!({"spec": {"pools": [{
            "name": "pinned", "match": {"models": ["nvidia-tesla-k80"]}, "driver": {"version": "595.91.07"},
        }]}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(pin)).await?;
        eventually(DEADLINE, "the message about the pool", || async {
            let status = s.f.policy().await?.status.context("no status")?;
            let accepted = status
                .conditions
                .iter()
                .find(|condition| condition.type_ == "Accepted")
                .context("no such condition")?;
            ensure!(accepted.status == "False" && accepted.message.contains("470"), "{accepted:?}");
            Ok(())
        })
        .await?;
        s.until_ready("h100").await?;
        s.end().await
    });
}

#[test]
fn kubeadm_with_containerd_and_cri_o() {
    test(|f| async move {
        let crio = with_runtime(node("crio", A100, 8, ("rhel", "9.4")), "cri-o://1.34.1");
        let s = System::ready(f, "kubeadm", vec![node("containerd", H100, 8, ("ubuntu", "24.04")), crio]).await?;
        s.has_stages(&[(Stage::Driver, 2), (Stage::Toolkit, 2), (Stage::DevicePlugin, 2)]).await?;
        for set in &s.stages().await?["toolkit"] {
            ensure!(!text(set)?.contains("containerd.sock"), "a runtime with CDI support was configured");
        }
        s.end().await
    });
}

#[test]
fn eks_with_accelerated_images() {
    test(|f| async move {
        let mut node = with_driver(node("eks", A100, 8, ("amzn", "2023")), "580.95.05");
        for (key, value) in [("name", "a100"), ("manufacturer", "nvidia"), ("count", "8"), ("memory", "40960")] {
            node.labels.insert(format!("karpenter.k8s.aws/instance-gpu-{key}"), value.into());
        }
        let s = System::ready(f, "eks", vec![node]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-a100"})).await? == "eks");
        s.end().await
    });
}

#[test]
fn aks_and_eks_with_their_own_driver_and_nvidias_runtime() {
    test(|f| async move {
        let image = |name: &str, gpu: &str, system| {
            let node = with_runtime(with_driver(node(name, gpu, 4, system), "580.95.05"), "containerd://1.7.27");
            with_host_runtime(node, "/etc/containerd/config.toml")
        };
        let aks = with_label(image("aks", T4, ("ubuntu", "22.04")), "kubernetes.azure.com/accelerator", "nvidia");
        let eks = image("eks", A100, ("amzn", "2023"));
        let s = System::ready(f, "eks", vec![aks, eks]).await?;
        s.has_stages(&[(Stage::DevicePlugin, 2)]).await?;
        let message = s.f.gpu_nodes().get("aks").await?.status.context("no status")?.message;
        ensure!(message.ends_with("runtime nvidia is configured on the host and left unchanged"), "{message}");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-t4"})).await? == "aks");
        s.end().await
    });
}

#[test]
fn aks_without_its_own_driver() {
    test(|f| async move {
        let t4 = node("aks", T4, 4, ("ubuntu", "22.04"));
        let s = System::ready(f, "aks", vec![with_label(t4, "kubernetes.azure.com/accelerator", "nvidia")]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        s.end().await
    });
}

#[test]
fn k3s_with_its_own_containerd() {
    test(|f| async move {
        let mut node = with_runtime(node("k3s", T4, 1, ("ubuntu", "22.04")), "containerd://2.1.4-k3s1");
        node.kubelet = "v1.36.3+k3s1".into();
        let s = System::ready(f, "k3s", vec![node]).await?;
        let sets = &s.stages().await?["toolkit"];
        ensure!(sets.len() == 1 && !text(&sets[0])?.contains("containerd.sock"), "{sets:?}");
        // If requested, the runtime is configured in k3s's own file, with its socket.
        let runtime = json!({"spec": {"defaults": {"toolkit": {"injection": "Runtime"}}}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(&runtime)).await?;
        eventually(DEADLINE, "a toolkit that configures k3s's containerd", || async {
            let sets = &s.stages().await?["toolkit"];
            ensure!(sets.len() == 1 && text(&sets[0])?.contains("/run/k3s/containerd"), "{sets:?}");
            Ok(())
        })
        .await?;
        s.f.until_reason("k3s", Reason::AllGpusAllocatable).await?;
        s.end().await
    });
}

#[test]
fn rke2_with_cdi() {
    test(|f| async move {
        let mut node = with_runtime(node("rke2", T4, 1, ("rhel", "9.4")), "containerd://2.1.4-k3s1");
        node.kubelet = "v1.36.3+rke2r1".into();
        let s = System::ready(f, "rke2", vec![node]).await?;
        ensure!(!text(&s.stages().await?["toolkit"][0])?.contains("containerd.sock"));
        s.end().await
    });
}

#[test]
fn an_air_gapped_cluster_pulls_only_from_its_mirror() {
    test(|f| async move {
        let s = System::ready(f, "air-gapped", vec![node("gapped", H100, 8, ("ubuntu", "22.04"))]).await?;
        for (stage, sets) in s.stages().await? {
            for set in sets {
                let spec = set.spec.and_then(|spec| spec.template.spec).context("no pod")?;
                for container in spec.init_containers.unwrap_or_default().iter().chain(&spec.containers) {
                    let image = container.image.as_deref().unwrap_or_default();
                    let is_probe = image.starts_with("localhost:5999/nvml-probe:");
                    ensure!(is_probe || image.starts_with("registry.example.com:5000/mirror/"), "{stage}: {image}");
                    ensure!(
                        stage != "driver" || is_probe || image.contains("6.8.0-60-generic"),
                        "not precompiled: {image}"
                    );
                }
            }
        }
        s.end().await
    });
}

#[test]
fn four_pods_per_gpu_by_time_slicing() {
    test(|f| async move {
        let s = System::ready(f, "time-slicing", vec![node("sliced", T4, 2, ("ubuntu", "22.04"))]).await?;
        ensure!(s.allocatable("sliced", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        for _ in 0..8 {
            s.runs_on(keys::GPU_RESOURCE, json!({})).await?;
        }
        let driver = s.label("sliced", keys::DRIVER).await?;
        let fewer = json!({"spec": {"defaults": {"devicePlugin": {"sharing": {"timeSlicing": {"replicas": 5}}}}}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(fewer)).await?;
        eventually(DEADLINE, "ten allocatable GPUs", || async {
            let count = s.allocatable("sliced", keys::GPU_RESOURCE).await?;
            ensure!(count.as_deref() == Some("10"), "{count:?}");
            Ok(())
        })
        .await?;
        s.until_ready("sliced").await?;
        ensure!(s.label("sliced", keys::DRIVER).await? == driver, "the driver's revision was changed");
        s.end().await
    });
}

#[test]
fn four_pods_per_gpu_by_mps() {
    test(|f| async move {
        let s = System::ready(f, "mps", vec![node("shared", A100, 2, ("ubuntu", "22.04"))]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::Mps, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.allocatable("shared", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        s.end().await
    });
}

#[test]
fn network_cards_that_access_gpu_memory() {
    test(|f| async move {
        let h100 = |way: &str| with_label(node(way, H100, 8, ("ubuntu", "24.04")), "example.com/rdma", way);
        let s = System::ready(f, "gpudirect-rdma", vec![h100("dma-buf"), h100("peermem")]).await?;
        let drivers = &s.stages().await?["driver"];
        let texts = drivers.iter().map(text).collect::<Result<Vec<_>>>()?;
        let with = |words: &str| texts.iter().filter(|text| text.contains(words)).count();
        ensure!(with(r#"{"name":"KERNEL_MODULE_TYPE","value":"open"}"#) == 2, "{texts:?}");
        ensure!(with(r#"{"name":"GPU_DIRECT_RDMA_ENABLED","value":"true"}"#) == 1, "{texts:?}");
        s.end().await
    });
}
