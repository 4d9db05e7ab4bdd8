//! The facts of third-party pods that install an NVIDIA driver on their node and belong to no DaemonSet, such as the pods that
//! `kubectl delete daemonset --cascade=orphan` leaves behind.

use gpu_operator_crd::{NodeName, keys};
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use kube::ResourceExt;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::world::partial::Partial;

/// The label that NVIDIA's GPU Operator sets on its pods, and its value on driver pods.
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "nvidia-driver");
/// Directories where a driver container mounts its root so that the host sees it.
const DRIVER_FOLDERS: [&str; 2] = ["/run/nvidia", "/run/nvidia/driver"];

/// A Pod with only the fields that are needed here, because all pods of the cluster are watched.
pub type TrimmedPod = Partial<Pod, TrimmedSpec, IgnoredAny>;

/// The fields of a Pod's spec that are parsed.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TrimmedSpec {
    node_name: Option<String>,
    volumes: Vec<Volume>,
    containers: Vec<TrimmedContainer>,
    init_containers: Vec<TrimmedContainer>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct TrimmedContainer {
    volume_mounts: Vec<VolumeMount>,
}

/// A third-party pod that installs an NVIDIA driver on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForeignPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ForeignPod {
    /// Returns the key of a pod: node, namespace and name. Returns `None` if it has no node.
    #[must_use]
    pub fn key(pod: &TrimmedPod) -> Option<String> {
        let node = pod.spec.node_name.as_deref().filter(|node| !node.is_empty())?;
        Some(format!("{}{}/{}", Self::prefix(&node.into()), pod.namespace().unwrap_or_default(), pod.name_any()))
    }

    /// Returns the facts of a pod. Returns `None` if it belongs to this operator, installs no driver, or belongs to a DaemonSet,
    /// which is recognized by itself.
    #[must_use]
    pub fn of(pod: &TrimmedPod) -> Option<Self> {
        let TrimmedSpec { volumes, containers, init_containers, .. } = &pod.spec;
        if pod.labels().contains_key(keys::STAGE)
            || pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet")
        {
            return None;
        }
        let nvidias = pod.labels().get(COMPONENT.0).is_some_and(|component| component == COMPONENT.1);
        let mounts = || containers.iter().chain(init_containers).flat_map(|container| &container.volume_mounts);
        if !nvidias && !shows_driver(volumes, mounts()) {
            return None;
        }
        Some(Self { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() })
    }

    /// Returns the prefix of the keys of a node's pods.
    #[must_use]
    pub fn prefix(node: &NodeName) -> String {
        format!("{node}/")
    }

    /// Returns the instruction for removing it from its node, as part of a message.
    #[must_use]
    pub fn removal_command(&self) -> String {
        format!("delete it (kubectl delete pod --namespace {} {})", self.namespace, self.name)
    }
}

/// Returns whether a container mounts the host's driver directory with bidirectional propagation, so that the host sees the
/// mounts below it. Only driver containers do so.
pub fn shows_driver<'p>(volumes: &[Volume], mut mounts: impl Iterator<Item = &'p VolumeMount>) -> bool {
    let is_folder = |path: &str| {
        let path = path.trim_end_matches('/');
        DRIVER_FOLDERS.contains(&path.strip_prefix("/var").unwrap_or(path))
    };
    let of_drivers = |name: &str| {
        let mut volumes = volumes.iter().filter(|volume| volume.name == name);
        volumes.any(|volume| volume.host_path.as_ref().is_some_and(|host| is_folder(&host.path)))
    };
    mounts.any(|mount| mount.mount_propagation.as_deref() == Some("Bidirectional") && of_drivers(&mount.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(labels: &str, owner: &str, path: &str, propagation: &str) -> Option<String> {
        let owners = if owner.is_empty() {
            String::new()
        } else {
            format!(", ownerReferences: [{{apiVersion: v1, kind: {owner}, name: x, uid: y}}]")
        };
        let pod = format!(
            "{{metadata: {{name: p, namespace: n, labels: {labels}{owners}}}, spec: {{nodeName: a, volumes: [{{name: v, hostPath: {{path: {path}}}}}], initContainers: [{{name: i}}], containers: [{{name: c, image: x, volumeMounts: [{{name: v, mountPath: /m, mountPropagation: {propagation}}}]}}]}}}}"
        );
        let pod: TrimmedPod = serde_yaml::from_str(&pod).unwrap();
        ForeignPod::of(&pod).and_then(|_| ForeignPod::key(&pod))
    }

    #[test]
    fn a_driver_pod_is_recognized_by_its_label_or_its_mount() {
        let component = "{app.kubernetes.io/component: nvidia-driver}";
        let own = "{gpu.nodestack.dev/stage: driver}";
        for (labels, owner, path, propagation, is_found) in [
            (component, "", "/tmp", "None", true),
            (component, "DaemonSet", "/tmp", "None", false),
            ("{}", "", "/run/nvidia", "Bidirectional", true),
            ("{}", "ReplicaSet", "/var/run/nvidia/", "Bidirectional", true),
            ("{}", "", "/run/nvidia/driver", "Bidirectional", true),
            ("{}", "DaemonSet", "/run/nvidia", "Bidirectional", false),
            (own, "", "/run/nvidia", "Bidirectional", false),
            ("{}", "", "/run/nvidia", "HostToContainer", false),
            ("{}", "", "/run/nvidia/mps", "Bidirectional", false),
            ("{}", "", "/run/nvidia/validations", "Bidirectional", false),
            ("{app.kubernetes.io/component: nvidia-device-plugin}", "", "/var/lib/kubelet", "None", false),
        ] {
            let key = found(labels, owner, path, propagation);
            assert_eq!(key, is_found.then(|| "a/n/p".to_owned()), "{labels} {owner} {path} {propagation}");
        }
    }

    #[test]
    fn a_pod_without_a_node_is_ignored() {
        let pod = "{metadata: {name: p, namespace: n, labels: {app.kubernetes.io/component: nvidia-driver}}, spec: {containers: []}}";
        assert_eq!(ForeignPod::key(&serde_yaml::from_str(pod).unwrap()), None);
    }
}
