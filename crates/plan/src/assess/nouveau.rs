//! GPUs that are bound to nouveau, the kernel's own driver for NVIDIA GPUs: NVIDIA's module cannot bind to them.

use gpu_operator_crd::{
    reason::Reason,
    report::{Gpu, Report},
    stage::Phase,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{pod_failure::pod_failure, verdict::Verdict},
    container_names::{INSTALLER, UNLOAD_NOUVEAU},
    settings::GRACE,
    time::older,
    world::{ContainerFacts, PodFacts},
};

const NOUVEAU: &str = "nouveau";

/// Returns the verdict on a node whose host driver cannot be loaded because its GPUs are bound to nouveau.
pub fn of_host(report: &Report, loaded: Option<&str>) -> Option<Verdict> {
    let held = held(report).filter(|_| loaded.is_none())?;
    Some(verdict(&format!("{held}, so the host's NVIDIA driver cannot be loaded")))
}

/// Returns the verdict on a driver pod that waits or fails because the GPUs are bound to nouveau. It needs [`GRACE`]: a nouveau
/// that is not in use is unloaded within seconds, and the probe reports that shortly after.
pub fn of_pod(report: &Report, pod: &PodFacts, now: Timestamp) -> Option<Verdict> {
    let held = held(report)?;
    let steps = pod.init.iter().filter(|init| [UNLOAD_NOUVEAU, INSTALLER].contains(&init.name.as_str()));
    let mut begun = steps.filter_map(ContainerFacts::running_since).chain(pod.running_since());
    let met = begun.any(|since| older(since.local(), GRACE, now)) || pod_failure(pod, now).is_some();
    met.then(|| verdict(&format!("{held}, so pod {} cannot load NVIDIA's driver", pod.name)))
}

/// Returns a message with the GPUs that are bound to nouveau, if any.
fn held(report: &Report) -> Option<String> {
    let by_nouveau = |gpu: &&Gpu| gpu.held_by.as_deref() == Some(NOUVEAU);
    let held: Vec<&str> = report.gpus.iter().filter(by_nouveau).map(|gpu| gpu.pci_address.as_str()).collect();
    let (verb, gpus) = if held.len() == 1 { ("is", "GPU") } else { ("are", "GPUs") };
    (!held.is_empty()).then(|| format!("{gpus} {} {verb} bound to kernel driver {NOUVEAU}", held.join(", ")))
}

fn verdict(what: &str) -> Verdict {
    let advice = "nouveau cannot be unloaded while it is in use, for example by a console or a display server: write \"blacklist nouveau\" and \"options nouveau modeset=0\" to /etc/modprobe.d/nouveau.conf on the node, rebuild its initramfs and reboot it. If nouveau is built into the kernel, add nouveau.modeset=0 to the kernel command line instead";
    Verdict::new(Phase::Driver, Reason::NouveauLoaded, format!("{what}; {advice}"))
}
