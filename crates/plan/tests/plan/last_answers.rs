//! A node or a rollout that waits for a pod shows what the API server last answered about it.

use gpu_operator_crd::{Phase, reason::Reason};
use gpu_operator_plan::{
    loop_memory::{Class, Failure, LoopState},
    output::{body::Body, write::Write},
    time::Uptime,
    world::Refusal,
};

use crate::{
    robust::updating_fleet,
    sim::{Faults, Sim},
};

const WEBHOOK: &str = "Error creating: Internal error occurred: failed calling webhook \"validate.kyverno.svc-fail\": failed to call \
                       webhook: Post \"https://kyverno-svc.kyverno.svc:443/validate/fail\": connect: connection refused";

/// Lets a webhook reject the pods of all DaemonSets, as it has done most recently.
fn webhook_is_down(sim: &mut Sim) {
    for set in sim.sets.keys() {
        sim.refusals.insert(set.clone(), Refusal { message: WEBHOOK.into(), at: Some(sim.now) });
    }
}

#[test]
fn a_webhook_that_is_down_is_named() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.faults.insert("a".into(), Faults { pods_forbidden: Some(""), ..Faults::default() });
    let mut reasons = Vec::new();
    for _ in 0..90 {
        sim.step();
        webhook_is_down(&mut sim);
        sim.sleep(1);
        let status = sim.status("a");
        if status.phase == Phase::Driver {
            assert!(reasons.is_empty() || status.message.contains("kyverno"), "{}", status.message);
            reasons.extend(status.reason());
        }
    }
    reasons.dedup();
    assert_eq!(reasons, [Reason::PodStarting, Reason::PodsForbidden]);
    assert!(sim.message("all", "Stalled").contains("kyverno"), "{}", sim.message("all", "Stalled"));
    sim.faults.clear();
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "an accepted pod is newer");
}

#[test]
fn a_preflight_whose_pod_is_not_created_says_so() {
    let mut sim = updating_fleet(&["a", "b", "c"], "{}");
    let is_pod = |write: &&Write| matches!(write.body, Body::Pod(_));
    let pods: Vec<Write> = loop {
        let plan = sim.plan();
        let pods: Vec<_> = plan.writes.iter().filter(is_pod).cloned().collect();
        if !pods.is_empty() {
            break pods;
        }
        assert!(sim.step_with(plan), "there is no preflight");
        sim.sleep(1);
    };
    let mut memory = LoopState::default();
    for pod in &pods {
        let failure = Failure { class: Class::Refused, message: format!("failed to {pod}: failed calling webhook") };
        memory.settled(pod, Err(failure), Uptime::ZERO);
    }
    let mut world = sim.world();
    memory.annotate(&mut world, Uptime::from_secs(1));
    let plan = sim.plan_for(world);
    sim.carry_out(&plan);
    let status = sim.status("a");
    assert!(status.reason() == Some(Reason::RolloutPending), "{status:#?}");
    assert!(status.message.starts_with("update pending: failed to create pod preflight-"), "{}", status.message);
    assert!(
        sim.message("all", "Reconciling").contains("failed calling webhook"),
        "{}",
        sim.message("all", "Reconciling")
    );
}
