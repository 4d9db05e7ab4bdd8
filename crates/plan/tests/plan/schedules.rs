//! All orders of steps. The operator sees the cluster late, its writes fail or are carried out late, it is killed, and the cluster's
//! programs and users go on meanwhile. Laws are checked at every write, by what is true and not by what the operator sees.

mod claims;
mod cluster;
mod event;
mod operator;
mod random;
mod search;
mod step;
mod store;

use cluster::Cluster;
use event::{Event, POLICY, any_event};
use gpu_operator_crd::policy::Stage;
use gpu_operator_plan::world::{NodeFacts, TaintFact};
use proptest::{collection::vec, prelude::*};
use search::{Explored, explore};
use step::Allowed;
use store::Kind;
use test_support::random::config;

use crate::{law, sim::Sim};

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

/// Returns an error unless nothing is left to do.
fn settled(cluster: &Cluster) -> Result<(), String> {
    let writes = cluster.left_to_do();
    if writes.is_empty() { law::of_records(&cluster.sim) } else { Err(format!("something is left to do: {writes:#?}")) }
}

/// Returns an error if a node has a startup taint.
fn has_no_startup_taint(cluster: &Cluster) -> Result<(), String> {
    let is_tainted = |node: &&NodeFacts| node.taints.iter().any(TaintFact::is_startup);
    match cluster.sim.nodes.values().find(is_tainted) {
        Some(node) => Err(format!("{} is ready and has a startup taint: {:?}", node.name, node.taints)),
        None => Ok(()),
    }
}

/// Takes all orders of all steps until everything is done.
fn explored(sim: Sim, lagging: &'static [Kind], allowed: Allowed, events: &[Event]) -> Explored {
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
    let found = explored(sim, &[], Allowed { kills: 1, ..Allowed::default() }, &[Event::Delete]);
    assert!(found.states > 200 && found.ends > 0, "{found:?}");
}

fn allowed() -> Allowed {
    Allowed { faults: 4, kills: 2, lag: 6, ..Allowed::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn in_random_orders_an_installation_survives_reboots(choices in vec(any::<u16>(), 0..400)) {
        let mut sim = Sim::new().policy("all", POLICY);
        for node in ["a", "b", "c"] {
            sim.join(node, "2330", 8);
        }
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &[Event::Reboot("a"); 3]);
        let end = random::run(cluster, &choices).and_then(|cluster| all_ready(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_a_reboot_is_no_failure(choices in vec(any::<u16>(), 0..500)) {
        use Event::{Back, Move, PodRuns, PodStarts, PodsEnd, Reboot};
        let spec = "{rollout: {maxParallel: 2, maxUnavailable: 3, onFailure: RollBack, gpuPods: {mode: Await}}}";
        let sim = Sim::settled_fleet(spec, &["a", "b", "c"]);
        let events = [
            Reboot("a"), PodRuns("c"), Move, Reboot("b"), Reboot("a"), PodStarts, Reboot("c"), Reboot("a"), PodsEnd, Reboot("b"),
            Back, Reboot("a"), Reboot("b"),
        ];
        // A Node that is observed later or earlier than its pods contradicts them.
        let lagging = &[Kind::Policy, Kind::GpuNode, Kind::DaemonSet];
        let cluster = Cluster::new(sim, lagging, Allowed { kills: 2, lag: 6, ..Allowed::default() }, &events).healthy();
        let end = random::run(cluster, &choices).and_then(|cluster| all_ready(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_startup_taints_wait_for_ready(choices in vec(any::<u16>(), 0..500)) {
        use Event::{Delete, Join, Leave, Readiness, Reboot, StartupTaint};
        let mut sim = Sim::new().policy("all", POLICY);
        for node in ["a", "b"] {
            sim.join(node, "2330", 8);
        }
        let events = [
            StartupTaint("a"), StartupTaint("b"), Readiness(true), Reboot("b"), Reboot("a"), StartupTaint("a"), Leave("b"),
            Join("b"), StartupTaint("b"), Reboot("a"), Readiness(false), Readiness(true), StartupTaint("a"), Reboot("a"),
        ];
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &events);
        let end = random::run(cluster, &choices).and_then(|cluster| {
            all_ready(&cluster)?;
            has_no_startup_taint(&cluster)?;
            let mut cluster = cluster;
            Delete.happen(&mut cluster.sim);
            random::uninstalled(cluster)
        });
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_no_driver_is_replaced_under_a_gpu_pod(choices in vec(any::<u16>(), 0..600)) {
        use Event::{Back, Move, PodStarts, PodsEnd, Repackage};
        let sim = Sim::settled_fleet(POLICY, &["a", "b", "c"]);
        let stray = Event::Stray("a", Stage::Driver, Some("x"));
        let events = [
            Move, PodStarts, PodStarts, PodStarts, PodStarts, PodStarts, stray, PodsEnd, Back, PodStarts, PodStarts, PodStarts,
            PodsEnd, Repackage, PodStarts, Event::PodRuns("b"), Event::Reboot("b"), stray, Back, PodStarts, PodsEnd, Move, PodStarts,
            stray, Repackage, PodStarts, PodStarts,
        ];
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &events);
        let end = random::run(cluster, &choices).and_then(|cluster| all_ready(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_policies_and_names_go_and_come_back(choices in vec(any::<u16>(), 0..600)) {
        let sim = Sim::settled_fleet(POLICY, &["a", "b"]);
        let events = [
            Event::Leave("a"), Event::Delete, Event::Join("a"), Event::Create, Event::LeaveUncollected("a"), Event::Move,
            Event::Join("a"),
        ];
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &events);
        let end = random::run(cluster, &choices).and_then(|cluster| settled(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_two_operators_at_once_keep_the_budgets(
        most in 1..3_u32,
        awaits in any::<bool>(),
        choices in vec(any::<u16>(), 0..700),
    ) {
        use Event::{Back, Cordoned, Move, PodRuns, PodStarts, PodsEnd};
        let mode = if awaits { "Await" } else { "Leave" };
        let rollout = format!("{{maxParallel: {most}, maxUnavailable: 2, gpuPods: {{mode: {mode}}}, onFailure: RollBack}}");
        let sim = Sim::settled_fleet(&format!("{{rollout: {rollout}}}"), &["a", "b", "c", "d"]);
        let events = [
            Move, PodRuns("a"), Cordoned("b", true), PodStarts, PodsEnd, Back, PodRuns("c"), Cordoned("b", false), Move, PodsEnd, Move,
        ];
        let cluster = Cluster::new(sim, &Kind::ALL, Allowed { switches: 30, ..allowed() }, &events);
        let end = random::run(cluster, &choices).and_then(|cluster| settled(&cluster));
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn in_random_orders_of_any_events_all_laws_hold(
        events in vec(any_event(), 1..16),
        choices in vec(any::<u16>(), 0..500),
    ) {
        let sim = Sim::settled_fleet(POLICY, &["a", "b"]);
        let cluster = Cluster::new(sim, &Kind::ALL, allowed(), &events);
        let end = random::run(cluster, &choices).and_then(|cluster| {
            settled(&cluster)?;
            random::uninstalled(cluster)
        });
        prop_assert!(end.is_ok(), "{}\nof {events:?}", end.unwrap_err());
    }
}
