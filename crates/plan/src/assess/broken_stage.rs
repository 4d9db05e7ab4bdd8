//! Stages that broke after their node had become ready: allocatable GPUs seem to prove them, but no new GPU pod can start. Kubelet
//! keeps devices allocatable as long as the device plugin runs.

use gpu_operator_crd::{GpuNodeStatus, NodeConditionType, Phase, policy::Stage};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{driver, member::Member, stage_pod::runs, verdict::Verdict},
    settings::STAGE_GRACE,
    time::later,
    world::World,
};

/// The stages whose pods GPU pods need while they start. The driver's container has evidence of its own, and without a device plugin
/// no GPU is allocatable.
const NEEDED: [Stage; 2] = [Stage::Toolkit, Stage::Mps];

/// Returns the verdict on the first stage of a node that is broken, whatever is allocatable. After a reboot that kubelet or the probe
/// has not reported yet, nothing is known of the stages.
pub fn of(member: &Member<'_>, world: &World, now: Timestamp) -> Option<Verdict> {
    member.report?;
    let needed = || NEEDED.into_iter().filter(|stage| member.have.get(*stage).is_some());
    driver::replaced_on_host(member).or_else(|| needed().find_map(|stage| runs(member, world, stage, now).err()))
}

/// Returns when a broken stage of a node with this status counts against Ready: it may only be restarting. That it is broken is
/// recorded in the stage's condition, so the time is measured by this operator's clock alone.
pub fn counts_from(broken: &Verdict, status: &GpuNodeStatus) -> Option<Timestamp> {
    let kind = match broken.phase {
        Phase::Driver => NodeConditionType::DriverReady,
        Phase::Toolkit => NodeConditionType::ToolkitReady,
        _ => NodeConditionType::DevicePluginReady,
    };
    let mut conditions = status.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == kind.as_str() && condition.status == "False")?;
    Some(later(condition.last_transition_time.0, STAGE_GRACE))
}
