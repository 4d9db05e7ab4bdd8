//! Two operators of which one leads, on a clock that is advanced.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use http::Method;
use serde_json::Value;
use test_api_server::{Fault, Made};
use tokio::time::Instant;

use crate::cluster::Cluster;

const MINUTE: Duration = Duration::from_mins(1);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/gpu-operator/leases/operator";

fn is_lease(made: &Made) -> bool {
    made.path.starts_with("/apis/coordination.k8s.io/")
}

/// Returns the times of the requests of a replica by which it changes anything but the Lease.
fn writes(made: &[Made], replica: &str) -> Vec<Instant> {
    let writes = made.iter().filter(|made| made.client == replica && made.is_write() && !is_lease(made));
    writes.map(|made| made.at).collect()
}

/// Creates a cluster with the replicas `a` and `b`.
fn two_replicas(nodes: usize) -> Cluster {
    let (cluster, sim) = Cluster::new(nodes);
    cluster.start_replica(&sim, "a");
    cluster.start_replica(&sim, "b");
    cluster.run_surroundings(sim);
    cluster
}

/// Creates a cluster with two replicas whose fleet is installed. Returns it with the replica that leads, and the other one.
async fn settled_replicas() -> (Cluster, &'static str, &'static str) {
    let cluster = two_replicas(3);
    cluster.run_for(10 * MINUTE).await;
    assert!(cluster.is_ready(), "{}", cluster.policy());
    let (leader, standby) = roles(&cluster);
    (cluster, leader, standby)
}

fn lease(cluster: &Cluster) -> Value {
    cluster.api.get(LEASE)["spec"].clone()
}

/// Returns the replica that leads, and the other one.
fn roles(cluster: &Cluster) -> (&'static str, &'static str) {
    if lease(cluster)["holderIdentity"] == "a" { ("a", "b") } else { ("b", "a") }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_replicas_writes_and_the_other_one_waits() {
    let (cluster, leader, standby) = settled_replicas().await;
    let made = cluster.api.take();
    assert!(!writes(&made, leader).is_empty());
    assert_eq!(writes(&made, standby), []);
    let spec = lease(&cluster);
    assert_eq!((&spec["leaseDurationSeconds"], &spec["leaseTransitions"]), (&15.into(), &0.into()));
    // A settled fleet costs the renewals and the looks at them.
    cluster.run_for(10 * MINUTE).await;
    let made = cluster.api.take();
    let others = made.iter().filter(|made| !made.is_watch() && !is_lease(made)).count();
    let of = |client: &str, method: Method| {
        made.iter().filter(|made| made.client == client && is_lease(made) && made.method == method).count()
    };
    assert_eq!(others, 0);
    assert!((298..=301).contains(&of(leader, Method::PUT)), "{}", of(leader, Method::PUT));
    assert!((298..=301).contains(&of(standby, Method::GET)), "{}", of(standby, Method::GET));
    assert_eq!((of(leader, Method::GET), of(standby, Method::PUT)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_is_followed() {
    let (cluster, leader, standby) = settled_replicas().await;
    // From now on the leader's requests are not answered, and there is something to do.
    cluster.api.take();
    let cut = Instant::now();
    cluster.api.fail(move |made| made.client == leader, Fault::Hangs);
    cluster.publish_label();
    cluster.run_for(MINUTE).await;
    let made = cluster.api.take();
    let (before, after) = (writes(&made, leader), writes(&made, standby));
    let (last, first) = (before.iter().max().expect("an attempt"), after.iter().min().expect("a write"));
    assert!(last < first && *first - cut <= Duration::from_secs(20), "{:?} {:?}", *last - cut, *first - cut);
    // Its mirrors were up to date.
    assert!(!made.iter().any(|made| made.client == standby && made.is_list()));
    assert_eq!(lease(&cluster)["leaseTransitions"], 1);
    // The former leader waits, once it is back.
    cluster.api.heal();
    cluster.run_for(10 * MINUTE).await;
    let made = cluster.api.take();
    assert_eq!(writes(&made, leader), []);
    assert_eq!(roles(&cluster), (standby, leader));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_renewal_changes_no_leader() {
    let (cluster, leader, standby) = settled_replicas().await;
    cluster.api.take();
    // Each third renewal is stored, but its answer comes too late.
    let renewals = AtomicU32::new(0);
    let is_renewal = |made: &Made| is_lease(made) && made.method == Method::PUT;
    let is_third = move |made: &Made| is_renewal(made) && renewals.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
    cluster.api.fail(is_third, Fault::AnsweredLate(MINUTE));
    cluster.run_for(10 * MINUTE).await;
    cluster.publish_label();
    cluster.run_for(MINUTE).await;
    let made = cluster.api.take();
    assert_eq!(writes(&made, standby), []);
    assert_eq!(lease(&cluster)["leaseTransitions"], 0);
    // It has gone on from where it was: another term would have begun with a look at everything.
    assert!(!writes(&made, leader).is_empty());
}
