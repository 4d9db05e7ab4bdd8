//! The facts of DaemonSets that claim to be part of a third-party GPU stack, and the nodes that they reach. Images may be mirrored, so they
//! are recognized by function and name. Such names prove nothing: [`crate::inventory::external_stack`] decides which of them count.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::PodSpec};
use kube::ResourceExt;
use serde::Serialize;

use crate::world::{foreign_pod::shows_driver, node::NodeFacts, placement::Placement, taint::TaintFact};

/// The prefix of the node labels with which NVIDIA's GPU Operator places its DaemonSets.
const NVIDIA_OPERATOR: &str = "nvidia.com/gpu.deploy.";
/// The suffix of the label with which it places its DRA driver, if a `GPUCluster` enables that.
const DRA: &str = "dra-driver";
/// The container of NVIDIA's DRA driver that allocates channels between nodes, and no GPUs.
const COMPUTE_DOMAINS: &str = "compute-domains";

/// The maximum size of a placement that is kept, in bytes. Those of known GPU stacks have some hundreds.
const MAX_PLACEMENT: usize = 4096;

/// A DaemonSet that claims to be part of a third-party GPU stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForeignSet {
    pub part: ForeignPart,
    pub owner: ForeignOwner,
    /// Whether it has the label of this operator's DaemonSets: it is of this installation, or of one in another namespace.
    pub is_labelled: bool,
    /// Whether it has pods with directories of the hosts, which Pod Security rejects in tenants' namespaces.
    has_pods_on_hosts: bool,
    /// The nodes that it reaches. `None` if its placement has more than [`MAX_PLACEMENT`]: then it may reach every node.
    placement: Option<Placement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ForeignPart {
    /// The counterpart of one of this operator's stages.
    Stage(Stage),
    /// A DRA driver, which allocates GPUs for claims, independently of the device plugin.
    Dra,
}

/// The owner of a DaemonSet, as far as it determines how to exclude a node from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ForeignOwner {
    /// NVIDIA's GPU Operator: a label of the node.
    NvidiaOperator,
    /// GKE's add-on: a label of the node.
    Gke,
    /// Any other owner.
    Other,
}

impl ForeignSet {
    /// Returns `None` for a DaemonSet that is not part of an NVIDIA GPU stack.
    pub fn of(set: &DaemonSet) -> Option<Self> {
        let pod = set.spec.as_ref()?.template.spec.as_ref()?;
        let stage = set
            .labels()
            .get(keys::STAGE)
            .and_then(|stage| Stage::ALL.into_iter().find(|known| known.as_str() == stage));
        let part = stage.map(ForeignPart::Stage).or_else(|| part(set, pod))?;
        let placed_by = |prefix: &str| pod.node_selector.iter().flatten().any(|(key, _)| key.starts_with(prefix));
        let owner = if placed_by(NVIDIA_OPERATOR) {
            ForeignOwner::NvidiaOperator
        } else if set.labels().contains_key("addonmanager.kubernetes.io/mode")
            || is_named(set, "nvidia-gpu-device-plugin")
        {
            ForeignOwner::Gke
        } else {
            ForeignOwner::Other
        };
        let is_labelled = set.labels().contains_key(keys::STAGE);
        let placement = Some(Placement::of(pod)).filter(|placement| placement.size() <= MAX_PLACEMENT);
        let has_pods = set.status.as_ref().is_some_and(|status| status.current_number_scheduled > 0);
        let has_pods_on_hosts = has_pods && pod.volumes.iter().flatten().any(|volume| volume.host_path.is_some());
        Some(Self { part, owner, is_labelled, has_pods_on_hosts, placement })
    }

    /// Whether it belongs to an installation of this operator, in its namespace or another one.
    pub fn is_of_an_installation(&self) -> bool {
        self.is_labelled && self.has_pods_on_hosts
    }

    /// Whether it has a pod on a node, or is about to have one.
    pub fn reaches(&self, node: &NodeFacts) -> bool {
        self.placement.as_ref().is_none_or(|placement| {
            placement.means(&node.name, |key| node.labels.get(key).map(Interned::as_str))
                // A startup taint keeps pods away only for a time, too.
                && node.untolerated(&placement.tolerations).all(TaintFact::is_startup)
        })
    }

    /// Returns the command that removes it from one node, for messages.
    pub fn removal_command(&self) -> String {
        match (self.owner, self.part) {
            (ForeignOwner::Gke, ForeignPart::Stage(Stage::DevicePlugin)) => {
                "label the node gke-no-default-nvidia-gpu-device-plugin=true".to_owned()
            }
            (ForeignOwner::NvidiaOperator, ForeignPart::Stage(stage)) => {
                let word = if stage == Stage::Toolkit { "container-toolkit" } else { stage.as_str() };
                format!("label the node {NVIDIA_OPERATOR}{word}=false")
            }
            (ForeignOwner::NvidiaOperator, ForeignPart::Dra) => format!("label the node {NVIDIA_OPERATOR}{DRA}=false"),
            _ => "delete it, or exclude the node with its nodeSelector".to_owned(),
        }
    }
}

fn part(set: &DaemonSet, pod: &PodSpec) -> Option<ForeignPart> {
    let deploys =
        |what: &str| pod.node_selector.iter().flatten().any(|(key, _)| key.strip_prefix(NVIDIA_OPERATOR) == Some(what));
    let mounts = |folder: &str| {
        let volumes = pod.volumes.iter().flatten().filter_map(|volume| volume.host_path.as_ref());
        volumes.map(|volume| volume.path.trim_end_matches('/')).any(|path| path.ends_with(folder))
    };
    let images = || pod.containers.iter().filter_map(|container| container.image.as_deref());
    let nvidias_image = || images().any(|image| repository(image).ends_with("nvidia/k8s-device-plugin"));
    let plugin = ["nvidia-device-plugin", "nvidia-gpu-device-plugin"].into_iter().any(|name| is_named(set, name));
    // Only a device plugin mounts kubelet's directory; feature discovery and the MPS daemon use the same image.
    let plugin = mounts("/device-plugins") && (plugin || nvidias_image());
    let hands_out_gpus = pod.containers.iter().any(|container| container.name != COMPUTE_DOMAINS);
    let dra = mounts("/plugins_registry")
        && hands_out_gpus
        && (is_named(set, "nvidia-dra-driver") || is_named(set, "dra-driver-nvidia") || images().any(is_dra_driver));
    let containers = || pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let own_mounts = containers().flat_map(|container| container.volume_mounts.iter().flatten());
    let driver = is_named(set, "nvidia-driver-installer") || is_named(set, "nvidia-driver-daemonset");
    if driver || deploys("driver") || shows_driver(pod.volumes.as_deref().unwrap_or_default(), own_mounts) {
        Some(ForeignPart::Stage(Stage::Driver))
    } else if deploys("container-toolkit") {
        Some(ForeignPart::Stage(Stage::Toolkit))
    } else if deploys("device-plugin") || plugin {
        Some(ForeignPart::Stage(Stage::DevicePlugin))
    } else {
        (dra || deploys(DRA)).then_some(ForeignPart::Dra)
    }
}

fn is_dra_driver(image: &str) -> bool {
    let repository = repository(image);
    ["dra-driver-nvidia-gpu", "k8s-dra-driver-gpu"].into_iter().any(|name| repository.ends_with(name))
}

/// Returns an image's registry and path.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        // A path follows, so the colon belongs to a port.
        Some((_, tag)) if tag.contains('/') => image,
        Some((repository, _)) => repository,
        None => image,
    }
}

/// Returns whether a DaemonSet's name, or a label that names it, has this prefix. Names may end with an operating system.
fn is_named(set: &DaemonSet, name: &str) -> bool {
    let labels = ["k8s-app", "name", "app", "app.kubernetes.io/name"];
    let labels = labels.into_iter().filter_map(|key| set.labels().get(key).map(String::as_str));
    let of_template = set.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref()?.labels.as_ref());
    let of_template = of_template.and_then(|labels| labels.get("name").or_else(|| labels.get("k8s-app")));
    let own_name = set.metadata.name.as_deref();
    labels.chain(of_template.map(String::as_str)).chain(own_name).any(|word| word.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(yaml: &str) -> DaemonSet {
        serde_yaml::from_str(yaml).unwrap()
    }

    /// Returns a DaemonSet with this name, these labels and this pod spec.
    fn written(name: &str, labels: &str, pod: &str) -> DaemonSet {
        set(&format!(
            "{{metadata: {{name: {name}, labels: {labels}}}, spec: {{selector: {{}}, template: {{metadata: {{labels: {labels}}}, spec: {pod}}}}}}}"
        ))
    }

    const REGISTRY: &str = "volumes: [{name: r, hostPath: {path: /var/lib/kubelet/plugins_registry}}]";
    const SOCKETS: &str = "volumes: [{name: s, hostPath: {path: /var/lib/kubelet/device-plugins}}]";

    #[test]
    fn parts_of_a_stack_are_recognized_by_what_they_do() {
        let plugin = |image: &str| format!("{{{SOCKETS}, containers: [{{name: c, image: \"{image}\"}}]}}");
        let selected =
            |what: &str| format!("{{containers: [], nodeSelector: {{nvidia.com/gpu.deploy.{what}: \"true\"}}}}");
        let dra = format!(
            "{{{REGISTRY}, containers: [{{name: compute-domains}}, {{name: gpus, image: nvcr.io/nvidia/k8s-dra-driver-gpu:v1}}]}}"
        );
        let gke = "{k8s-app: nvidia-gpu-device-plugin}";
        let fixed = "{name: nvidia-device-plugin-ds}";
        let installer = "{k8s-app: nvidia-driver-installer}";
        let stage = ForeignPart::Stage;
        let (operator, other) = (ForeignOwner::NvidiaOperator, ForeignOwner::Other);
        for (name, labels, pod, part, owner) in [
            (
                "nvidia-gpu-device-plugin-small-cos",
                gke,
                plugin("gke.gcr.io/x@sha256:1"),
                stage(Stage::DevicePlugin),
                ForeignOwner::Gke,
            ),
            (
                "nvidia-device-plugin-daemonset",
                fixed,
                plugin("mirror:5000/plugin:v1"),
                stage(Stage::DevicePlugin),
                other,
            ),
            ("mine", "{}", plugin("mirror:5000/nvidia/k8s-device-plugin:v1"), stage(Stage::DevicePlugin), other),
            ("nvidia-device-plugin-daemonset", "{}", selected("device-plugin"), stage(Stage::DevicePlugin), operator),
            ("nvidia-driver-daemonset", "{}", selected("driver"), stage(Stage::Driver), operator),
            ("t", "{}", selected("container-toolkit"), stage(Stage::Toolkit), operator),
            ("nvidia-driver-installer", installer, "{containers: []}".to_owned(), stage(Stage::Driver), other),
            ("dra-kubelet-plugin", "{}", dra, ForeignPart::Dra, other),
            ("nvidia-dra-driver-gpu-kubelet-plugin", "{}", selected("dra-driver"), ForeignPart::Dra, operator),
        ] {
            let facts = ForeignSet::of(&written(name, labels, &pod));
            assert_eq!(facts.map(|facts| (facts.part, facts.owner)), Some((part, owner)), "{name} {pod}");
        }
    }

    #[test]
    fn a_set_with_only_a_matching_name_is_not_part_of_a_stack() {
        for (name, volumes, image) in [
            ("amdgpu-device-plugin", SOCKETS, "rocm/k8s-device-plugin:1"),
            ("rdma", SOCKETS, "nvcr.io/nvidia/mellanox/k8s-rdma-shared-dev-plugin:1"),
            ("gpu-feature-discovery", "volumes: []", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
            ("dcgm-exporter", "volumes: []", "nvcr.io/nvidia/k8s/dcgm-exporter:4"),
            ("dra-driver-nvidia-gpu", REGISTRY, "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v1"),
        ] {
            let pod = format!("{{{volumes}, containers: [{{name: compute-domains, image: \"{image}\"}}]}}");
            assert_eq!(ForeignSet::of(&written(name, "{}", &pod)), None, "{name}");
        }
    }

    #[test]
    fn a_set_reaches_the_nodes_that_its_placement_names() {
        let affinity = |terms: &str| {
            format!(
                "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: {terms}}}}}}}"
            )
        };
        let gke = affinity(
            "[{matchExpressions: [{key: accelerator, operator: Exists}, {key: no-plugin, operator: NotIn, values: [\"true\"]}]}]",
        );
        let by_name = affinity("[{matchFields: [{key: metadata.name, operator: In, values: [b]}]}]");
        let many = affinity("[{matchExpressions: [{key: gpus, operator: Gt, values: [\"4\"]}]}]");
        let long = "b".repeat(MAX_PLACEMENT);
        let too_large =
            affinity(&format!("[{{matchFields: [{{key: metadata.name, operator: In, values: [a, {long}]}}]}}]"));
        let node = |name: &str, labels: &[(&str, &str)], taint: Option<&str>| NodeFacts {
            name: name.into(),
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            taints: taint
                .map(|key| TaintFact { key: key.into(), value: String::new(), effect: "NoSchedule".into() })
                .into_iter()
                .collect(),
            ..NodeFacts::default()
        };
        let tolerating = "tolerations: [{key: nvidia.com/gpu, operator: Exists}]";
        for (placed, node, reached) in [
            ("", node("a", &[], None), true),
            (gke.as_str(), node("a", &[("accelerator", "t4")], None), true),
            (gke.as_str(), node("a", &[], None), false),
            (gke.as_str(), node("a", &[("accelerator", "t4"), ("no-plugin", "true")], None), false),
            (by_name.as_str(), node("a", &[], None), false),
            (by_name.as_str(), node("b", &[], None), true),
            (many.as_str(), node("a", &[("gpus", "4")], None), false),
            (many.as_str(), node("a", &[("gpus", "8")], None), true),
            ("nodeSelector: {gpu: \"yes\"}", node("a", &[("gpu", "no")], None), false),
            (tolerating, node("a", &[], Some("nvidia.com/gpu")), true),
            (tolerating, node("a", &[], Some("dedicated")), false),
            (tolerating, node("a", &[], Some(keys::UNHEALTHY_TAINT)), true),
            (too_large.as_str(), node("b", &[], None), true),
        ] {
            let comma = if placed.is_empty() { "" } else { ", " };
            let pod = format!("{{{SOCKETS}, containers: []{comma}{placed}}}");
            let facts = ForeignSet::of(&written("nvidia-device-plugin", "{}", &pod)).unwrap();
            assert_eq!(facts.reaches(&node), reached, "{placed}: {node:?}");
        }
    }
}
