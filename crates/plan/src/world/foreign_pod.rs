//! The facts of third-party pods that are evidence of a GPU stack on their node: a pod that installs a driver and belongs to no DaemonSet,
//! or a pod of a DaemonSet. The proof is what admission checks, a privileged container with a directory of the host. Names and labels prove
//! nothing, because a tenant can write them.

use std::collections::BTreeMap;

use gpu_operator_common::text::{MAX_NAME, clipped};
use gpu_operator_crd::{NodeName, keys};
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use kube::ResourceExt;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::world::partial::Partial;

/// The label that NVIDIA's GPU Operator sets on its pods, and its value on driver pods.
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "nvidia-driver");
/// Directories where a driver container mounts its root so that the host sees it.
const DRIVER_FOLDERS: [&str; 2] = ["/run/nvidia", "/run/nvidia/driver"];
/// Kubelet's directories of the sockets of device plugins and DRA drivers.
const SOCKET_FOLDERS: [&str; 2] = [DEVICE_PLUGINS, "/plugins_registry"];
const DEVICE_PLUGINS: &str = "/device-plugins";

/// A Pod with only the fields that are needed here, because all pods of the cluster are watched.
pub type TrimmedPod = Partial<Pod, TrimmedSpec, IgnoredAny>;

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TrimmedSpec {
    node_name: Option<String>,
    node_selector: BTreeMap<String, String>,
    volumes: Vec<Volume>,
    containers: Vec<TrimmedContainer>,
    init_containers: Vec<TrimmedContainer>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct TrimmedContainer {
    image: Option<String>,
    security_context: Privileges,
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Privileges {
    privileged: Option<bool>,
}

/// A third-party pod that is evidence of a GPU stack on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForeignPod {
    pub namespace: String,
    pub name: String,
    /// The DaemonSet that it belongs to, in the same namespace; without one it installs a driver.
    pub set: Option<String>,
    /// Whether it installs a driver.
    pub is_driver: bool,
    /// Whether a privileged container of it mounts a directory of the host.
    pub is_privileged: bool,
    /// Whether it belongs to a device plugin, of GPUs or of anything else: it mounts kubelet's directory of their sockets.
    pub is_device_plugin: bool,
}

impl ForeignPod {
    /// The key is node, namespace and name. `None` for a pod without a node.
    pub fn key(pod: &TrimmedPod) -> Option<String> {
        let node = pod.spec.node_name.as_deref().filter(|node| !node.is_empty())?;
        Some(format!("{}{}/{}", Self::prefix(&node.into()), pod.namespace().unwrap_or_default(), pod.name_any()))
    }

    /// Returns `None` for this operator's own pods and for pods that are no evidence of a GPU stack.
    pub fn of(pod: &TrimmedPod) -> Option<Self> {
        if pod.labels().contains_key(keys::STAGE) {
            return None;
        }
        let spec = &pod.spec;
        let set = pod.owner_references().iter().find(|owner| owner.kind == "DaemonSet");
        // No object has a longer name.
        let set = set.map(|owner| clipped(&owner.name, MAX_NAME).to_owned());
        let is_privileged = spec.mounts(true).any(|(path, _)| path.is_some());
        let is_device_plugin = spec.mounts_any(&[DEVICE_PLUGINS]);
        let is_labelled = pod.labels().get(COMPONENT.0).is_some_and(|component| component == COMPONENT.1);
        let is_driver =
            is_labelled && is_privileged || spec.mounts(true).any(|(path, mount)| is_of_driver(path, mount));
        let is_evidence = set.as_ref().map_or(is_driver, |set| {
            is_device_plugin || (is_privileged || spec.mounts_any(&SOCKET_FOLDERS)) && mentions_nvidia(pod, set)
        });
        is_evidence.then(|| Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            set,
            is_driver,
            is_privileged,
            is_device_plugin,
        })
    }

    pub fn prefix(node: &NodeName) -> String {
        format!("{node}/")
    }

    /// Returns the command that removes it from its node, for messages.
    pub fn removal_command(&self) -> String {
        format!("delete it (kubectl delete pod --namespace {} {})", self.namespace, self.name)
    }
}

impl TrimmedSpec {
    fn all_containers(&self) -> impl Iterator<Item = &TrimmedContainer> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// Returns the mounts of all containers, or of privileged ones only, each with its directory of the host.
    fn mounts(&self, privileged_only: bool) -> impl Iterator<Item = (Option<&str>, &VolumeMount)> {
        let of = move |container: &&TrimmedContainer| {
            !privileged_only || container.security_context.privileged == Some(true)
        };
        let mounts = self.all_containers().filter(of).flat_map(|container| &container.volume_mounts);
        mounts.map(|mount| (host_folder(&self.volumes, &mount.name), mount))
    }

    /// Returns whether a container mounts one of kubelet's directories of sockets. NVIDIA's device plugin does so without privileges.
    fn mounts_any(&self, folders: &[&str]) -> bool {
        let is_one = |path: &str| folders.iter().any(|folder| path.ends_with(folder));
        self.mounts(false).any(|(path, _)| path.is_some_and(is_one))
    }
}

/// Whether a DaemonSet's pod names NVIDIA, as pods of a GPU stack do. This keeps other pods out of memory; it proves nothing.
fn mentions_nvidia(pod: &TrimmedPod, set: &str) -> bool {
    let TrimmedSpec { node_selector, volumes, .. } = &pod.spec;
    let paths = volumes.iter().filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()));
    let images = pod.spec.all_containers().filter_map(|container| container.image.as_deref());
    let words = pod.labels().values().chain(node_selector.keys()).map(String::as_str);
    words.chain(paths).chain(images).chain([set]).any(|word| word.contains("nvidia"))
}

/// Returns the host's directory of a volume, without a trailing slash.
fn host_folder<'v>(volumes: &'v [Volume], name: &str) -> Option<&'v str> {
    let volume = volumes.iter().find(|volume| volume.name == name)?;
    Some(volume.host_path.as_ref()?.path.trim_end_matches('/'))
}

fn is_of_driver(path: Option<&str>, mount: &VolumeMount) -> bool {
    mount.mount_propagation.as_deref() == Some("Bidirectional")
        && path.is_some_and(|path| DRIVER_FOLDERS.contains(&path.strip_prefix("/var").unwrap_or(path)))
}

/// Whether a container mounts the host's driver directory with bidirectional propagation: only driver containers do.
pub fn shows_driver<'p>(volumes: &[Volume], mut mounts: impl Iterator<Item = &'p VolumeMount>) -> bool {
    mounts.any(|mount| is_of_driver(host_folder(volumes, &mount.name), mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pod with these labels, this owner, and a container with this mount and these privileges.
    fn pod(labels: &str, owner: &str, mount: &str, privileges: &str) -> TrimmedPod {
        let (path, propagation) = mount.split_once(' ').unwrap();
        let owners = if owner.is_empty() {
            String::new()
        } else {
            format!(", ownerReferences: [{{apiVersion: v1, kind: {owner}, name: x, uid: y}}]")
        };
        let pod = format!(
            "{{metadata: {{name: p, namespace: n, labels: {labels}{owners}}}, spec: {{nodeName: a, volumes: [{{name: v, hostPath: {{path: {path}}}}}], initContainers: [{{name: i}}], containers: [{{name: c, image: x, securityContext: {privileges}, volumeMounts: [{{name: v, mountPath: /m, mountPropagation: {propagation}}}]}}]}}}}"
        );
        serde_yaml::from_str(&pod).unwrap()
    }

    const PRIVILEGED: &str = "{privileged: true}";

    #[test]
    fn a_driver_pod_is_recognized_by_its_label_or_its_mount() {
        let component = "{app.kubernetes.io/component: nvidia-driver}";
        let own = "{gpu.nodestack.dev/stage: driver}";
        for (labels, owner, mount, is_found) in [
            (component, "", "/tmp None", true),
            ("{}", "", "/run/nvidia Bidirectional", true),
            ("{}", "ReplicaSet", "/var/run/nvidia/ Bidirectional", true),
            ("{}", "", "/run/nvidia/driver Bidirectional", true),
            (own, "", "/run/nvidia Bidirectional", false),
            ("{}", "", "/run/nvidia HostToContainer", false),
            ("{}", "", "/run/nvidia/mps Bidirectional", false),
            ("{}", "", "/run/nvidia/validations Bidirectional", false),
            ("{app.kubernetes.io/component: nvidia-device-plugin}", "", "/var/lib/kubelet None", false),
        ] {
            let pod = pod(labels, owner, mount, PRIVILEGED);
            let key = ForeignPod::of(&pod).and_then(|_| ForeignPod::key(&pod));
            assert_eq!(key, is_found.then(|| "a/n/p".to_owned()), "{labels} {owner} {mount}");
        }
    }

    #[test]
    fn labels_of_an_unprivileged_pod_prove_nothing() {
        let component = "{app.kubernetes.io/component: nvidia-driver}";
        for (owner, privileges) in [("", "{}"), ("", "{privileged: false}"), ("DaemonSet", "{}")] {
            for mount in ["/tmp None", "/run/nvidia Bidirectional"] {
                let found = ForeignPod::of(&pod(component, owner, mount, privileges));
                assert_eq!(found, None, "{owner} {privileges} {mount}");
            }
        }
        let without_mount = format!(
            "{{metadata: {{name: p, labels: {component}}}, spec: {{nodeName: a, volumes: [{{name: v, hostPath: {{path: /tmp}}}}], containers: [{{name: c, securityContext: {PRIVILEGED}}}]}}}}"
        );
        assert_eq!(ForeignPod::of(&serde_yaml::from_str(&without_mount).unwrap()), None);
    }

    #[test]
    fn a_pod_of_a_daemon_set_is_evidence_by_its_access_to_the_host() {
        let nvidias = "{app: nvidia-x}";
        for (labels, mount, privileges, is_privileged) in [
            (nvidias, "/ None", PRIVILEGED, Some(true)),
            ("{}", "/run/nvidia Bidirectional", PRIVILEGED, Some(true)),
            (nvidias, "/var/lib/kubelet/device-plugins None", "{}", Some(false)),
            ("{app: hami}", "/var/lib/kubelet/device-plugins None", "{}", Some(false)),
            ("{app: rdma}", "/var/lib/kubelet/plugins_registry None", "{}", None),
            (nvidias, "/var/lib/kubelet/plugins_registry/ None", "{}", Some(false)),
            (nvidias, "/var/lib/kubelet None", "{}", None),
            ("{app: cilium}", "/ None", PRIVILEGED, None),
        ] {
            let found = ForeignPod::of(&pod(labels, "DaemonSet", mount, privileges));
            let found = found.map(|pod| (pod.set, pod.is_privileged));
            assert_eq!(found, is_privileged.map(|is| (Some("x".to_owned()), is)), "{labels} {mount} {privileges}");
        }
    }

    #[test]
    fn the_name_of_an_owner_is_bounded() {
        let mut long = pod("{app: nvidia-x}", "DaemonSet", "/ None", PRIVILEGED);
        long.owner_references_mut()[0].name = "x".repeat(1000);
        assert_eq!(ForeignPod::of(&long).unwrap().set.unwrap().len(), MAX_NAME);
    }

    #[test]
    fn a_pod_without_a_node_is_ignored() {
        let pod = "{metadata: {name: p, namespace: n, labels: {app.kubernetes.io/component: nvidia-driver}}, spec: {containers: []}}";
        assert_eq!(ForeignPod::key(&serde_yaml::from_str(pod).unwrap()), None);
    }
}
