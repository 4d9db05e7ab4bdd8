//! What must hold at every write and after every step, judged by what is true and not by what the operator sees.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{GpuNodeStatus, NodeConditionType, Revision, keys, policy::Stage};
use gpu_operator_plan::{output::writes::Write, world::World};

use crate::{
    properties::oracle::{governing, keeps_its_stack, placing},
    sim::Sim,
};

/// Checks a write before the API server carries it out.
///
/// # Errors
/// Returns what it violates.
pub fn holds(sim: &Sim, write: &Write) -> Result<(), String> {
    match write {
        Write::Labels(name, write) => {
            let Some(node) = sim.nodes.get(name).filter(|node| node.uid == write.uid) else { return Ok(()) };
            let used = sim.gpu_pods.get(name).is_some_and(|pods| !pods.is_empty());
            let pod = sim.pods.get(&format!("driver@{name}")).and_then(|pod| pod.group.as_ref()).map(Revision::as_str);
            let had = pod.or(placing(sim, node, Stage::Driver).map(Interned::as_str));
            let gets = write.labels.get(keys::DRIVER).map(String::as_str);
            if used && had.is_some() && had != gets && keeps_its_stack(sim, name) {
                return Err(format!("the driver of {name} is replaced under a GPU pod: {had:?} by {gets:?}"));
            }
            Ok(())
        }
        Write::Finalizer(name, write) if !write.present => {
            let is_left = |key: &Interned| key.starts_with(keys::PREFIX);
            let governed = |node| governing(sim, node).is_some();
            let left = sim.nodes.values().find(|node| node.owned_labels.iter().any(is_left) && !governed(&node.name));
            match left {
                Some(node) => Err(format!("{name} is gone, and {} has {:?}", node.name, node.owned_labels)),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Checks that at most one node of each pool is being updated.
///
/// # Errors
/// Returns the nodes that are.
pub fn of_budgets(sim: &Sim) -> Result<(), String> {
    let mut moving: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, gpu_node) in sim.gpu_nodes.iter().filter(|(_, gpu_node)| gpu_node.spec.rollout.is_some()) {
        moving.entry((&gpu_node.spec.policy, &gpu_node.spec.pool)).or_default().push(name);
    }
    match moving.values().find(|nodes| nodes.len() > 1) {
        Some(nodes) => Err(format!("updated at once: {nodes:?}")),
        None => Ok(()),
    }
}

/// Checks that no driver is believed to work because of what a probe reported before a reboot that the operator has seen.
///
/// # Errors
/// Returns the node whose driver is.
pub fn of_boots(world: &World, writes: &[Arc<Write>]) -> Result<(), String> {
    let proven = |status: &GpuNodeStatus| {
        let mut conditions = status.conditions.iter();
        conditions.any(|found| found.type_ == NodeConditionType::DriverReady.as_str() && found.status == "True")
    };
    for write in writes {
        let Write::Status(name, status) = &**write else { continue };
        let (Some(node), Some(gpu_node)) = (world.nodes.get(name), world.gpu_nodes.get(name)) else { continue };
        let before = gpu_node.status.as_ref();
        let report = before.and_then(|before| before.report.as_ref());
        let is_current = report.is_some_and(|report| *report.boot_id == *node.boot_id);
        if proven(status) && !before.is_some_and(proven) && !is_current {
            let booted = report.map(|report| &report.boot_id);
            return Err(format!("the driver of {name} is proven by boot {booted:?}, not by {}", node.boot_id));
        }
    }
    Ok(())
}
