//! Whether NVIDIA's DRA driver can allocate a node's GPUs.

use gpu_operator_common::version::Version;
use gpu_operator_crd::reason::Reason;

use crate::{
    desired::{device_plugin::PluginChoice, driver::DriverChoice, toolkit::ToolkitChoice},
    note::Fault,
    world::NodeFacts,
};

/// The first kubelet with resource.k8s.io/v1.
const FIRST_KUBELET: (u32, u32) = (1, 34);
/// The first branch that the DRA driver supports according to its documentation.
const FIRST_BRANCH: u32 = 565;

/// `loaded` is the version of the loaded driver, which counts if this operator does not install the driver. What is unknown contradicts
/// nothing.
pub fn choose(driver: &DriverChoice, loaded: Option<&str>, node: &NodeFacts) -> Result<PluginChoice, Fault> {
    let kubelet = Version::leading(&node.kubelet);
    if kubelet.is_some_and(|version| (version.major(), version.minor().unwrap_or(u32::MAX)) < FIRST_KUBELET) {
        return Err(unsupported(&format!(
            "the DRA driver requires Kubernetes {}.{} or later, but this node's kubelet is {}; upgrade the node",
            FIRST_KUBELET.0, FIRST_KUBELET.1, node.kubelet
        )));
    }
    let version = if driver.is_managed() { driver.version() } else { loaded };
    match version.zip(version.and_then(Version::leading)) {
        Some((version, parsed)) if parsed.major() < FIRST_BRANCH => Err(unsupported(&format!(
            "the DRA driver requires NVIDIA driver {FIRST_BRANCH} or later, but the driver of this node is {version}; set a later \
             driver.version if the node's GPUs support one"
        ))),
        _ => Ok(PluginChoice::Dra),
    }
}

/// The container runtime gets the devices of a claim as CDI devices, whatever the toolkit does.
pub fn check_toolkit(plugin: &PluginChoice, toolkit: &ToolkitChoice, node: &NodeFacts) -> Result<(), Fault> {
    if *plugin != PluginChoice::Dra || toolkit.is_by_cdi() {
        return Ok(());
    }
    Err(unsupported(&format!(
        "the DRA driver gives containers their GPUs by CDI, which {} does not do on this node; write toolkit.injection: Auto or CDI, with \
         containerd 1.7 or later, or CRI-O",
        node.runtime
    )))
}

fn unsupported(problem: &str) -> Fault {
    Fault { reason: Reason::DraUnsupported, message: format!("{problem}, or write allocation.mode: DevicePlugin") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dra_driver_needs_a_recent_kubelet_driver_and_runtime() {
        let host = DriverChoice::Preinstalled { root: "/".into() };
        for (kubelet, loaded, toolkit, words) in [
            ("v1.34.0", Some("565.57.01"), ToolkitChoice::Cdi, ""),
            ("v1.37.2+k3s1", Some("595.91.07"), ToolkitChoice::Cdi, ""),
            ("", None, ToolkitChoice::Cdi, ""),
            (
                "v1.33.9",
                Some("595.91.07"),
                ToolkitChoice::Cdi,
                "requires Kubernetes 1.34 or later, but this node's kubelet is v1.33.9",
            ),
            ("v1.34.0", Some("550.54.14"), ToolkitChoice::Cdi, "the driver of this node is 550.54.14"),
            ("v1.34.0", Some("595.91.07"), ToolkitChoice::None, "which docker://27.0.3 does not do"),
        ] {
            let node = NodeFacts { kubelet: kubelet.into(), runtime: "docker://27.0.3".into(), ..NodeFacts::default() };
            let chosen = choose(&host, loaded, &node).and_then(|plugin| check_toolkit(&plugin, &toolkit, &node));
            let message = chosen.err().map(|fault| fault.message).unwrap_or_default();
            assert_eq!(message.is_empty(), words.is_empty(), "{kubelet} {loaded:?}: {message}");
            assert!(message.contains(words), "{message}");
        }
        let google = PluginChoice::Gke { replicas: None, metrics_port: None };
        assert_eq!(check_toolkit(&google, &ToolkitChoice::None, &NodeFacts::default()), Ok(()));
    }
}
