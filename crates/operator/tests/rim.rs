//! The operator's requests, against a model of the API server: which requests are made, in which order, and what their
//! answers lead to.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../../plan/tests/plan/sim/mod.rs"]
mod sim;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode},
};
use gpu_operator::{apply::Writer, events::Publisher, metrics::Metrics, observe, watch::Mirrors};
use gpu_operator_crd::{
    NodeName, Reason,
    gpunode::{Rollout, RolloutStep, StageRevisions},
};
use gpu_operator_plan::{
    Plan,
    carry::{Carry, Class},
    output::events::{Subject, Transition},
    world::{Concern, GpuAsks, GpuPods, World},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde_json::{Value, json};
use sim::Sim;
use tokio::time::Instant;

/// A request as it was made: method, path with query, body.
#[derive(Clone, Debug)]
struct Made {
    method: Method,
    path: String,
    body: Value,
}

/// In place of an answer: the server does not answer at all.
const NO_ANSWER: StatusCode = StatusCode::REQUEST_TIMEOUT;
/// A success after 0.9 seconds.
const LATE: StatusCode = StatusCode::ACCEPTED;

/// Creates a client whose server answers with `answer` and records the requests.
fn server(answer: fn(&Made) -> (StatusCode, Value)) -> (Client, Arc<Mutex<Vec<Made>>>) {
    let made = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&made);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let kept = Arc::clone(&kept);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body");
            let made = Made {
                method: parts.method,
                path: parts.uri.to_string(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            let (status, value) = answer(&made);
            kept.lock().expect("the list").push(made);
            match status {
                NO_ANSWER => std::future::pending::<()>().await,
                LATE => tokio::time::sleep(Duration::from_millis(900)).await,
                _ => {}
            }
            Response::builder().status(status).body(Body::from(value.to_string()))
        }
    });
    (Client::new(service, "default"), made)
}

/// Accepts every write and answers with the whole object, as the API server does.
fn accept(made: &Made) -> (StatusCode, Value) {
    let mut object = made.body.clone();
    if object["spec"].is_null() {
        object["spec"] = json!({});
    }
    object["metadata"]["resourceVersion"] = "7".into();
    (StatusCode::OK, object)
}

fn refusal(status: StatusCode, reason: &str) -> (StatusCode, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": status.as_u16()});
    (status, body)
}

fn paths(made: &Mutex<Vec<Made>>) -> Vec<String> {
    let short = |made: &Made| format!("{} {}", made.method, made.path.split('?').next().unwrap_or_default());
    made.lock().expect("the list").iter().map(short).collect()
}

#[tokio::test]
async fn writes_come_after_the_writes_that_they_depend_on() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let (client, made) = server(accept);
    let written =
        Writer::new(client, "gpu-operator".into(), Arc::default()).apply(&sim.plan(), &mut Carry::default()).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
    let paths = paths(&made);
    let at =
        |part: &str| paths.iter().position(|path| path.contains(part)).unwrap_or_else(|| panic!("{part}: {paths:#?}"));
    let order = [
        at("PATCH /apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/all"),
        at("PATCH /apis/apps/v1/namespaces/gpu-operator/daemonsets/"),
        at("PATCH /apis/gpu.nodestack.dev/v1alpha1/gpunodes/a"),
        at("PATCH /api/v1/nodes/a"),
        at("PATCH /apis/gpu.nodestack.dev/v1alpha1/gpunodes/a/status"),
        at("PATCH /apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/all/status"),
    ];
    assert!(order.is_sorted(), "{order:?}: {paths:#?}");
    assert_eq!(paths.len(), 8, "finalizer, three DaemonSets, spec, labels, two statuses: {paths:#?}");
    for made in made.lock().expect("the list").iter() {
        assert!(made.path.contains("fieldManager=gpu-operator"), "{}", made.path);
    }
}

/// Returns a plan in which the update of node a begins, and one of node b in the same pool ends.
fn update_of_a_begins() -> Plan {
    let sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", "{}");
    let mut plan = sim.plan();
    let write = plan.gpu_nodes.get_mut(&"a".into()).and_then(|write| write.spec.as_mut()).expect("a spec");
    write.spec.rollout =
        Some(Rollout { step: RolloutStep::Install, from: StageRevisions::default(), since: Time(sim.now) });
    let pool = write.spec.policy.clone().zip(write.spec.pool.clone());
    let write = plan.gpu_nodes.get_mut(&"b".into()).and_then(|write| write.spec.as_mut()).expect("a spec");
    write.ends = pool;
    plan
}

#[tokio::test]
async fn the_end_of_an_update_is_written_before_another_update_begins() {
    let plan = update_of_a_begins();
    for _ in 0..20 {
        let (client, made) = server(accept);
        Writer::new(client, "gpu-operator".into(), Arc::default()).apply(&plan, &mut Carry::default()).await;
        let specs = paths(&made).into_iter().filter(|path| path.contains("/gpunodes/") && !path.ends_with("/status"));
        assert!(specs.map(|path| path.chars().last()).eq([Some('b'), Some('a')]));
    }
}

#[tokio::test]
async fn an_update_does_not_begin_if_the_end_of_another_cannot_be_written() {
    let mut plan = update_of_a_begins();
    let (client, made) = server(|made| {
        if made.path.contains("/gpunodes/b?") { refusal(StatusCode::FORBIDDEN, "Forbidden") } else { accept(made) }
    });
    let writer = Writer::new(client, "gpu-operator".into(), Arc::default());
    let written = writer.apply(&plan, &mut Carry::default()).await;
    assert_eq!(written.iter().filter(|write| write.result.is_err()).count(), 1, "{written:?}");
    let of_a = |path: &String| path.ends_with("/gpunodes/a") || path.ends_with("/nodes/a");
    assert!(!paths(&made).iter().any(of_a), "{:?}", paths(&made));

    // Without an update of node b, its spec concerns only node b.
    plan.gpu_nodes.get_mut(&"b".into()).and_then(|write| write.spec.as_mut()).expect("a spec").ends = None;
    made.lock().expect("the list").clear();
    writer.apply(&plan, &mut Carry::default()).await;
    assert_eq!(paths(&made).iter().filter(|path| of_a(path)).count(), 2, "{:?}", paths(&made));
    assert!(!paths(&made).iter().any(|path| path.ends_with("/nodes/b")), "{:?}", paths(&made));
}

#[tokio::test]
async fn labels_that_name_a_daemon_set_that_cannot_be_written_are_not_written() {
    let sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "1eb8", 8).policy("all", "{}");
    let plan = sim.plan();
    let (client, made) = server(|made| {
        let of_h100 = made.path.contains("/daemonsets/driver-") && made.path.contains("h100");
        if of_h100 { refusal(StatusCode::FORBIDDEN, "Forbidden") } else { accept(made) }
    });
    let (mut carry, mut world) = (Carry::default(), World::default());
    let writer = Writer::new(client, "gpu-operator".into(), Arc::default());
    writer.apply(&plan, &mut carry).await;
    let labelled: Vec<_> = paths(&made).into_iter().filter(|path| path.starts_with("PATCH /api/v1/nodes/")).collect();
    assert_eq!(labelled, ["PATCH /api/v1/nodes/b"]);
    carry.enrich(&mut world, writer.uptime());
    assert_eq!(
        world.held_writes.iter().map(|refused| &refused.concerns).collect::<Vec<_>>(),
        [&Concern::Policy("all".into())]
    );
}

#[tokio::test(start_paused = true)]
async fn writes_without_an_answer_delay_only_the_writes_that_depend_on_them() {
    const HANG: usize = 60;
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..100 {
        sim.join(format!("n{node:02}"), "2330", 8);
    }
    let plan = sim.plan();
    let (client, made) = server(|made| {
        let number = |path: &str| path.split_once("/gpunodes/n")?.1.get(..2)?.parse::<usize>().ok();
        let hangs = !made.path.contains("/status") && number(&made.path).is_some_and(|number| number < HANG);
        if hangs { (NO_ANSWER, json!({})) } else { accept(made) }
    });
    let writer = Writer::new(client, "gpu-operator".into(), Arc::default());
    let labelled = || paths(&made).iter().filter(|path| path.starts_with("PATCH /api/v1/nodes/n")).count();
    let (mut carry, mut pauses) = (Carry::default(), Vec::new());
    for _ in 0..3 {
        made.lock().expect("the list").clear();
        let began = Instant::now();
        let written = writer.apply(&plan, &mut carry).await;
        assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(written.iter().filter(|write| write.result.is_err()).count(), HANG);
        assert_eq!(labelled(), 100 - HANG, "all other nodes have been labelled");
        let ended = Instant::now();
        let none = writer.apply(&plan, &mut carry).await;
        let pause = carry.next(writer.uptime()).expect("an attempt");
        assert!(none.iter().all(|write| write.result.is_ok()) && Instant::now() == ended, "they are not attempted yet");
        pauses.push(pause.as_secs());
        tokio::time::sleep(pause).await;
    }
    assert_eq!(pauses, [5, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_carried_out_for_ten_seconds_at_most() {
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..300 {
        sim.join(format!("n{node:03}"), "2330", 8);
    }
    let (client, made) = server(|made| (LATE, accept(made).1));
    let began = Instant::now();
    let writer = Writer::new(client, "gpu-operator".into(), Arc::default());
    let written = writer.apply(&sim.plan(), &mut Carry::default()).await;
    assert!(written.iter().all(|write| write.result.is_ok()) && written.len() < 300, "{}", written.len());
    assert!(began.elapsed() <= Duration::from_secs(11), "{:?}", began.elapsed());
    assert!(!paths(&made).iter().any(|path| path.contains("/nodes/")), "labels come after all specs");
}

#[tokio::test]
async fn a_daemon_set_with_fields_of_other_managers_is_applied_and_its_spec_replaced() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let mut plan = sim.plan();
    plan.daemon_sets.pop_first();
    plan.daemon_sets.pop_first();
    let (name, write) = plan.daemon_sets.iter_mut().next().expect("one is left");
    (write.whole, plan.finalizers, plan.labels, plan.policies) = (true, [].into(), [].into(), [].into());
    let path = format!("PATCH /apis/apps/v1/namespaces/gpu-operator/daemonsets/{name}");
    let spec = serde_json::to_value(&write.set.spec).expect("JSON");
    plan.gpu_nodes.clear();
    let (client, made) =
        server(|made| if made.body.is_array() { (StatusCode::OK, json!({"metadata": {}})) } else { accept(made) });
    let written = Writer::new(client, "gpu-operator".into(), Arc::default()).apply(&plan, &mut Carry::default()).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
    assert_eq!(paths(&made), [path.clone(), path]);
    let made = made.lock().expect("the list");
    assert!(made[0].path.contains("force=true") && made[0].body["kind"] == "DaemonSet");
    assert_eq!(made[1].body, json!([{"op": "replace", "path": "/spec", "value": spec}]));
    assert!(
        made[1].path.contains("fieldManager=gpu-operator"),
        "the fields would belong to another manager: {}",
        made[1].path
    );
}

#[tokio::test]
async fn labels_of_a_node_are_applied_by_a_separate_manager_which_applies_nothing_else() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{nodeLabels: [{key: accelerator}]}");
    let (client, made) = server(accept);
    Writer::new(client, "gpu-operator".into(), Arc::default()).apply(&sim.plan(), &mut Carry::default()).await;
    let made = made.lock().expect("the list");
    let labels = made.iter().find(|made| made.path.starts_with("/api/v1/nodes/")).expect("a label write");
    assert!(labels.path.contains("fieldManager=gpu-operator%2Flabels"), "{}", labels.path);
    assert!(!labels.path.contains("force=true"), "a user's key is published without force: {}", labels.path);
    let keys: Vec<_> = labels.body["metadata"].as_object().expect("metadata").keys().collect();
    assert_eq!(keys, ["labels", "uid"], "the uid identifies the Node");
    assert!(labels.body.get("spec").is_none() && labels.body.get("status").is_none());
}

#[tokio::test]
async fn one_rejected_write_does_not_affect_the_others_and_has_a_class() {
    fn refuse_nodes(made: &Made) -> (StatusCode, Value) {
        if made.path.starts_with("/api/v1/nodes/a") {
            refusal(StatusCode::FORBIDDEN, "Forbidden")
        } else {
            accept(made)
        }
    }
    let sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", "{}");
    let (client, made) = server(refuse_nodes);
    let written =
        Writer::new(client, "gpu-operator".into(), Arc::default()).apply(&sim.plan(), &mut Carry::default()).await;
    let failed: Vec<_> = written.iter().filter_map(|write| write.result.as_ref().err()).collect();
    assert_eq!(failed.iter().map(|error| error.class()).collect::<Vec<_>>(), [Class::Forbidden]);
    assert!(failed[0].to_string().contains("label node a"), "{}", failed[0]);
    assert!(paths(&made).contains(&"PATCH /api/v1/nodes/b".to_owned()));
}

#[tokio::test]
async fn pruning_a_daemon_set_that_does_not_exist_succeeds() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.settle();
    sim.delete_policy("all");
    sim.run(1);
    let plan = sim.plan();
    assert!(!plan.prune.is_empty(), "{plan:#?}");
    let (client, _) =
        server(
            |made| {
                if made.method == Method::DELETE { refusal(StatusCode::NOT_FOUND, "NotFound") } else { accept(made) }
            },
        );
    let written =
        Writer::new(client, "gpu-operator".into(), Arc::<Mirrors>::default()).apply(&plan, &mut Carry::default()).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
}

#[tokio::test]
async fn only_the_gpu_node_that_the_plan_has_seen_is_deleted() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.leave_with_a_running_probe(&"a".into());
    sim.sleep(61);
    let (client, made) = server(|_| refusal(StatusCode::NOT_FOUND, "NotFound"));
    let writer = Writer::new(client, "gpu-operator".into(), Arc::default());
    writer.apply(&sim.plan(), &mut Carry::default()).await;
    let made = made.lock().expect("the list");
    let path = "/apis/gpu.nodestack.dev/v1alpha1/gpunodes/a";
    let mut deleted = made.iter().filter(|made| made.method == Method::DELETE);
    let deleted = deleted.find(|made| made.path.starts_with(path)).expect("a deletion");
    assert_eq!(deleted.body["preconditions"]["uid"].as_str(), sim.gpu_nodes[&"a".into()].metadata.uid.as_deref());
}

#[tokio::test(start_paused = true)]
async fn events_that_hang_delay_nothing_and_are_counted() {
    let (client, made) = server(|_| (NO_ANSWER, json!({})));
    let metrics = Arc::<Metrics>::default();
    let (publisher, publishing) = Publisher::new(client, Arc::clone(&metrics));
    let publishing = tokio::spawn(publishing);
    let transition = |node: usize| Transition {
        subject: Subject::Node(format!("n{node}").as_str().into(), "uid".into()),
        reason: Reason::GpuMissing,
        message: String::new(),
    };
    let began = Instant::now();
    (0..5000).for_each(|node| publisher.publish(&transition(node)));
    assert_eq!(Instant::now(), began);
    let count = |result: &str| {
        let text = metrics.text().expect("text");
        let line =
            text.lines().find(|line| line.starts_with(&format!("gpu_operator_events_total{{result=\"{result}\"}}")));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<usize>().ok()).unwrap_or_default()
    };
    assert_eq!(count("Dropped"), 5000 - 4096);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!((count("Failed"), count("Published")), (8, 0), "four at once, five seconds each");
    assert!(made.lock().expect("the list").len() <= 12);
    // The task ends with the last publisher.
    drop(publisher);
    publishing.await.expect("the task");
    assert_eq!(count("Failed"), 4096);
}

#[tokio::test]
async fn only_pods_that_use_a_gpu_and_have_not_ended_are_returned() {
    fn pods(made: &Made) -> (StatusCode, Value) {
        assert!(made.path.contains("spec.nodeName%3Da"), "{}", made.path);
        let pod = |name: &str, limits: Value, phase: &str| {
            json!({
                "metadata": {"name": name, "namespace": "team"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
                "status": {"phase": phase, "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": if phase == "Running" { json!({"running": {}}) } else { json!({"waiting": {}}) },
                }]},
            })
        };
        let claim = json!({
            "metadata": {"name": "claim", "namespace": "team"},
            "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]}, "status": {"phase": "Running"},
        });
        let plugin = |namespace: &str| {
            let labels = json!({gpu_operator_crd::keys::STAGE: "device-plugin"});
            json!({
                "metadata": {"name": "device-plugin", "namespace": namespace, "labels": labels},
                "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
            })
        };
        let items = [
            plugin("gpu-operator"),
            plugin("team"),
            claim,
            pod("gpu", json!({"nvidia.com/gpu": "2"}), "Running"),
            pod("slice", json!({"nvidia.com/mig-1g.5gb": "1"}), "Pending"),
            pod("none", json!({"cpu": "1"}), "Running"),
            pod("zero", json!({"nvidia.com/gpu": "0"}), "Running"),
            pod("third-party", json!({"example.com/gpu": "1"}), "Running"),
            pod("other", json!({"example.com/fpga": "1"}), "Running"),
            pod("ended", json!({"nvidia.com/gpu": "1"}), "Succeeded"),
        ];
        (StatusCode::OK, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
    }
    let (client, made) = server(pods);
    let node = NodeName::from("a");
    for (asks, expected) in [
        (GpuAsks::default(), &["team/gpu", "team/slice"][..]),
        (
            GpuAsks { resources: ["example.com/gpu".to_owned()].into(), claims: true },
            &["team/claim", "team/gpu", "team/slice", "team/third-party"],
        ),
    ] {
        let found = observe::gpu_pods(&client, "gpu-operator", &[node.clone()].into(), &asks).await.expect("an answer");
        let GpuPods { users, holders, plugins } = &found[&node];
        assert_eq!(users, expected);
        assert!(holders.contains(&"team/gpu".to_owned()) && !holders.contains(&"team/slice".to_owned()));
        let plugins: Vec<_> = plugins.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(plugins, ["device-plugin"]);
    }
    assert_eq!(made.lock().expect("the list").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_validation_log_is_read_and_a_node_that_does_not_answer_does_not_block() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&made);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let path = request.uri().to_string();
        kept.lock().expect("the list").push(path.clone());
        async move {
            let (status, text) = match path {
                path if path.contains("/silent") => std::future::pending().await,
                path if path.contains("/gone/") => {
                    let (status, body) = refusal(StatusCode::NOT_FOUND, "NotFound");
                    (status, body.to_string())
                }
                path if path.contains("/rotated/") => {
                    (StatusCode::OK, "unable to retrieve container logs for containerd://7".to_owned())
                }
                _ => (StatusCode::OK, "Test PASSED\nDone\n".to_owned()),
            };
            Response::builder().status(status).body(Body::from(text))
        }
    });
    let client = Client::new(service, "default");
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let pods = ["gone", "passed", "rotated", "silent"].map(str::to_owned).into();
    let words = observe::log_tails(&client, "gpu-operator", &pods, now).await;
    assert_eq!(words["passed"], Ok("Test PASSED\nDone\n".to_owned()));
    assert!(words["gone"].as_ref().is_err_and(|why| why.contains("NotFound")), "{words:?}");
    assert!(words["rotated"].is_err(), "kubelet answers successfully, but not with a log: {words:?}");
    assert_eq!(words["silent"], Err("no answer within 2 s".to_owned()));
    let asked = std::mem::take(&mut *made.lock().expect("the list"));
    let log = "/api/v1/namespaces/gpu-operator/pods/passed/log?&container=test&limitBytes=4096&tailLines=20";
    assert!(asked.iter().any(|path| path == log), "{asked:?}");

    // Regardless of how many do not answer, a pass waits once for some of them; later passes read the others.
    let pods: BTreeSet<String> = (0..100).map(|number| format!("silent-{number}")).collect();
    let began = Instant::now();
    let words = observe::log_tails(&client, "gpu-operator", &pods, now).await;
    assert!(began.elapsed() < Duration::from_secs(3) && (1..100).contains(&words.len()), "{}", words.len());
    let mut asked: BTreeSet<String> = words.into_keys().collect();
    for second in 1..10 {
        let now = k8s_openapi::jiff::Timestamp::from_second(second).expect("a time");
        asked.extend(observe::log_tails(&client, "gpu-operator", &pods, now).await.into_keys());
    }
    assert_eq!(asked, pods, "each log has been requested");
}

#[tokio::test]
async fn creating_a_pod_that_already_exists_succeeds() {
    fn already_exists(made: &Made) -> (StatusCode, Value) {
        if made.method == Method::POST { refusal(StatusCode::CONFLICT, "AlreadyExists") } else { accept(made) }
    }
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{readiness: {validation: {mode: OnInstall}}}");
    let plan = (0..60).find_map(|_| {
        let plan = sim.plan();
        let creates = !plan.pods.is_empty();
        sim.step_with(plan.clone());
        sim.sleep(1);
        creates.then_some(plan)
    });
    let (client, made) = server(already_exists);
    let writer = Writer::new(client, "gpu-operator".into(), Arc::<Mirrors>::default());
    let written = writer.apply(&plan.expect("a plan that creates a pod"), &mut Carry::default()).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
    let pods = paths(&made).into_iter().filter(|path| path == "POST /api/v1/namespaces/gpu-operator/pods");
    assert_eq!(pods.count(), 1);
}
