//! Conditions and pools of policies.

use super::{Condition, Pool, Scenario, Steps};
use crate::{
    repairs::contested,
    robust::{NEW, OLD, busy},
    sim::{Faults, Sim},
};
use gpu_operator_crd::reason::Reason;
use gpu_operator_plan::world::{Concern, HeldWrite};

/// Returns two nodes, of which one does not publish all of its GPUs.
fn one_of_two(spec: &str) -> Sim {
    Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", spec).then(|sim| {
        sim.faults.insert("b".into(), Faults { publishes: Some(7), ..Faults::default() });
    })
}

/// Returns two nodes that are updated to a driver image that does not exist.
fn halted() -> Sim {
    let missing_images = ["590.10.01".to_owned()].into();
    Sim::settled_fleet(OLD, &["a", "b"])
        .faulty(Faults { missing_images, ..Faults::default() })
        .policy("all", NEW)
        .run_for(100)
}

/// Returns two nodes that have returned to their driver, because the image of another one does not exist.
fn rolled_back() -> Sim {
    let missing_images = ["590.10.01".to_owned()].into();
    let new = "{rollout: {onFailure: RollBack}, pools: [{name: p, driver: {version: 590.10.01}}]}";
    let sim = Sim::settled_fleet(OLD, &["a", "b"]).faulty(Faults { missing_images, ..Faults::default() });
    sim.policy("all", new).run_for(200)
}

/// Returns a ready node under a policy with these pools.
fn pools(pools: &str) -> Sim {
    Sim::settled_fleet(&format!("{{pools: {pools}}}"), &["a"])
}

pub const SCENARIOS: &[Scenario] = &[
    (Reason::NoMatchingNodes, Condition("Ready"), || Sim::new().policy("all", "{}")),
    (Reason::NoNodes, Condition("Ready"), || Sim::new().policy("all", "{readiness: {minReadyNodes: 0}}")),
    (Reason::NodesNotReady, Condition("Ready"), || one_of_two("{}")),
    (Reason::NodesNotReady, Condition("Ready"), || pools("[]").then(|sim| sim.node_mut("a").deleting = true)),
    (Reason::NodesNotReady, Condition("Reconciling"), || one_of_two("{}")),
    (Reason::MinimumNodesReady, Condition("Ready"), || one_of_two("{readiness: {minReadyNodes: 1}}")),
    (Reason::MinimumNodesReady, Condition("Reconciling"), || one_of_two("{readiness: {minReadyNodes: 1}}")),
    (Reason::AllGpusAllocatable, Condition("Ready"), || pools("[]")),
    (Reason::Settled, Condition("Reconciling"), || pools("[]")),
    (Reason::Settled, Condition("Stalled"), || pools("[]")),
    (Reason::PolicyAccepted, Condition("Accepted"), || pools("[]")),
    (Reason::RollingOut, Condition("Reconciling"), halted),
    (Reason::RolloutHalted, Condition("Stalled"), halted),
    (Reason::RolloutHalted, Condition("Reconciling"), halted),
    (Reason::RolloutHalted, Pool("p"), halted),
    (Reason::RolledBack, Condition("Stalled"), rolled_back),
    (Reason::Deleting, Condition("Ready"), || pools("[]").then(|sim| sim.delete_policy("all"))),
    (Reason::Deleting, Condition("Reconciling"), || pools("[]").then(|sim| sim.delete_policy("all"))),
    (Reason::Deleting, Condition("Ready"), || {
        pools("[]").then(|sim| busy(sim, "a")).then(|sim| sim.delete_policy("all")).run_for(90)
    }),
    (Reason::OperatorUninstalled, Condition("Ready"), || pools("[]").then(|sim| sim.settings.quiets = true)),
    (Reason::OperatorUninstalled, Condition("Stalled"), || pools("[]").then(|sim| sim.settings.quiets = true)),
    (Reason::GpuNodeUnreadable, Condition("Stalled"), || {
        pools("[]").then(|sim| sim.unparsable_gpu_nodes.extend(["a".into()]))
    }),
    (Reason::ApplyFailed, Condition("Stalled"), || {
        pools("[]").plan_with(|world| {
            let message =
                "failed to apply DaemonSet driver-1: admission webhook \"policy.example.com\" denied the request";
            let (concerns, reason) = (Concern::Policy("all".into()), Reason::ApplyFailed);
            world.held_writes.push(HeldWrite { concerns, reason, message: message.into() });
        })
    }),
    (Reason::ManagerConflict, Condition("Stalled"), || {
        contested("{defaults: {toolkit: {injection: Runtime}}}", |sim| sim.runtime_classes.clear())
    }),
    (Reason::PodsForbidden, Condition("Ready"), || {
        let message = "pods \"nodestack-nvml-probe-x\" is forbidden: violates PodSecurity \"restricted\"".to_owned();
        Sim::new().policy("all", "{}").then(|sim| {
            let refusal = gpu_operator_plan::world::Refusal { message, at: None };
            sim.refusals.insert("nodestack-nvml-probe".into(), refusal);
        })
    }),
    (Reason::InvalidPolicy, Condition("Accepted"), || pools("[{name: p, match: {models: [nvidia-h100-80g]}}]")),
    (Reason::InvalidPolicy, Condition("Stalled"), || {
        let model = "{name: x, pciIDs: [\"2330\"], architecture: Hopper, memoryMiB: 81559}";
        Sim::settled_fleet(&format!("{{models: [{model}]}}"), &["a"])
    }),
    (Reason::PolicyOverlap, Condition("Stalled"), || {
        Sim::settled_fleet("{}", &["a"])
            .then(|sim| sim.delete_policy("all"))
            .policy("older", "{}")
            .run_for(200)
            .policy("all", "{}")
    }),
    (Reason::UnknownModel, Pool("p"), || pools("[{name: p, match: {models: [nvidia-h100-80g]}}]")),
    (Reason::PoolShadowed, Pool("b"), || pools("[{name: a}, {name: b, match: {models: [t4]}}]")),
    (Reason::PoolMatchesOwnLabel, Pool("p"), || {
        pools("[{name: p, match: {nodeSelector: {matchLabels: {team: x}}}, nodeLabels: [{key: team, value: x}]}]")
    }),
    (Reason::DriverUnsupported, Pool("p"), || pools("[{name: p, driver: {version: 470.256.02}}]")),
];
