//! The writes of one plan: their order, what they contain, and what happens if they fail.

use std::{sync::Arc, time::Duration};

use gpu_operator::{
    drive::{Driver, Written},
    election::Leadership,
    error::Error,
    events::Publisher,
    metrics::Metrics,
    watch::{Answer, Mirrors},
};
use gpu_operator_crd::{Reason, keys};
use gpu_operator_plan::{
    Plan,
    catalogue::Catalogue,
    loop_memory::{Class, LoopState},
    output::{
        body::{Body, Kind, Part},
        events::{Subject, Transition},
        write::{Urgency, Write},
    },
    pass::Pass,
    revision,
    world::{NodeFacts, TrimmedNode, World},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use test_api_server::{Api, Fault, Made};
use test_support::planned::Planned;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{CLASSES, GPU_NODES, NODES, PODS, POLICIES, SETS, store},
    sim::Sim,
};

/// Returns an API server that stores what a simulation contains.
fn api_of(sim: &Sim) -> Api {
    let api = Api::new();
    store(&api, sim);
    api
}

/// Returns a fleet that is not installed yet, and its API server, which takes most of a second for each request.
fn slow_fleet(nodes: usize) -> (Api, Sim) {
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..nodes {
        sim.join(format!("n{node:03}"), "2330", 8);
    }
    let api = api_of(&sim);
    api.fail(|_| true, Fault::Late(Duration::from_millis(900)));
    (api, sim)
}

pub fn driver(api: &Api) -> Driver {
    let Sim { settings, .. } = Sim::new();
    Driver::new(settings, Catalogue::builtin().expect("a catalogue"), api.client(), mirrors(api))
}

/// Returns mirrors of what the API server stores.
fn mirrors(api: &Api) -> Arc<Mirrors> {
    let mirrors = Mirrors::default();
    api.all(POLICIES).into_iter().for_each(|policy| mirrors.learn(Answer::Policy(policy)));
    api.all(NODES).into_iter().for_each(|node| mirrors.learn(Answer::Node(node)));
    api.all(GPU_NODES).into_iter().for_each(|gpu_node| mirrors.learn(Answer::GpuNode(gpu_node)));
    api.all(SETS).into_iter().for_each(|set| mirrors.learn(Answer::DaemonSet(set)));
    api.all(CLASSES).into_iter().for_each(|class| mirrors.learn(Answer::RuntimeClass(class)));
    Arc::new(mirrors)
}

pub async fn apply(api: &Api, plan: &Plan) -> Vec<Written> {
    carry_out(&driver(api), plan, &mut LoopState::default()).await
}

pub async fn carry_out(driver: &Driver, plan: &Plan, carry: &mut LoopState) -> Vec<Written> {
    carry_out_as(driver, plan, carry, &Leadership::sole()).await
}

async fn carry_out_as(driver: &Driver, plan: &Plan, carry: &mut LoopState, leadership: &Leadership) -> Vec<Written> {
    let (now, world) = (Timestamp::UNIX_EPOCH, World::default());
    let mut plan = plan.clone();
    // No status waits here.
    plan.writes.iter_mut().for_each(|write| write.urgency = Urgency::Immediate);
    let (mut pass, requests) = Pass::carry_out(plan, &world, now, &mut driver.around(carry));
    driver.drive(&mut pass, requests, carry, leadership).await
}

fn paths(api: &Api) -> Vec<String> {
    api.take().iter().map(Made::url).collect()
}

fn is_conflict(written: &Written) -> bool {
    written.result.as_ref().is_err_and(|error| error.class() == Class::Conflict)
}

#[tokio::test]
async fn writes_come_after_the_writes_that_they_depend_on() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let api = api_of(&sim);
    let written = apply(&api, &sim.plan()).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
    let made = api.take();
    assert!(made.iter().all(|made| made.is_apply() && made.query["fieldManager"].starts_with("gpu-operator")));
    let paths: Vec<_> = made.iter().map(Made::url).collect();
    let at = |part: &str| {
        paths.iter().position(|path| path.starts_with(part)).unwrap_or_else(|| panic!("{part}: {paths:#?}"))
    };
    let order = [
        at(&format!("{POLICIES}/all")),
        at(SETS),
        at(&format!("{GPU_NODES}/a")),
        at(&format!("{NODES}/a")),
        at(&format!("{GPU_NODES}/a/status")),
        at(&format!("{POLICIES}/all/status")),
    ];
    assert!(order.is_sorted(), "{order:?}: {paths:#?}");
    assert_eq!(paths.len(), 8, "finalizer, three DaemonSets, spec, labels, two statuses: {paths:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_pass_ends_with_the_term_of_its_replica() {
    let (api, sim) = slow_fleet(100);
    let end = Instant::now() + Duration::from_secs(3);
    let (_election, term) = tokio::sync::watch::channel(Some(end));
    let (driver, leadership) = (driver(&api), Leadership::elected(term));
    let written = carry_out_as(&driver, &sim.plan(), &mut LoopState::default(), &leadership).await;
    let made = api.take();
    assert!(made.len() > 16 && made.iter().all(|made| made.at < end), "{}", made.len());
    // What was begun is completed.
    assert_eq!((written.len(), end.elapsed() < Duration::from_secs(1)), (made.len(), true));
}

#[tokio::test(start_paused = true)]
async fn a_plan_begins_writes_for_seven_seconds_at_most() {
    let (api, sim) = slow_fleet(300);
    let began = Instant::now();
    let written = apply(&api, &sim.plan()).await;
    assert!(written.iter().all(|write| write.result.is_ok()) && written.len() < 300, "{}", written.len());
    assert!(began.elapsed() <= Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(!paths(&api).iter().any(|path| path.starts_with(NODES)), "labels come after all specs");
}

#[tokio::test]
async fn a_daemon_set_with_others_fields_is_applied_and_replaced() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let (api, mut plan) = (api_of(&sim), sim.plan());
    plan.writes.retain(|write| write.target.kind == Kind::DaemonSet);
    apply(&api, &plan).await;
    let mut sets = plan.writes.iter_mut().filter_map(|write| match &mut write.body {
        Body::DaemonSet(set) => Some((&write.target.name, set)),
        _ => None,
    });
    let (name, set) = sets.next().expect("a DaemonSet");
    set.whole = true;
    let (path, spec) = (format!("{SETS}/{name}"), api.get(&format!("{SETS}/{name}"))["spec"].clone());
    api.write("webhook", &path, |set| set["spec"]["template"]["spec"]["hostname"] = "x".into());
    assert!(apply(&api, &plan).await.iter().all(|write| write.result.is_ok()));
    let set = api.get(&path);
    assert_eq!(set["spec"], spec);
    assert!(!set["metadata"]["managedFields"].to_string().contains("webhook"), "{set:#}");
    assert!(api.take().iter().all(|made| made.query["fieldManager"].starts_with("gpu-operator")));
}

#[tokio::test]
async fn labels_of_a_node_are_applied_by_a_manager_of_their_own() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{nodeLabels: [{key: accelerator}]}");
    let api = api_of(&sim);
    apply(&api, &sim.plan()).await;
    let made = api.take();
    let labels = made.iter().find(|made| made.path.starts_with(NODES)).expect("a label write");
    assert_eq!(labels.query["fieldManager"], "gpu-operator/labels");
    assert!(!labels.query.contains_key("force"), "a user's key is published without force");
    let keys: Vec<_> = labels.body["metadata"].as_object().expect("metadata").keys().collect();
    assert_eq!(keys, ["labels", "name", "resourceVersion", "uid"], "the uid identifies the Node");
    assert!(labels.body.get("spec").is_none() && labels.body.get("status").is_none());
}

#[tokio::test]
async fn a_write_for_an_earlier_state_is_not_made() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let api = api_of(&sim);
    let driver = driver(&api);
    carry_out(&driver, &sim.plan(), &mut LoopState::default()).await;
    api.take();
    // The same plan again, as by an operator that was paused: the mirrors show the record and the labels of the first pass.
    let written = carry_out(&driver, &sim.plan(), &mut LoopState::default()).await;
    let class = |target: Part, kind| {
        let is_it = |written: &&Written| written.write.target.part == target && written.write.target.kind == kind;
        written.iter().find(is_it).and_then(|written| Some(written.result.as_ref().err()?.class()))
    };
    assert_eq!(class(Part::Object, Kind::GpuNode), Some(Class::Conflict));
    assert!(!paths(&api).iter().any(|path| path.starts_with(NODES) || *path == format!("{GPU_NODES}/a")));
    // An operator whose mirrors are behind makes the request, and the API server rejects it.
    let behind = self::driver(&api);
    api.write("another operator", &format!("{NODES}/a"), |node| node["metadata"]["labels"]["x"] = "y".into());
    let mut plan = sim.plan();
    plan.writes.retain(|write| write.target.part == Part::Labels);
    for write in &mut plan.writes {
        if let Body::Labels(labels) = &mut write.body {
            labels.seen = revision::labelled_revisions(&NodeFacts::of(&api.all::<TrimmedNode>(NODES)[0]));
        }
    }
    let written = carry_out(&behind, &plan, &mut LoopState::default()).await;
    assert_eq!(written[0].result.as_ref().err().map(Error::class), Some(Class::Conflict), "{written:?}");
    assert_eq!(paths(&api), [format!("{NODES}/a")]);
}

#[tokio::test]
async fn pruning_a_daemon_set_that_does_not_exist_succeeds() {
    let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
    sim.delete_policy("all");
    sim.run(1);
    let mut plan = sim.plan();
    assert!(!plan.deleted(Kind::DaemonSet).is_empty(), "{plan:#?}");
    plan.writes.retain(|write| write.target.kind == Kind::DaemonSet);
    let written = apply(&api_of(&sim), &plan).await;
    assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
}

#[tokio::test]
async fn only_the_gpu_node_that_the_plan_has_seen_is_deleted() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.leave_with_a_running_probe(&"a".into());
    sim.sleep(61);
    let (api, path) = (api_of(&sim), format!("{GPU_NODES}/a"));
    api.write("nvml-probe", &path, |gpu_node| gpu_node["metadata"]["uid"] = "another".into());
    assert!(apply(&api, &sim.plan()).await.iter().any(is_conflict));
    assert!(!api.get(&path).is_null());
    let uid = sim.gpu_nodes[&"a".into()].metadata.uid.clone();
    api.write("nvml-probe", &path, |gpu_node| gpu_node["metadata"]["uid"] = json!(uid));
    assert!(!apply(&api, &sim.plan()).await.iter().any(is_conflict));
    assert!(api.get(&path).is_null());
}

#[tokio::test]
async fn what_has_changed_since_it_was_seen_is_not_deleted() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let api = api_of(&sim);
    apply(&api, &sim.plan()).await;
    api.write("gpu-operator", &format!("{CLASSES}/nvidia"), |class| {
        *class = json!({"metadata": {"labels": {keys::NAME: keys::OPERATOR_NAME}}, "handler": "nvidia"});
    });
    for (kind, path) in
        [(Kind::DaemonSet, api.paths(SETS).remove(0)), (Kind::RuntimeClass, api.paths(CLASSES).remove(0))]
    {
        let name = path.rsplit('/').next().unwrap_or_default();
        let plan = Plan { writes: vec![Write::delete(kind, name)], ..Plan::default() };
        let outdated = driver(&api);
        api.write("gpu-operator", &path, |object| object["metadata"]["annotations"] = json!({"in": "use again"}));
        let written = carry_out(&outdated, &plan, &mut LoopState::default()).await;
        assert!(written.len() == 1 && is_conflict(&written[0]) && !api.get(&path).is_null(), "{written:?}");
        assert!(apply(&api, &plan).await.iter().all(|written| written.result.is_ok()));
        assert!(api.get(&path).is_null());
    }
}

#[tokio::test]
async fn creating_a_pod_that_already_exists_succeeds() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{readiness: {validation: {mode: OnInstall}}}");
    let plan = (0..60).find_map(|_| {
        let plan = sim.plan();
        let creates = !plan.tests().is_empty();
        sim.step_with(plan.clone());
        sim.sleep(1);
        creates.then_some(plan)
    });
    let (api, plan) = (api_of(&sim), plan.expect("a plan that creates a pod"));
    for _ in 0..2 {
        let written = apply(&api, &plan).await;
        assert!(written.iter().all(|write| write.result.is_ok()), "{written:?}");
        assert_eq!(paths(&api).iter().filter(|path| *path == PODS).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_hang_delay_nothing_and_are_counted() {
    let api = Api::new();
    api.fail(|_| true, Fault::Hangs);
    let metrics = Arc::<Metrics>::default();
    let (publisher, publishing) = Publisher::new(api.client(), Arc::clone(&metrics));
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
    sleep(Duration::from_secs(11)).await;
    assert_eq!((count("Failed"), count("Published")), (8, 0), "four at once, five seconds each");
    assert!(api.take().len() <= 12);
    // The task ends with the last publisher.
    drop(publisher);
    publishing.await.expect("the task");
    assert_eq!(count("Failed"), 4096);
}
