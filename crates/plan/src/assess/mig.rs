//! The MIG layout of a node's GPUs: whether it is the one in the policy, and whether programs prevent a change.

use std::time::Duration;

use gpu_operator_crd::{
    policy::Stage,
    reason::Reason,
    report::{Gpu, NvmlState},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{member::Member, pod_failure::named_reason},
    container_names::DIVIDER,
    desired::mig_layout::Layout,
    inventory::report,
    time::older,
    world::{ContainerFacts, ContainerState, PodFacts},
};

/// The probe's report is newer than the start of the device plugin's pod after this time and [`LOOKS`] intervals of the probe,
/// whichever is longer.
const SETTLED: Duration = Duration::from_mins(10);
const LOOKS: u32 = 3;

/// Returns a message with the first GPU whose MIG layout differs from the policy; `None` if all have the layout, if the policy
/// has none, or if NVML does not answer.
#[must_use]
pub fn differs(member: &Member<'_>) -> Option<String> {
    let wanted = member.desired.variant()?.key.plugin.layout()?;
    let report = member.report().filter(|report| report.nvml.state == NvmlState::Answering)?;
    let gpu = report.gpus.iter().find(|gpu| !is_divided(gpu, &report.gpus, wanted))?;
    let now = devices(gpu).map_or_else(|| "MIG disabled".to_owned(), |devices| words(&devices));
    Some(format!("GPU {} has {now}, but the policy requests {}", gpu.pci_address, words(wanted)))
}

fn devices(gpu: &Gpu) -> Option<Layout> {
    let devices = gpu.mig_devices.as_ref()?;
    Some(devices.iter().map(|devices| (devices.profile.clone(), devices.count)).collect())
}

/// Returns whether a GPU has the wanted layout. The report has the same for a GPU without MIG and for one where MIG is
/// disabled: MIG should be enabled if another GPU of the same kind has it, or if no GPU has it.
fn is_divided(gpu: &Gpu, all: &[Gpu], wanted: &Layout) -> bool {
    if let Some(devices) = devices(gpu) {
        return !wanted.is_empty() && devices == *wanted;
    }
    let mut divided = all.iter().filter(|other| other.mig_devices.is_some()).peekable();
    wanted.is_empty() || divided.peek().is_some() && divided.all(|other| other.device_id != gpu.device_id)
}

fn words(layout: &Layout) -> String {
    if layout.is_empty() {
        return "no MIG device".to_owned();
    }
    layout.iter().map(|(profile, count)| format!("{count} x {profile}")).collect::<Vec<_>>().join(", ")
}

/// Returns the device plugin's pod whose replacement would restore the layout: one that applied it long ago, is running, and was
/// there when the probe last reported. If the probe is silent since, the layout is unknown.
#[must_use]
pub fn settled_pod<'w>(member: &Member<'w>, now: Timestamp) -> Option<&'w PodFacts> {
    let reported = report::written(member.gpu_node);
    let pod = member.pod(Stage::DevicePlugin).filter(|pod| pod.running() && pod.created < reported)?;
    let interval = member.health_policy.rules.interval.map_or(Duration::ZERO, Into::into);
    let settled = SETTLED.max(interval.saturating_mul(LOOKS));
    pod.running_since().filter(|since| older(*since, settled, now)).map(|_| pod)
}

/// Returns whether a program prevents a change of the layout by using a GPU. It may be the probe, which then has to release the
/// GPUs.
#[must_use]
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

    fn gpu(device_id: &str, devices: Option<&[(&str, u32)]>) -> Gpu {
        let devices = devices.map(|devices| {
            devices
                .iter()
                .map(|(profile, count)| MigDevices { profile: (*profile).into(), count: *count, attributes: None })
                .collect()
        });
        Gpu { device_id: device_id.into(), mig_devices: devices, ..Gpu::default() }
    }

    #[test]
    fn a_gpu_without_mig_differs_if_its_kind_supports_mig_or_no_gpu_has_it_enabled() {
        let sevenths: &[(&str, u32)] = &[("1g.10gb", 7)];
        let halves: &[(&str, u32)] = &[("3g.40gb", 2)];
        let wanted = Layout::from([("1g.10gb".to_owned(), 7)]);
        for (case, gpus, wanted, divided) in [
            ("all are", vec![gpu("2330", Some(sevenths)); 2], &wanted, true),
            ("one differs", vec![gpu("2330", Some(sevenths)), gpu("2330", Some(halves))], &wanted, false),
            ("one is empty", vec![gpu("2330", Some(sevenths)), gpu("2330", Some(&[]))], &wanted, false),
            ("one of a kind is off", vec![gpu("2330", Some(sevenths)), gpu("2330", None)], &wanted, false),
            ("one of another kind has none", vec![gpu("2330", Some(sevenths)), gpu("1eb8", None)], &wanted, true),
            ("all are off", vec![gpu("2330", None); 2], &wanted, false),
            ("off, as is wanted", vec![gpu("2330", None); 2], &Layout::new(), true),
            ("on, and off is wanted", vec![gpu("2330", Some(&[]))], &Layout::new(), false),
        ] {
            assert_eq!(gpus.iter().all(|gpu| is_divided(gpu, &gpus, wanted)), divided, "{case}");
        }
    }
}
