//! Diagnosis end to end: from the watches of a model of the API server to the Events that are written.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{Method, Request, Response},
};
use futures::{StreamExt, channel::mpsc, future::BoxFuture, stream};
use gpu_operator::{
    advise::Adviser,
    election::Leadership,
    events::Publisher,
    installation_watch,
    metrics::Metrics,
    watch::{self, Mirrors},
};
use gpu_operator_diagnose::Mistake;
use kube::Client;
use serde_json::{Value, json};
use strum::IntoEnumIterator;
use tokio::sync::Notify;

/// Far longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_mins(1);
const PODS: &str = "/api/v1/pods";
const EVENTS: &str = "/api/v1/events";

type Line = Result<Bytes, std::convert::Infallible>;

/// A line of a watch.
fn line(kind: &str, object: &Value) -> Bytes {
    (json!({"type": kind, "object": object}).to_string() + "\n").into()
}

/// A model of the API server: lists, watches that stay open, and the requests that were made.
struct Server {
    lists: BTreeMap<&'static str, Vec<Value>>,
    /// The Events that are listed for any pod.
    pod_events: Vec<Value>,
    watches: Mutex<BTreeMap<String, mpsc::UnboundedSender<Line>>>,
    made: Mutex<Vec<(Method, String)>>,
    posts: mpsc::UnboundedSender<Value>,
}

impl Server {
    fn answer(&self, request: &Request<kube::client::Body>, body: &Value) -> Body {
        let path = request.uri().path().to_owned();
        self.made.lock().expect("the list").push((request.method().clone(), request.uri().to_string()));
        if request.method() == Method::POST {
            self.posts.unbounded_send(body.clone()).expect("the receiver is open");
            return Body::from(body.to_string());
        }
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            let (sender, lines) = mpsc::unbounded();
            // Without a version, a watch begins with the existing objects.
            let there = self.lists.get(path.as_str()).filter(|_| query.ends_with("resourceVersion="));
            for object in there.into_iter().flatten() {
                sender.unbounded_send(Ok(line("ADDED", object))).expect("the watch is open");
            }
            self.watches.lock().expect("the watches").insert(path, sender);
            // The watch stays open when there are no more changes.
            return Body::from_stream(lines.chain(stream::pending()));
        }
        let items = if path.ends_with("namespaces/team/events") {
            &self.pod_events
        } else {
            self.lists.get(path.as_str()).unwrap_or(const { &Vec::new() })
        };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "100"}, "items": items});
        Body::from(list.to_string())
    }

    fn made(&self, method: &Method, path: &str) -> Vec<String> {
        let made = self.made.lock().expect("the list");
        made.iter().filter(|(m, p)| m == method && p.starts_with(path)).map(|(_, path)| path.clone()).collect()
    }
}

/// The operator's watches and its diagnosis, connected to a [`Server`].
struct Scene {
    server: Arc<Server>,
    posts: mpsc::UnboundedReceiver<Value>,
    metrics: Arc<Metrics>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Scene {
    fn new(pods: Vec<Value>, refused: Vec<Value>, pod_events: Vec<Value>) -> Self {
        let (sender, posts) = mpsc::unbounded();
        let lists = [(PODS, pods), (EVENTS, refused)].into();
        let server =
            Arc::new(Server { lists, pod_events, watches: Mutex::default(), made: Mutex::default(), posts: sender });
        let kept = Arc::clone(&server);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = Arc::clone(&kept);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let request = Request::from_parts(parts, kube::client::Body::empty());
                Response::builder().body(server.answer(&request, &serde_json::from_slice(&body).unwrap_or_default()))
            }
        });
        let client = Client::new(service, "default");
        let (mirrors, metrics) = (Arc::<Mirrors>::default(), Arc::<Metrics>::default());
        let wake = Arc::<Notify>::default();
        let mut tasks = watch::follow_all(&client, "gpu-operator", &mirrors, &wake);
        tasks.extend(installation_watch::watch_crds(&client, &mirrors, &metrics, &wake));
        tasks.extend(watch::follow_pods(&client, "gpu-operator", &mirrors));
        let (publisher, publishing) = Publisher::new(client.clone(), Arc::clone(&metrics));
        let adviser =
            Adviser { leadership: Leadership::sole(), client, mirrors, metrics: Arc::clone(&metrics), publisher };
        tasks.push(Box::pin(adviser.run()) as BoxFuture<'static, ()>);
        tasks.push(Box::pin(publishing));
        Self { server, posts, metrics, tasks: tasks.into_iter().map(tokio::spawn).collect() }
    }

    /// Returns the reason of the next Event that is written, and the kind and name of its object.
    async fn told(&mut self) -> (String, String) {
        let event = tokio::time::timeout(PATIENCE, self.posts.next()).await.expect("an Event").expect("an Event");
        assert_eq!((&event["action"], &event["regarding"]["namespace"]), (&json!("Diagnose"), &json!("team")));
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let about = format!("{} {}", word(&event["regarding"]["kind"]), word(&event["regarding"]["name"]));
        (word(&event["reason"]), about)
    }

    /// Sends an event on a watch that is already open.
    fn say(&self, path: &str, kind: &str, object: &Value) {
        let watches = self.server.watches.lock().expect("the watches");
        watches.get(path).expect("a watch").unbounded_send(Ok(line(kind, object))).expect("the watch is open");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

fn pod(name: &str, version: u32, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "resourceVersion": version.to_string(),
            "creationTimestamp": "2020-01-01T00:00:00Z",
        },
        "spec": spec, "status": {"phase": "Pending"},
    })
}

fn asking(resource: &str) -> Value {
    json!({"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]})
}

fn legacy(name: &str, version: u32) -> Value {
    pod(name, version, &asking("alpha.kubernetes.io/nvidia-gpu"))
}

fn refusal() -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "web.1", "namespace": "team", "resourceVersion": "5"},
        "involvedObject": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "namespace": "team", "name": "web", "uid": "web"},
        "reason": "FailedCreate", "lastTimestamp": now,
        "message": "Error creating: pods \"web-x\" is forbidden: pod rejected: RuntimeClass \"nvidia\" not found",
    })
}

fn told(reason: &str, about: &str) -> (String, String) {
    (reason.to_owned(), about.to_owned())
}

#[tokio::test]
async fn a_mistake_is_reported_once_on_the_pod_or_its_owner() {
    let cpu = pod("plain", 3, &asking("cpu"));
    let mut scene = Scene::new(vec![legacy("old", 1), cpu], vec![refusal()], vec![]);
    let first = [scene.told().await, scene.told().await];
    assert!(first.contains(&told("LegacyGpuResource", "Pod old")), "{first:?}");
    assert!(first.contains(&told("RuntimeClassMissing", "ReplicaSet web")), "{first:?}");
    let mut bound = legacy("old", 101);
    bound["spec"]["nodeName"] = "somewhere".into();
    scene.say(PODS, "MODIFIED", &bound);
    scene.say(PODS, "ADDED", &legacy("second", 102));
    assert_eq!(scene.told().await, told("LegacyGpuResource", "Pod second"), "the first pod is not reported again");
    let standing = |count: u32| format!("gpu_operator_pod_findings{{reason=\"LegacyGpuResource\"}} {count}\n");
    assert!(scene.metrics.text().expect("a text").contains(&standing(2)));
    // A pod that leaves Pending no longer matches the watch.
    let mut running = legacy("old", 103);
    running["status"]["phase"] = "Running".into();
    scene.say(PODS, "DELETED", &running);
    scene.say(PODS, "DELETED", &legacy("second", 104));
    scene.say(PODS, "ADDED", &legacy("third", 105));
    assert_eq!(scene.told().await, told("LegacyGpuResource", "Pod third"));
    assert!(scene.metrics.text().expect("a text").contains(&standing(1)));
    let asked = scene.server.made(&Method::GET, "/api/v1/namespaces/team/events");
    assert!(asked.is_empty(), "no Events are read unless they are needed: {asked:?}");
    let written =
        scene.server.made.lock().expect("the list").iter().filter(|(method, _)| *method != Method::GET).count();
    assert_eq!(written, 4, "only Events are written");
}

#[tokio::test]
async fn events_are_read_on_demand_and_of_few_pods_at_once() {
    let spec = json!({"nodeName": "n", "runtimeClassName": "nvidia", "containers": [{"name": "main"}]});
    let pods = (0..20).map(|number| pod(&format!("p{number}"), 1, &spec)).collect();
    let voice = json!({
        "metadata": {"name": "e"}, "involvedObject": {}, "reason": "FailedCreatePodSandBox",
        "message": "Failed to create pod sandbox: no runtime for \"nvidia\" is configured",
    });
    let mut scene = Scene::new(pods, vec![], vec![voice]);
    assert_eq!(scene.told().await.0, "RuntimeHandlerMissing");
    let asked = scene.server.made(&Method::GET, "/api/v1/namespaces/team/events");
    assert_eq!(asked.len(), 8, "{asked:?}");
    assert!(asked.iter().all(|path| path.contains("involvedObject.uid%3Dp") && path.contains("limit=50")), "{asked:?}");
}

/// The pods that are checked for third-party drivers.
const NOT_ENDED: &str = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

#[tokio::test]
async fn watches_are_restricted_by_field_selectors() {
    let mut scene = Scene::new(vec![legacy("old", 1)], vec![], vec![]);
    scene.told().await;
    let pending = "status.phase%3DPending%2Cmetadata.namespace%21%3Dgpu-operator";
    for (path, fields) in [(PODS, &[pending, NOT_ENDED][..]), (EVENTS, &["reason%3DFailed"])] {
        let made = scene.server.made(&Method::GET, path);
        let made: Vec<_> = made.iter().filter(|made| made[path.len()..].starts_with('?')).collect();
        let bounded = |made: &&String| fields.iter().any(|fields| made.contains(fields));
        assert!(!made.is_empty() && made.iter().all(bounded), "{made:?}");
    }
}

#[tokio::test]
async fn without_diagnosis_other_namespaces_show_only_foreign_drivers() {
    let mut scene = Scene::new(vec![], vec![], vec![]);
    scene.tasks.drain(..).for_each(|task| task.abort());
    scene.server.made.lock().expect("the list").clear();
    let server = Arc::clone(&scene.server);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let answer = server.answer(&request, &Value::Null);
        async move { Response::builder().body(answer) }
    });
    let mirrors = Arc::<Mirrors>::default();
    let wake = Arc::<Notify>::default();
    let client = Client::new(service, "default");
    let mut tasks = watch::follow_all(&client, "gpu-operator", &mirrors, &wake);
    tasks.extend(installation_watch::watch_crds(&client, &mirrors, &Arc::default(), &wake));
    scene.tasks = tasks.into_iter().map(tokio::spawn).collect();
    while !mirrors.missing().is_empty() {
        tokio::time::timeout(PATIENCE, wake.notified()).await.expect("a list");
    }
    assert!(mirrors.symptoms().is_none());
    assert!(scene.server.made(&Method::GET, EVENTS).is_empty());
    let pods = scene.server.made(&Method::GET, PODS);
    assert!(!pods.is_empty() && pods.iter().all(|made| made.contains(NOT_ENDED)), "{pods:?}");
}

#[test]
fn the_docs_describe_every_reason_and_no_other() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/diagnosis.md");
    let docs = std::fs::read_to_string(docs).expect("docs/operate/diagnosis.md");
    // An item with the reason, the type of its Event and the meaning, and below it what to do.
    let items: Vec<&str> = docs.split("\n- `").skip(1).collect();
    let documented: Vec<_> = items
        .iter()
        .filter_map(|item| {
            let (reason, rest) = item.split_once("` (")?;
            let (kind, meaning) = rest.split_once("): ")?;
            meaning.contains("\n  - ").then_some((reason, kind))
        })
        .collect();
    let kind = |mistake: Mistake| if mistake.is_warning() { "Warning" } else { "Normal" };
    let expected: Vec<_> = Mistake::iter().map(|mistake| (mistake.as_str(), kind(mistake))).collect();
    assert_eq!(documented, expected);
}
