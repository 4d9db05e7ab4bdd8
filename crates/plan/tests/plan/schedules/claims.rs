//! What the operator claims, judged by what it has seen.

use std::sync::Arc;

use gpu_operator_crd::{
    ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, NodeConditionType, NodeName, reason::Reason,
};
use gpu_operator_plan::{
    output::{body::Body, write::Write},
    world::World,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::law::Lawful;

/// A node that is rebooted has not failed, whatever the exit codes of its containers: no Event reports a failure, no policy is stalled, and no
/// pool returns to its previous revision. The second boot in the same rollout may halt it: a driver may be the cause.
pub fn of_healthy_nodes(write: &Write, boots: u32) -> Lawful {
    let halts = |reason: &str| boots > 1 && reason == Reason::RolloutHalted.as_str();
    let fails = |reason: Reason| reason.is_failure() && !halts(reason.as_str());
    if let Some(event) = write.events.iter().find(|event| fails(event.reason)) {
        return Err(format!("{write}: a healthy node has failed: {event:?}"));
    }
    let stalled = |status: &ClusterGpuPolicyStatus| {
        let mut conditions = status.conditions.iter();
        let is_stalled = |found: &Condition| found.type_ == ConditionType::Stalled.as_str() && found.status == "True";
        conditions.any(|found| is_stalled(found) && !halts(&found.reason))
    };
    match &write.body {
        Body::PolicyStatus(status) if stalled(status) => Err(format!("{write}: {:?}", status.conditions)),
        Body::Ledger(ledger) if ledger.pools.iter().any(|pool| !pool.rolled_back.is_empty()) => {
            Err(format!("{write}: {:?}", ledger.pools))
        }
        _ => Ok(()),
    }
}

/// No driver is believed to work because of what a probe reported before a reboot that the operator has seen. That kubelet offers
/// the GPUs in the new boot proves the driver, too.
pub fn of_boots(world: &World, writes: &[Arc<Write>]) -> Lawful {
    let proven = |status: &GpuNodeStatus| {
        let mut conditions = status.conditions.iter();
        conditions.any(|found| found.type_ == NodeConditionType::DriverReady.as_str() && found.status == "True")
    };
    for write in writes {
        let Body::Status(status) = &write.body else { continue };
        let name = NodeName::from(write.target.name.as_str());
        let (Some(node), Some(gpu_node)) = (world.nodes.get(&name), world.gpu_nodes.get(&name)) else { continue };
        let before = gpu_node.status.as_ref();
        let report = before.and_then(|before| before.report.as_ref());
        let is_current = report.is_some_and(|report| *report.boot_id == *node.boot_id);
        let offers = node.allocatable.total() > 0;
        if proven(status) && !before.is_some_and(proven) && !is_current && !offers {
            let booted = report.map(|report| &report.boot_id);
            return Err(format!("the driver of {name} is proven by boot {booted:?}, not by {}", node.boot_id));
        }
    }
    Ok(())
}
