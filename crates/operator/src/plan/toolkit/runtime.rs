//! Container runtimes: what a node's runtime can do for GPUs without being configured.

use gpu_operator_crd::reason::Reason;

use super::super::variant::Fault;

/// The first containerd that takes CDI devices without being told to.
const CONTAINERD_CDI: u32 = 2;

/// Whether a runtime takes CDI devices by itself. CRI-O does in every release that a supported Kubernetes runs with, and
/// one that we do not know is given the benefit of the doubt.
///
/// # Errors
/// A [`Fault`] where it does not: pods that ask for a GPU would be given none of its devices.
pub fn check(version: &str) -> Result<(), Fault> {
    let (kind, release) = version.split_once("://").unwrap_or((version, ""));
    let major: Option<u32> = release.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    let advice = match kind {
        "containerd" if major.is_some_and(|major| major < CONTAINERD_CDI) => "upgrade it to containerd 2.0 or later",
        "docker" => "run the node with containerd 2.0 or later, or CRI-O",
        _ => return Ok(()),
    };
    let message = format!("the node's container runtime, {kind} {release}, takes no CDI devices by itself; {advice}");
    Err(Fault { reason: Reason::RuntimeUnsupported, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_that_take_cdi_devices_by_themselves_are_known() {
        for (version, can) in [
            ("containerd://2.0.0", true),
            ("containerd://2.1.4-k3s1", true),
            ("cri-o://1.34.1", true),
            ("containerd://1.7.27", false),
            ("containerd://1.6.9~ds1", false),
            ("docker://27.0.3", false),
            ("containerd://", true),
            ("", true),
        ] {
            assert_eq!(check(version).is_ok(), can, "{version}");
        }
        assert!(check("containerd://1.7.27").unwrap_err().message.contains("containerd 2.0 or later"));
    }
}
