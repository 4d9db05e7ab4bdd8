//! Whether the MIG layout of a node's GPUs is the one in the policy, and whether programs prevent a change.

use std::time::Duration;

use gpu_operator_common::mig_layout::GpuLayout;
use gpu_operator_crd::{
    policy::Stage,
    reason::Reason,
    report::{Gpu, NvmlState},
};

use crate::{
    assess::{member::Member, pod_failure::named_reason},
    clock::Clock,
    container_names::DIVIDER,
    inventory::records,
    world::{ContainerFacts, ContainerState, ObservedTime, PodFacts},
};

/// After this time and [`LOOKS`] intervals of the probe, its report is newer than the start of the device plugin's pod.
const SETTLED: Duration = Duration::from_mins(10);
const LOOKS: u32 = 3;

/// Names the first GPU whose layout differs; `None` if there is none, or if that is unknown.
pub fn differs(member: &Member<'_>) -> Option<String> {
    let layout = member.target.variant()?.key.plugin.layout()?;
    let report = member.report.filter(|report| report.nvml.state == NvmlState::Answering)?;
    // While a GPU is missing from the bus, those behind it have other indices than their layouts.
    if !layout.devices.is_empty() && member.expected.is_some_and(|expected| member.on_bus() < expected) {
        return None;
    }
    let mut gpus = (0..).zip(&report.gpus).map(|(index, gpu)| (gpu, layout.of_gpu(index)));
    let (gpu, wanted) = gpus.find(|(gpu, wanted)| !has_layout(gpu, wanted))?;
    let (now, wanted) = (words(devices(gpu).as_ref()), words(Some(wanted).filter(|wanted| !wanted.is_empty())));
    Some(format!("GPU {} has {now}, but the policy requests {wanted}", gpu.pci_address))
}

fn devices(gpu: &Gpu) -> Option<GpuLayout> {
    let devices = gpu.mig_devices.as_ref()?;
    Some(devices.iter().map(|devices| (devices.profile.clone(), devices.count)).collect())
}

/// A GPU that cannot have the layout counts as well. Devices are also missing in the report of a GPU that NVML cannot read.
fn has_layout(gpu: &Gpu, wanted: &GpuLayout) -> bool {
    match devices(gpu) {
        Some(devices) => !wanted.is_empty() && devices == *wanted,
        None => wanted.is_empty() || gpu.mig_capable != Some(true),
    }
}

fn words(devices: Option<&GpuLayout>) -> String {
    let Some(devices) = devices else { return "MIG disabled".to_owned() };
    if devices.is_empty() {
        return "no MIG device".to_owned();
    }
    devices.iter().map(|(profile, count)| format!("{count} x {profile}")).collect::<Vec<_>>().join(", ")
}

/// Returns the plugin's pod whose replacement would restore the layout: it applied it long ago, is running, and was there at the last
/// report. If the probe is silent since, the layout is unknown.
pub fn settled_pod<'w>(member: &Member<'w>, clock: &Clock) -> Option<&'w PodFacts> {
    let reported = records::last_report_at(member.gpu_node);
    let pod = member
        .pod(Stage::DevicePlugin)
        .filter(|pod| pod.running() && pod.created.map(ObservedTime::reported) < reported)?;
    let interval = member.health_policy.rules.interval.map_or(Duration::ZERO, Into::into);
    let settled = SETTLED.max(interval.saturating_mul(LOOKS));
    pod.running_since().filter(|since| clock.passed(since.local(), settled)).map(|_| pod)
}

/// The program may be the probe, which then has to release the GPUs.
pub fn is_blocked(member: &Member<'_>) -> bool {
    let Some(pod) = member.pod(Stage::DevicePlugin).filter(|pod| !pod.running()) else { return false };
    pod.init.iter().filter(|init| init.name == DIVIDER).any(says_blocked)
}

fn says_blocked(divider: &ContainerFacts) -> bool {
    let exit = match &divider.state {
        ContainerState::Ended(exit) => Some(exit),
        ContainerState::Running(_) | ContainerState::Waiting { .. } => divider.last_failure.as_ref(),
    };
    let reason = exit.and_then(|exit| named_reason(&exit.message));
    reason.is_some_and(|(reason, _)| reason == Reason::MigBlocked)
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::report::MigDevices;

    use super::*;

    #[test]
    fn a_gpu_has_its_layout_only_with_exactly_its_devices() {
        type Devices = Option<&'static [(&'static str, u32)]>;
        let sevenths: Devices = Some(&[("1g.10gb", 7)]);
        let mixed: Devices = Some(&[("1g.10gb", 4), ("3g.40gb", 1)]);
        let empty: Devices = Some(&[]);
        for (case, capable, devices, wanted, has) in [
            ("as wanted", Some(true), sevenths, sevenths, true),
            ("others", Some(true), mixed, sevenths, false),
            ("none", Some(true), empty, sevenths, false),
            ("MIG disabled", Some(true), None, sevenths, false),
            ("not MIG-capable", Some(false), None, sevenths, true),
            ("not readable", None, None, sevenths, true),
            ("MIG disabled, as wanted", Some(true), None, None, true),
            ("MIG enabled without devices", Some(true), empty, None, false),
            ("MIG enabled", Some(true), mixed, None, false),
        ] {
            let wanted = wanted.into_iter().flatten().map(|(profile, count)| ((*profile).to_owned(), *count)).collect();
            let reported = |devices: &[(&str, u32)]| {
                let devices = devices.iter().map(|(profile, count)| MigDevices {
                    profile: (*profile).into(),
                    count: *count,
                    attributes: None,
                });
                devices.collect()
            };
            let gpu = Gpu { mig_capable: capable, mig_devices: devices.map(reported), ..Gpu::default() };
            assert_eq!(has_layout(&gpu, &wanted), has, "{case}");
        }
    }
}
