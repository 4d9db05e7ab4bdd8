//! GPUs that nouveau holds, the kernel's own driver for them: NVIDIA's module cannot take them.

use gpu_operator_crd::{
    reason::{Phase, Reason},
    report::{Gpu, Report},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{pod_failure::hold_up, verdict::Verdict},
    container_names::{INSTALLER, UNLOAD_NOUVEAU},
    settings::GRACE,
    time::older,
    world::{ContainerFacts, PodFacts},
};

const NOUVEAU: &str = "nouveau";

/// What a node's own driver cannot do while nouveau holds its GPUs.
pub fn of_host(report: &Report, loaded: Option<&str>) -> Option<Verdict> {
    let held = held(report).filter(|_| loaded.is_none())?;
    Some(verdict(&format!("{held}, so that the host's NVIDIA driver cannot be loaded")))
}

/// What a driver's pod waits for, or fails at, while nouveau holds the GPUs: nouveau that nothing uses is unloaded in a moment,
/// and the probe takes another to see it.
pub fn of_pod(report: &Report, pod: &PodFacts, now: Timestamp) -> Option<Verdict> {
    let held = held(report)?;
    let steps = pod.init.iter().filter(|init| [UNLOAD_NOUVEAU, INSTALLER].contains(&init.name.as_str()));
    let mut begun = steps.filter_map(ContainerFacts::running_since).chain(pod.running_since());
    let met = begun.any(|since| older(since, GRACE, now)) || hold_up(pod, now).is_some();
    met.then(|| verdict(&format!("{held}, so that pod {} cannot load NVIDIA's driver", pod.name)))
}

/// Which GPUs nouveau holds.
fn held(report: &Report) -> Option<String> {
    let by_nouveau = |gpu: &&Gpu| gpu.held_by.as_deref() == Some(NOUVEAU);
    let held: Vec<&str> = report.gpus.iter().filter(by_nouveau).map(|gpu| gpu.pci_address.as_str()).collect();
    let (verb, gpus) = if held.len() == 1 { ("is", "GPU") } else { ("are", "GPUs") };
    (!held.is_empty()).then(|| format!("{gpus} {} {verb} bound to kernel driver {NOUVEAU}", held.join(", ")))
}

fn verdict(what: &str) -> Verdict {
    let way_out = "nouveau can be unloaded only while nothing uses it, such as a console or a display server: write \"blacklist nouveau\" and \"options nouveau modeset=0\" to /etc/modprobe.d/nouveau.conf of the node, rebuild its initramfs and reboot it. If nouveau is built into the kernel, add nouveau.modeset=0 to the kernel command line instead";
    Verdict::new(Phase::Driver, Reason::NouveauLoaded, format!("{what}; {way_out}"))
}
