//! An API server in memory: it stores JSON by path, serves watches from a history, and fails as a test demands. It is reached as a service
//! of kube's client, and on the loopback interface.
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    reason = "test support fails like a test"
)]

mod fields;
mod request;
mod store;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Request, Response, StatusCode},
};
use fields::Manager;
pub use fields::merge;
use futures::{StreamExt, channel::mpsc, stream, stream::BoxStream};
use kube::{Client, Resource, ResourceExt};
pub use request::Made;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
pub use store::clock;
use store::{Refusal, Store};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

/// The texts of which an answer consists.
pub type Texts = BoxStream<'static, String>;

/// What happens to a request.
#[derive(Clone)]
pub enum Fault {
    /// It is rejected with this status code.
    Refused(StatusCode),
    /// Its API version is not served: the answer is plain text.
    NotServed,
    /// It is neither carried out nor answered.
    Hangs,
    /// It is carried out and answered after this time.
    Late(Duration),
    /// It is carried out at once and answered after this time.
    AnsweredLate(Duration),
    /// The version from which a watch continues has expired.
    Expired,
    /// It is carried out without this field of its body, which the schema lacks.
    Drops(&'static str),
    /// It is not carried out, and this is the answer.
    Answered(Arc<dyn Fn(&Made) -> Texts + Send + Sync>),
}

impl Fault {
    /// It is answered with this text.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::Answered(Arc::new(move |_| stream::iter([text.clone()]).boxed()))
    }
}

/// The requests that a fault is for, how many of them are left, and the fault.
struct Rule {
    is_for: Box<dyn Fn(&Made) -> bool + Send>,
    left: usize,
    fault: Fault,
}

/// The versions of the store, and how often all watches have been ended.
#[derive(Clone, Copy, Default)]
struct Update {
    version: u64,
    cuts: u64,
}

#[derive(Default)]
struct Server {
    latency: Duration,
    store: Mutex<Store>,
    made: Mutex<Vec<Made>>,
    /// The watch and the name of each object that a watch has sent.
    sent: Mutex<Vec<(String, String)>>,
    rules: Mutex<Vec<Rule>>,
    updates: watch::Sender<Update>,
}

/// The API server.
#[derive(Clone)]
pub struct Api(Arc<Server>);

impl Api {
    /// Creates one that answers at once.
    pub fn new() -> Self {
        Self::with_latency(Duration::ZERO)
    }

    /// Creates one whose answers, and events of watches, take this time.
    pub fn with_latency(latency: Duration) -> Self {
        let _ = clock();
        Self(Arc::new(Server { latency, ..Server::default() }))
    }

    pub fn client(&self) -> Client {
        self.client_of("")
    }

    /// Returns a client whose requests have this name.
    pub fn client_of(&self, name: &'static str) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                Ok::<_, Infallible>(api.answer(Made::new(name, parts, &body)).await)
            }
        });
        Client::new(service, "default")
    }

    /// Serves requests on the loopback interface until the test ends.
    pub async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let api = self.clone();
        let app = Router::new().fallback(move |request: Request<Body>| async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.expect("a body");
            api.answer(Made::new("", parts, &body)).await
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    /// Lets such requests fail from now on. A later call precedes an earlier one.
    pub fn fail(&self, is_for: impl Fn(&Made) -> bool + Send + 'static, fault: Fault) -> &Self {
        self.fail_times(usize::MAX, is_for, fault)
    }

    /// Lets the next such requests fail.
    pub fn fail_times(&self, left: usize, is_for: impl Fn(&Made) -> bool + Send + 'static, fault: Fault) -> &Self {
        let rule = Rule { is_for: Box::new(is_for), left, fault };
        self.0.rules.lock().expect("the faults").push(rule);
        self
    }

    /// Lets requests that name this resource, subresource or object lack a right.
    pub fn forbid(&self, name: &'static str) -> &Self {
        self.fail(move |made| made.names(name), Fault::Refused(StatusCode::FORBIDDEN))
    }

    /// Lets requests for a path be answered with a text.
    pub fn answer_with(&self, path: &str, text: impl Into<String>) -> &Self {
        let path = path.to_owned();
        self.fail(move |made| made.url() == path, Fault::text(text))
    }

    /// Lets no request fail from now on.
    pub fn heal(&self) {
        self.0.rules.lock().expect("the faults").clear();
    }

    /// Returns the requests since the last call.
    pub fn take(&self) -> Vec<Made> {
        std::mem::take(&mut self.0.made.lock().expect("the requests"))
    }

    /// Returns the path of the watch and the name of each object that watches have sent since the last call.
    pub fn take_sent(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.sent.lock().expect("the objects"))
    }

    pub fn get(&self, path: &str) -> Value {
        self.store().get(path).cloned().unwrap_or_default()
    }

    /// Returns the objects of a collection.
    pub fn all<T: DeserializeOwned>(&self, collection: &str) -> Vec<T> {
        self.store().all(collection).map(|object| serde_json::from_value(object.clone()).expect("an object")).collect()
    }

    /// Returns all objects.
    pub fn objects(&self) -> Vec<Value> {
        self.store().objects().cloned().collect()
    }

    /// Returns the paths of the objects of a collection.
    pub fn paths(&self, collection: &str) -> Vec<String> {
        self.store().paths(collection)
    }

    /// Stores an object exactly as it is.
    pub fn put(&self, path: &str, object: Value) -> &Self {
        self.store().put(path, object);
        self.publish();
        self
    }

    /// Stores an object of a type exactly as it is.
    pub fn add<K: Resource<DynamicType = ()> + Serialize>(&self, object: &K) -> &Self {
        let path = format!("{}/{}", K::url_path(&(), object.meta().namespace.as_deref()), object.name_any());
        let mut value = json!(object);
        (value["apiVersion"], value["kind"]) = (K::api_version(&()).into(), K::kind(&()).into());
        self.put(&path, value)
    }

    /// Changes an object or creates it, as another manager.
    pub fn write(&self, manager: &str, path: &str, change: impl FnOnce(&mut Value)) {
        let manager = Manager { name: manager.to_owned(), operation: "Update", subresource: "" };
        self.store().write(manager, path, change);
        self.publish();
    }

    /// Applies the status of an object, as if its manager had requested it.
    pub fn apply_status(&self, manager: &str, path: &str, status: &Value) {
        let uri = format!("{path}/status?force=true&fieldManager={manager}");
        let request = Request::patch(uri).header("content-type", "application/apply-patch+yaml").body(());
        let (parts, ()) = request.expect("a request").into_parts();
        let made = Made::new("", parts, &json!({"status": status}).to_string().into());
        assert!(self.store().answer(&made).is_ok(), "{made:?}");
        self.publish();
    }

    pub fn delete(&self, path: &str) {
        let mut store = self.store();
        let object = store.find(path).expect("an object");
        store.remove(path, object);
        drop(store);
        self.publish();
    }

    /// Ends all watches.
    pub fn cut(&self) {
        self.0.updates.send_modify(|update| update.cuts += 1);
    }

    /// Forgets the history, so that no watch can continue, and ends all watches.
    pub fn expire(&self) {
        self.store().forget();
        self.cut();
    }

    /// Returns once an object changes.
    pub async fn changed(&self) {
        let mut updates = self.0.updates.subscribe();
        let _ = updates.changed().await;
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().expect("the store")
    }

    fn publish(&self) {
        let version = self.store().version;
        self.0.updates.send_if_modified(|update| std::mem::replace(&mut update.version, version) != version);
    }

    /// Returns what happens to a request, which is counted.
    fn fault(&self, made: &Made) -> Option<Fault> {
        let mut rules = self.0.rules.lock().expect("the faults");
        let rule = rules.iter_mut().rev().find(|rule| rule.left > 0 && (rule.is_for)(made))?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    async fn answer(self, mut made: Made) -> Response<Body> {
        let fault = self.fault(&made);
        self.0.made.lock().expect("the requests").push(made.clone());
        if !self.0.latency.is_zero() {
            sleep(self.0.latency).await;
        }
        match &fault {
            None | Some(Fault::AnsweredLate(_)) => {}
            Some(Fault::Late(by)) => sleep(*by).await,
            Some(Fault::Expired) => drop(made.query.insert("resourceVersion".into(), "0".into())),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Drops(field)) => {
                let (parent, name) = field.rsplit_once('/').expect("a JSON pointer");
                let parent = made.body.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
                parent.remove(name);
            }
            Some(Fault::Answered(texts)) => return streamed(texts(&made)),
            Some(Fault::NotServed) => {
                return response(StatusCode::NOT_FOUND, Body::from("404 page not found\n"));
            }
            Some(Fault::Refused(code)) => {
                let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
                return refuse(Refusal::new(*code, &reason, format!("{code} for {}", made.path)));
            }
        }
        if made.is_watch() {
            let (events, lines) = mpsc::unbounded();
            tokio::spawn(self.watch(made, events));
            return streamed(lines.boxed());
        }
        let answer = self.store().answer(&made);
        self.publish();
        if let Some(Fault::AnsweredLate(by)) = fault {
            sleep(by).await;
        }
        answer.map_or_else(refuse, |value| response(StatusCode::OK, Body::from(value.to_string())))
    }

    /// Serves a watch until its time is over, the client drops it, or all watches are ended.
    async fn watch(self, made: Made, events: mpsc::UnboundedSender<String>) {
        let send = |kind: &str, object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            self.0.sent.lock().expect("the objects").push((made.path.clone(), name));
            // The type comes first, as in the answers of the API server.
            events.unbounded_send(format!("{{\"type\":{},\"object\":{object}}}\n", json!(kind))).is_ok()
        };
        let mut updates = self.0.updates.subscribe();
        let cuts = updates.borrow_and_update().cuts;
        let end = Instant::now() + Duration::from_secs(made.number("timeoutSeconds").unwrap_or(290));
        let mut from = made.number("resourceVersion");
        loop {
            let (found, version) = {
                let store = self.store();
                (store.since(from, &made), store.version)
            };
            let Some(found) = found else {
                send("ERROR", json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}));
                return;
            };
            from = Some(version);
            if !found.into_iter().all(|(kind, object)| send(kind, object)) {
                return;
            }
            tokio::select! {
                _ = updates.changed() => sleep(self.0.latency).await,
                () = sleep_until(end) => {
                    let bookmark = json!({"kind": "", "apiVersion": "", "metadata": {"resourceVersion": version.to_string()}});
                    if made.query.contains_key("allowWatchBookmarks") {
                        send("BOOKMARK", bookmark);
                    }
                    return;
                }
            }
            if updates.borrow_and_update().cuts != cuts {
                return;
            }
        }
    }
}

fn response(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
}

fn streamed(texts: Texts) -> Response<Body> {
    response(StatusCode::OK, Body::from_stream(texts.map(|text| Ok::<_, Infallible>(Bytes::from(text)))))
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let Refusal { code, reason, message, causes } = refusal;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code.as_u16(),
        "details": {"causes": causes},
    });
    response(code, Body::from(status.to_string()))
}
