//! All orders of steps. The operator sees the cluster late, its writes fail or are carried out late, it is killed, and the cluster's
//! programs and users go on meanwhile. Laws are checked at every write, by what is true and not by what the operator sees.

mod cluster;
mod law;
mod operator;
mod random;
mod search;
mod store;

use cluster::{Allowed, Cluster, Event, start_gpu_pod};
use gpu_operator_crd::keys;
use proptest::{collection::vec, prelude::*};
use search::{Explored, explore};
use store::Kind;

use crate::{properties::config, sim::Sim};

const POLICY: &str = "{}";
const OTHER_DRIVER: &str = "{defaults: {driver: {version: 580.105.08}}}";

/// Returns an error unless nothing is left to do and all nodes are ready.
fn all_ready(cluster: &Cluster) -> Result<(), String> {
    settled(cluster)?;
    let sim = &cluster.sim;
    let is_ready = |node| sim.status(node).is_ready();
    match sim.nodes.keys().find(|node| !is_ready((*node).clone())) {
        Some(node) => Err(format!("{node} is not ready: {:#?}", sim.status(node.clone()))),
        None => Ok(()),
    }
}

/// Replaces the driver.
const MOVE: Event = |sim| sim.apply_policy("all", OTHER_DRIVER);
/// Goes back to the first driver.
const BACK: Event = |sim| sim.apply_policy("all", POLICY);
const DELETE: Event = |sim| sim.delete_policy("all");
const CREATE: Event = |sim| sim.apply_policy("all", POLICY);
const LEAVE: Event = |sim| sim.leave(&"a".into());
/// A node of a name that was there before.
const JOIN: Event = |sim| sim.join("a", "2330", 8);

/// A machine is rebooted, which its kubelet reports before its probe does.
const REBOOT: Event = |sim| sim.reboot("a", 0);

/// A GPU pod starts where it does most harm: on a node that is being updated.
const POD_STARTS: Event = |sim| {
    let moving: Vec<_> = sim.nodes.keys().filter(|node| sim.is_moving((*node).clone())).cloned().collect();
    for node in &moving {
        start_gpu_pod(sim, node);
    }
};
/// A user changes the label that places the driver's pod.
const STRAY: Event = |sim| sim.label("a", keys::DRIVER, Some("x"));
const PODS_END: Event = |sim| sim.gpu_pods.clear();

/// Returns an error unless nothing is left to do.
fn settled(cluster: &Cluster) -> Result<(), String> {
    let writes = cluster.left_to_do();
    if writes.is_empty() { Ok(()) } else { Err(format!("something is left to do: {writes:#?}")) }
}

/// Takes all orders of all steps until everything is done.
fn explored(sim: Sim, lagging: &'static [Kind], allowed: Allowed, events: &'static [Event]) -> Explored {
    explore(Cluster::new(sim, lagging, allowed, events), 20_000, settled)
}

fn one_node() -> Sim {
    Sim::new().gpu_node("a", "2330", 8).policy("all", POLICY)
}

#[test]
fn in_all_orders_an_installation_ends_with_a_ready_node() {
    let allowed = Allowed { lag: 1, ..Allowed::default() };
    let found = explore(Cluster::new(one_node(), &[], allowed, &[]), 20_000, all_ready);
    assert!(found.states > 1000 && found.ends > 0, "{found:?}");
}

#[test]
fn in_all_orders_a_deleted_policy_leaves_nothing_behind() {
    let sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
    let found = explored(sim, &[], Allowed { kills: 1, ..Allowed::default() }, &[DELETE]);
    assert!(found.states > 200 && found.ends > 0, "{found:?}");
}

fn allowed() -> Allowed {
    Allowed { faults: 4, kills: 2, lag: 6 }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn in_random_orders_an_installation_with_reboots_ends_with_ready_nodes(choices in vec(any::<u16>(), 0..400)) {
        let mut sim = Sim::new().policy("all", POLICY);
        for node in ["a", "b", "c"] {
            sim.join(node, "2330", 8);
        }
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &[REBOOT, REBOOT, REBOOT]);
        let end = random::run(cluster, &choices).and_then(|cluster| all_ready(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_drivers_are_replaced_and_never_under_a_gpu_pod(choices in vec(any::<u16>(), 0..600)) {
        let sim = Sim::settled_fleet(POLICY, &["a", "b", "c"]);
        let events: &[Event] = &[
            MOVE, POD_STARTS, POD_STARTS, POD_STARTS, POD_STARTS, POD_STARTS, STRAY, PODS_END, BACK, POD_STARTS,
            POD_STARTS, POD_STARTS, PODS_END, STRAY, MOVE, POD_STARTS, STRAY, POD_STARTS, POD_STARTS,
        ];
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), events);
        let end = random::run(cluster, &choices).and_then(|cluster| all_ready(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_policies_are_deleted_and_created_and_names_come_back(choices in vec(any::<u16>(), 0..600)) {
        let sim = Sim::settled_fleet(POLICY, &["a", "b"]);
        let events: &[Event] = &[LEAVE, DELETE, JOIN, CREATE, LEAVE, MOVE, JOIN];
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), events);
        let end = random::run(cluster, &choices).and_then(|cluster| settled(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }
}
