//! How many nodes of a pool lose their pods because of unhealthy GPUs, and numbers of GPUs that no node has ever had.

use std::collections::BTreeMap;

use gpu_operator_crd::health::HealthState;

use crate::sim::Sim;

const NODES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const DRAIN: &str = "health: {minHealthyGPUs: 1, onUnhealthy: {taint: {effect: NoExecute}}}";

fn set_health(sim: &mut Sim, nodes: &[&str], state: HealthState) {
    for node in nodes {
        sim.report(*node).gpus[0].health.state = state;
    }
    sim.settle();
}

/// Returns the names of the nodes with the taint, by its effect.
fn tainted(sim: &Sim) -> BTreeMap<&str, String> {
    let mut by_effect = BTreeMap::<&str, String>::new();
    for node in sim.nodes.values() {
        for taint in node.taints.iter().filter(|taint| node.owns(taint)) {
            by_effect.entry(&taint.effect).or_default().push_str(&node.name.to_string());
        }
    }
    by_effect
}

fn is_tainted(sim: &Sim, drained: &str, others: &str) {
    let expected = [("NoExecute", drained), ("NoSchedule", others)].into_iter().filter(|(_, nodes)| !nodes.is_empty());
    assert_eq!(tainted(sim), expected.map(|(effect, nodes)| (effect, nodes.to_owned())).collect());
}

#[test]
fn at_most_max_unavailable_nodes_of_a_pool_are_drained() {
    let mut sim = Sim::settled_fleet(&format!("{{{DRAIN}}}"), &NODES);
    set_health(&mut sim, &["h", "c"], HealthState::Unhealthy);
    is_tainted(&sim, "ch", "");
    assert!(!sim.message("all", "Degraded").contains("NoSchedule"));
    set_health(&mut sim, &NODES, HealthState::Unhealthy);
    is_tainted(&sim, "ch", "abdefg");
    let message = sim.message("all", "Degraded");
    let expected = "pool nvidia-h100-80gb: of 8 unhealthy nodes, 6 have the taint with effect NoSchedule instead of NoExecute, because \
                    rollout.maxUnavailable allows NoExecute on 2";
    assert!(message.contains(expected), "{message}");
    // While its health is uncertain, a node keeps its taint, and the next one follows only once it is gone.
    set_health(&mut sim, &["h", "a"], HealthState::Recovering);
    is_tainted(&sim, "ch", "abdefg");
    set_health(&mut sim, &["c"], HealthState::Healthy);
    is_tainted(&sim, "bh", "adefg");
    for (most, drained, others) in [("50%", "bdeh", "afg"), ("1", "b", "adefgh"), ("0", "b", "adefgh")] {
        sim.apply_policy("all", &format!("{{{DRAIN}, rollout: {{maxUnavailable: {most}}}}}"));
        sim.settle();
        is_tainted(&sim, drained, others);
    }
    let pools = "pools: [{name: p, rollout: {maxUnavailable: 3}}]";
    sim.apply_policy("all", &format!("{{{DRAIN}, {pools}, rollout: {{maxUnavailable: 1}}}}"));
    sim.settle();
    is_tainted(&sim, "bde", "afgh");
}

#[test]
fn a_second_node_is_drained_only_once_the_first_has_no_taint() {
    let mut sim = Sim::settled_fleet(&format!("{{{DRAIN}}}"), &["a", "b"]);
    set_health(&mut sim, &["b"], HealthState::Unhealthy);
    is_tainted(&sim, "b", "");
    sim.report("b").gpus[0].health.state = HealthState::Healthy;
    sim.report("a").gpus[0].health.state = HealthState::Unhealthy;
    sim.step();
    is_tainted(&sim, "", "a");
    sim.settle();
    is_tainted(&sim, "a", "");
}

#[test]
fn a_number_of_gpus_that_no_node_has_is_the_policys_fault() {
    let spec = |count| format!("{{{DRAIN}, pools: [{{name: p, gpusPerNode: {count}}}]}}");
    let mut sim = Sim::settled_fleet(&spec(16), &NODES);
    is_tainted(&sim, "", "");
    assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()));
    assert_eq!(
        sim.message("all", "Accepted"),
        "pool p: gpusPerNode: 16, but no node of this pool has ever had more than 8 on its PCI bus; write gpusPerNode: 8, or remove it"
    );
    assert_eq!(sim.status("a").health, Some(HealthState::Healthy));
    assert_eq!(sim.policy_status("all").gpus.unhealthy, 0);
    // A GPU that was there counts as missing all the same.
    sim.report("b").gpus.pop();
    sim.settle();
    is_tainted(&sim, "b", "");
    assert_eq!(sim.policy_status("all").gpus.unhealthy, 1);
    // One node has as many: the others lack some.
    sim.join("z", "2330", 16);
    sim.settle();
    assert_eq!(sim.condition("all", "Accepted").0, "True");
    is_tainted(&sim, "abc", "defgh");
    sim.apply_policy("all", &spec(8));
    sim.settle();
    is_tainted(&sim, "b", "");
    assert_eq!(sim.condition("all", "Accepted").0, "True");
}
