//! GPUs that are bound to another kernel driver: NVIDIA's cannot be loaded for them.

use std::collections::BTreeMap;

use gpu_operator_crd::{Phase, reason::Reason, report::Report};

use crate::{
    assess::{installer_log::says_no_device, pod_failure::pod_failure, verdict::Verdict},
    clock::Clock,
    container_names::{INSTALLER, UNLOAD_NOUVEAU},
    settings::GRACE,
    world::{ContainerFacts, ContainerState, PodFacts},
};

const NOUVEAU: &str = "nouveau";

/// Returns the verdict on a driver of the host that is not loaded.
pub fn on_host(report: &Report) -> Option<Verdict> {
    verdict(report, "the host's NVIDIA driver cannot be loaded")
}

/// The drivers that the pod unloads are gone within seconds if they are unused, and the probe reports that shortly after: hence [`GRACE`].
/// GPUs of other drivers are the cause if the module has found no device, or if no other GPU is left.
pub fn of_pod(report: &Report, pod: &PodFacts, clock: &Clock) -> Option<Verdict> {
    let all = report.gpus.iter().all(|gpu| gpu.held_by.is_some());
    let waits = |step: &&ContainerFacts| step.name == UNLOAD_NOUVEAU || all && step.name == INSTALLER;
    let steps = pod.init.iter().filter(waits).filter_map(ContainerFacts::running_since);
    let mut begun = steps.chain(pod.running_since().filter(|_| all));
    let found_none = || {
        let logged = || report.driver.load_errors.iter().any(|sentence| says_no_device(sentence));
        pod_failure(pod, clock).is_some() && (pod.init.iter().chain(&pod.containers).any(found_no_device) || logged())
    };
    let is_met = begun.any(|since| clock.passed(since.local(), GRACE)) || found_none();
    is_met.then(|| verdict(report, &format!("pod {} cannot load NVIDIA's driver", pod.name))).flatten()
}

fn found_no_device(container: &ContainerFacts) -> bool {
    let ended = match &container.state {
        ContainerState::Ended(exit) => Some(exit),
        _ => container.last_failure.as_ref(),
    };
    ended.is_some_and(|exit| says_no_device(&exit.message))
}

fn verdict(report: &Report, consequence: &str) -> Option<Verdict> {
    let mut held: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (gpu, driver) in report.gpus.iter().filter_map(|gpu| Some((gpu, gpu.held_by.as_deref()?))) {
        held.entry(driver).or_default().push(&gpu.pci_address);
    }
    let bound: Vec<_> = held.iter().map(|(driver, gpus)| bound(driver, gpus)).collect();
    let advice: Vec<_> = held.keys().map(|driver| advice(driver)).collect();
    let message = format!("{}, so {consequence}; {}", bound.join(" and "), advice.join("; "));
    (!held.is_empty()).then(|| Verdict::new(Phase::Driver, Reason::GpuBoundToOtherDriver, message))
}

fn bound(driver: &str, gpus: &[&str]) -> String {
    let (noun, verb) = if gpus.len() == 1 { ("GPU", "is") } else { ("GPUs", "are") };
    format!("{noun} {} {verb} bound to kernel driver {driver}", gpus.join(", "))
}

fn advice(driver: &str) -> String {
    let module = module_of(driver);
    let (options, built_in) = match driver {
        NOUVEAU => (
            " and \"options nouveau modeset=0\"",
            ". If nouveau is built into the kernel, add nouveau.modeset=0 to the kernel command line instead",
        ),
        _ => ("", ""),
    };
    format!(
        "unload {driver} if nothing uses it (modprobe --remove {module}); if it is in use, for example by a console or a display server, write \"blacklist {module}\"{options} to /etc/modprobe.d/{module}.conf on the node, rebuild its initramfs and reboot it{built_in}"
    )
}

/// Returns the module of a driver on the PCI bus. The kernel's drivers in Rust have names like `NovaCore`, and modules like `nova_core`;
/// drivers in C have mostly the same name.
fn module_of(driver: &str) -> String {
    let mut module = String::new();
    let mut before = None;
    for c in driver.chars() {
        if c.is_ascii_uppercase() && before.is_some_and(|before: char| before.is_ascii_lowercase()) {
            module.push('_');
        }
        module.push(if c == '-' { '_' } else { c.to_ascii_lowercase() });
        before = Some(c);
    }
    module
}

#[cfg(test)]
mod tests {
    use super::module_of;

    #[test]
    fn a_module_is_derived_from_its_driver() {
        for (driver, module) in [
            ("nouveau", "nouveau"),
            ("NovaCore", "nova_core"),
            ("nvidiafb", "nvidiafb"),
            ("simple-framebuffer", "simple_framebuffer"),
            ("GPUStub", "gpustub"),
        ] {
            assert_eq!(module_of(driver), module);
        }
    }
}
