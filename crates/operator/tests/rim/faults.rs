//! The whole operator while parts of its environment fail, on a clock that is advanced.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::keys;
use http::StatusCode;
use serde_json::json;
use test_api_server::{Fault, Made};
use tokio::time::Instant;

use crate::cluster::{Cluster, GPU_NODES, NODES, PODS, POLICIES, SETS};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn is_event(made: &Made) -> bool {
    made.path.starts_with("/apis/events.k8s.io/")
}

/// Returns the writes that are not Events, sorted.
fn writes(made: &[Made]) -> Vec<String> {
    let writes = made.iter().filter(|made| made.is_write() && !is_event(made));
    let mut writes: Vec<_> = writes.map(|made| format!("{} {} {}", made.method, made.path, made.subresource)).collect();
    writes.sort();
    writes
}

/// Returns the times at which an object was applied.
fn times(made: &[Made], path: &str) -> Vec<Instant> {
    made.iter().filter(|made| made.is_apply() && made.path == path).map(|made| made.at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_settled_fleet_costs_no_write_and_no_list() {
    let cluster = Cluster::running(3);
    cluster.run_for(10 * MINUTE).await;
    assert!(cluster.is_ready(), "{}", cluster.policy());
    let writes = writes(&cluster.api.take());
    assert!(writes.len() <= 3 * 4 + 3 + 20, "{writes:#?}");
    cluster.run_for(6 * HOUR).await;
    let made = cluster.api.take();
    assert!(made.iter().all(Made::is_watch), "{:#?}", made.iter().find(|made| !made.is_watch()));
    // The API server ends each of thirteen watches after 290 seconds.
    assert!(made.len() <= 13 * 75, "{}", made.len());
}

/// The slices of DRA drivers, which not every API server serves.
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

#[tokio::test(start_paused = true)]
async fn slices_are_watched_where_the_api_server_serves_them() {
    for (is_served, reason) in [(true, "ForeignDraDriver"), (false, "AllGpusAllocatable")] {
        let (cluster, sim) = Cluster::new(1);
        for (driver, node) in [("gpu.nvidia.com", "n000"), ("compute-domain.nvidia.com", "n001")] {
            cluster.api.write("kubelet", &format!("{SLICES}/{node}-{driver}"), |slice| {
                *slice = json!({"spec": {"driver": driver, "nodeName": node, "devices": [{"name": "gpu-0"}]}});
            });
        }
        if !is_served {
            cluster.api.fail(|made| made.path == SLICES, Fault::NotServed);
        }
        cluster.start_operator(&sim);
        cluster.run_surroundings(sim);
        cluster.run_for(30 * MINUTE).await;
        assert_eq!(cluster.condition(&format!("{GPU_NODES}/n000"), "Ready").1, reason);
        let requests = cluster.api.take().into_iter().filter(|made| made.path == SLICES).count();
        assert_eq!(requests > 1, is_served, "{requests} requests");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_an_own_pod_is_sent_to_one_watch() {
    let cluster = Cluster::running(3);
    cluster.run_for(10 * MINUTE).await;
    cluster.api.take_sent();
    let operands: Vec<_> = cluster.api.paths(PODS).into_iter().filter(|pod| !pod.contains("probe")).collect();
    for pod in &operands {
        cluster.api.write("kubelet", pod, |pod| pod["status"]["podIP"] = "10.0.0.1".into());
    }
    cluster.run_for(Duration::from_secs(1)).await;
    let sent = cluster.api.take_sent();
    assert!(!operands.is_empty() && sent.iter().all(|(watch, _)| watch == PODS), "{sent:#?}");
    assert_eq!(sent.len(), operands.len());
}

#[tokio::test(start_paused = true)]
async fn failing_writes_to_one_object_become_rare_and_others_go_on() {
    let cluster = Cluster::running(3);
    let writes_to = |node| move |made: &Made| made.is_write() && made.path == format!("{NODES}/{node}");
    cluster.api.fail(writes_to("n000"), Fault::Refused(StatusCode::FORBIDDEN));
    cluster.api.fail(writes_to("n001"), Fault::Hangs);
    let state = |node: &str| cluster.condition(&format!("{GPU_NODES}/{node}"), "Ready");
    cluster.run_for(20 * MINUTE).await;
    assert_eq!((&*state("n000").0, &*state("n002").0), ("False", "True"));
    let policy = cluster.policy();
    assert!(
        policy.contains("ApplyFailed") && policy.contains("failed to apply this operator's labels of node n000"),
        "{policy}"
    );
    cluster.run_for(40 * MINUTE).await;
    let made = cluster.api.take();
    for (node, first) in [("n000", 30), ("n001", 5)] {
        let times = times(&made, &format!("{NODES}/{node}"));
        let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert!(pauses[0] >= first && pauses.is_sorted() && pauses.last() >= Some(&300), "{node}: {pauses:?}");
    }
    assert!(times(&made, &format!("{POLICIES}/all")).len() < 20);
}

#[tokio::test(start_paused = true)]
async fn a_reverting_manager_costs_12_repairs_an_hour_and_is_reported() {
    let cluster = Cluster::running(2);
    cluster.run_for(10 * MINUTE).await;
    let set = cluster.api.paths(SETS).remove(0);
    let node = format!("{NODES}/n000");
    cluster.revert("kyverno", &node, |node| node["metadata"]["labels"][keys::MODEL] = "gpu".into());
    cluster.revert("webhook", &set, |set| set["spec"]["template"]["spec"]["priorityClassName"] = "low".into());
    cluster.api.take();
    for hour in 0..3 {
        cluster.run_for(HOUR).await;
        let made = cluster.api.take();
        for path in [&node, &set] {
            let repairs = times(&made, path).len();
            assert!((6..=12).contains(&repairs), "{repairs} of {path} in hour {hour}");
        }
        assert!(writes(&made).len() < 40, "{:#?}", writes(&made));
    }
    let of_node = cluster.api.get(&format!("{GPU_NODES}/n000"))["status"].to_string();
    assert!(of_node.contains("ManagerConflict") && of_node.contains("kyverno"), "{of_node}");
    let of_policy = cluster.policy();
    assert!(of_policy.contains("ManagerConflict") && of_policy.contains("webhook"), "{of_policy}");
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_or_expire_resume_without_a_storm_of_lists() {
    let cluster = Cluster::running(3);
    for _ in 0..20 {
        cluster.run_for(Duration::from_secs(5)).await;
        cluster.api.cut();
    }
    let lists = |made: &[Made]| {
        let mut lists = BTreeMap::new();
        for made in made.iter().filter(|made| made.is_list()) {
            // Each CRD is listed by its name.
            let fields = made.query.get("fieldSelector").filter(|fields| fields.starts_with("metadata.name="));
            *lists.entry((made.path.clone(), fields.cloned())).or_insert(0) += 1;
        }
        lists
    };
    let made = cluster.api.take();
    assert!(cluster.is_ready(), "{}", cluster.policy());
    assert!(lists(&made).values().all(|count| *count == 1), "{:#?}", lists(&made));
    for _ in 0..10 {
        cluster.api.expire();
        cluster.run_for(MINUTE).await;
    }
    let made = cluster.api.take();
    // The pauses grow to a minute at most, so that one list may answer two expirations.
    assert!(lists(&made).values().all(|count| (5..=10).contains(count)), "{:#?}", lists(&made));
    // Every version has expired by the time that its watch begins.
    let continues = |made: &Made| made.is_watch() && !made.query["resourceVersion"].is_empty();
    cluster.api.fail(continues, Fault::Expired);
    cluster.api.cut();
    cluster.run_for(10 * MINUTE).await;
    let made = cluster.api.take();
    assert!(lists(&made).values().all(|count| *count <= 30), "{:#?}", lists(&made));
    assert_eq!(writes(&made), [""; 0]);
    // What changes meanwhile is carried out.
    cluster.publish_label();
    cluster.run_for(2 * MINUTE).await;
    let writes = writes(&cluster.api.take());
    assert_eq!(writes.iter().filter(|write| write.contains(NODES)).count(), 3, "{writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn writes_to_half_of_the_nodes_hang_and_others_are_made() {
    const NUMBER: usize = 240;
    let (cluster, sim) = Cluster::new(NUMBER);
    let hangs = |made: &Made| {
        let name = made.path.strip_prefix(GPU_NODES).and_then(|name| name.strip_prefix("/n"));
        made.is_write() && name.and_then(|name| name.parse::<usize>().ok()).is_some_and(|number| number % 2 == 0)
    };
    cluster.api.fail(hangs, Fault::Hangs);
    cluster.start_operator(&sim);
    // Sixteen writes are in progress at a time, and one that hangs occupies its place for a second. The first pass begins writes for seven
    // seconds, and the second pass makes the rest.
    cluster.run_for(Duration::from_secs(15)).await;
    let made = cluster.api.take();
    let paths = |made: &[&Made]| made.iter().map(|made| made.path.clone()).collect::<BTreeSet<_>>();
    let hung: Vec<_> = made.iter().filter(|made| hangs(made)).take(NUMBER / 2).collect();
    assert_eq!(paths(&hung).len(), NUMBER / 2, "none is attempted twice before the others are made");
    let labelled: Vec<_> = made.iter().filter(|made| made.is_apply() && made.path.starts_with(NODES)).collect();
    assert_eq!((labelled.len(), paths(&labelled).len()), (NUMBER / 2, NUMBER / 2));
}
