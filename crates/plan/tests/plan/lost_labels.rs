//! Labels that decide which policy and pool govern a node: a change that lasts less than a minute changes nothing.

use gpu_operator_crd::keys;
use gpu_operator_plan::{loop_memory::LoopState, time::Uptime};

use crate::sim::Sim;

const SPEC: &str = "{pools: [{name: prod, match: {nodeSelector: {matchLabels: {tier: prod}}}, driver: {version: 580.105.08}}], \
                    rollout: {gpuPods: {mode: Evict}}}";

/// A fleet, and the loop that manages it.
struct Loop {
    sim: Sim,
    memory: LoopState,
    up: u64,
}

impl Loop {
    /// Returns a settled fleet of three nodes with GPU pods in the pool `prod`.
    fn of_prod() -> Self {
        let mut sim = Sim::new().policy("all", SPEC);
        for node in ["a", "b", "c"] {
            sim.join(node, "2330", 8);
            sim.label(node, "tier", Some("prod"));
        }
        sim.settle();
        for node in ["a", "b", "c"] {
            sim.gpu_pods.insert(node.into(), vec![format!("team/{node}")]);
        }
        let mut fleet = Self { sim, memory: LoopState::default(), up: 0 };
        fleet.passes(5);
        fleet
    }

    /// Runs one pass a second, and returns the writes but statuses.
    fn passes(&mut self, seconds: u64) -> Vec<String> {
        let mut made = Vec::new();
        for _ in 0..seconds {
            made.extend(self.sim.pass(&mut self.memory, Uptime::from_secs(self.up)));
            self.up += 1;
            self.sim.sleep(1);
        }
        made
    }

    fn pools(&self) -> Vec<String> {
        ["a", "b", "c"].iter().filter_map(|node| Some(self.sim.spec(*node).pool.clone()?.to_string())).collect()
    }

    fn label(&mut self, key: &str, value: Option<&str>) {
        for node in ["a", "b", "c"] {
            self.sim.label(node, key, value);
        }
    }
}

const LOST: [&str; 3] = ["nvidia-h100-80gb"; 3];
const PROD: [&str; 3] = ["prod"; 3];

#[test]
fn every_label_that_decides_has_the_grace() {
    for (key, value, moves_to) in [
        (keys::MODEL_OVERRIDE, "nvidia-l40s", "nvidia-l40s"),
        ("cloud.google.com/gke-accelerator", "nvidia-l4", "nvidia-l4"),
        ("feature.node.kubernetes.io/pci-0302_10de_20b0.present", "true", "nvidia-tesla-a100"),
        ("tier", "prod", "prod"),
        ("policy", "b", "of-b"),
    ] {
        let mut fleet = Loop::of_prod();
        fleet.sim.apply_policy("b", "{priority: 1, nodeSelector: {matchLabels: {policy: b}}, pools: [{name: of-b}]}");
        fleet.label("tier", None);
        fleet.passes(63);
        assert_eq!(fleet.pools(), LOST, "{key}");
        fleet.label(key, Some(value));
        fleet.passes(59);
        assert_eq!(fleet.pools(), LOST, "{key}");
        fleet.passes(3);
        assert_eq!(fleet.pools(), [moves_to; 3], "{key}");
    }
}

#[test]
fn an_edit_of_the_policy_takes_effect_at_once() {
    let mut fleet = Loop::of_prod();
    fleet.label("tier", None);
    fleet.passes(10);
    // It has nothing to do with the lost label.
    fleet.sim.apply_policy("all", &SPEC.replace("{pools", "{nodeLabels: [{key: accelerator}], pools"));
    fleet.passes(2);
    assert_eq!(fleet.pools(), PROD);
    let other = SPEC.replace(
        "[{name: prod",
        "[{name: others, match: {nodeSelector: {matchExpressions: [{key: new, operator: \
                              DoesNotExist}]}}}, {name: prod",
    );
    fleet.sim.apply_policy("all", &other);
    fleet.passes(2);
    assert_eq!(fleet.pools(), ["others"; 3]);
}

#[test]
fn what_a_user_asks_for_takes_effect_at_once() {
    let mut fleet = Loop::of_prod();
    fleet.label("tier", None);
    fleet.label(keys::MANAGED, Some("false"));
    fleet.passes(2);
    assert_eq!(fleet.sim.policy_status("all").nodes.total, 0);
    // A node that has no GPU stack yet may get its labels one after the other.
    fleet.sim.join("d", "2330", 8);
    fleet.passes(1);
    fleet.sim.label("d", "tier", Some("prod"));
    fleet.passes(1);
    assert_eq!(fleet.sim.spec("d").pool, Some("prod".into()));
}

#[test]
fn a_new_node_of_the_same_name_has_its_own_labels() {
    let mut fleet = Loop::of_prod();
    fleet.label("tier", None);
    fleet.passes(1);
    for node in ["a", "b", "c"] {
        let facts = fleet.sim.node_mut(node);
        facts.uid = format!("another {node}");
    }
    fleet.passes(3);
    assert_eq!(fleet.pools(), LOST);
}
