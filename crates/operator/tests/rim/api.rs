//! An API server in memory, as a service of kube's client: it stores JSON by path, serves watches from a history, and fails as a
//! test demands.

mod fields;
mod store;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, LazyLock, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode},
};
use fields::Manager;
pub use fields::merge;
use futures::{StreamExt, channel::mpsc, stream};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::{Refusal, Store};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

/// How long an answer takes, and an event of a watch.
const LATENCY: Duration = Duration::from_millis(5);

/// Returns the time according to tokio's clock, in whole seconds.
pub fn clock() -> Timestamp {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let elapsed = Instant::now().saturating_duration_since(*START).as_secs();
    start + SignedDuration::from_secs(elapsed.cast_signed())
}

/// A request as it was made. The path does not contain the subresource.
#[derive(Clone, Debug)]
pub struct Made {
    pub at: Instant,
    /// The name of the client that made it.
    pub client: &'static str,
    pub method: Method,
    pub path: String,
    pub subresource: &'static str,
    pub query: BTreeMap<String, String>,
    pub content_type: String,
    pub body: Value,
}

impl Made {
    async fn read(client: &'static str, request: Request<kube::client::Body>) -> Self {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body");
        let path = parts.uri.path();
        let subresource = ["status", "log", "eviction"].into_iter().find(|name| path.ends_with(&format!("/{name}")));
        let suffix = subresource.map(|name| format!("/{name}")).unwrap_or_default();
        let path = path.strip_suffix(&suffix).unwrap_or(path).to_owned();
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Self {
            at: Instant::now(),
            client,
            method: parts.method,
            path,
            subresource: subresource.unwrap_or_default(),
            query: query.into_owned().collect(),
            content_type: parts
                .headers
                .get("content-type")
                .and_then(|kind| kind.to_str().ok())
                .unwrap_or_default()
                .into(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    /// Returns its path with the subresource.
    pub fn url(&self) -> String {
        [self.path.as_str(), self.subresource].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
    }

    pub fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    pub fn is_list(&self) -> bool {
        self.method == Method::GET && self.names_collection() && !self.is_watch()
    }

    /// Returns whether it is a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.content_type == "application/apply-patch+yaml"
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Returns whether it is for a collection: `/api/v1/nodes`, `/apis/apps/v1/namespaces/n/daemonsets`.
    fn names_collection(&self) -> bool {
        self.path.split('/').skip(if self.path.starts_with("/api/") { 3 } else { 4 }).count() % 2 == 1
    }

    /// Returns whether its selectors select an object.
    fn selects(&self, object: &Value) -> bool {
        let parts = |selector| self.query.get(selector).into_iter().flat_map(|parts: &String| parts.split(','));
        let field = |path: &str| {
            let value = path.split('.').fold(object, |at, key| &at[key]);
            value.as_str().unwrap_or_default().to_owned()
        };
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        parts("labelSelector").all(|part| match part.split_once('=') {
            Some((key, value)) => label(key) == Some(value),
            None => match part.strip_prefix('!') {
                Some(key) => label(key).is_none(),
                None => label(part).is_some(),
            },
        }) && parts("fieldSelector").all(|part| match part.split_once("!=") {
            Some((path, value)) => field(path) != value,
            None => part.split_once('=').is_some_and(|(path, value)| field(path) == value),
        })
    }

    fn manager(&self, operation: &'static str) -> Manager {
        let name = self.query.get("fieldManager").cloned().unwrap_or_default();
        Manager { name, operation, subresource: self.subresource }
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
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
    /// It is answered with this text.
    Text(&'static str),
    /// It is answered with this text over and over.
    Endless(&'static str),
}

type Faults = Box<dyn Fn(&Made) -> Fault + Send>;

/// The versions of the store, and how often all watches have been ended.
#[derive(Clone, Copy, Default)]
struct Update {
    version: u64,
    cuts: u64,
}

/// The API server.
pub struct Api {
    store: Mutex<Store>,
    made: Mutex<Vec<Made>>,
    /// The watch and the name of each object that a watch has sent.
    sent: Mutex<Vec<(String, String)>>,
    faults: Mutex<Faults>,
    updates: watch::Sender<Update>,
}

impl Api {
    pub fn new() -> Arc<Self> {
        let _ = clock();
        Arc::new(Self {
            store: Mutex::default(),
            made: Mutex::default(),
            sent: Mutex::default(),
            faults: Mutex::new(Box::new(|_| Fault::None)),
            updates: watch::Sender::default(),
        })
    }

    pub fn client(self: &Arc<Self>) -> Client {
        self.client_of("")
    }

    /// Returns a client whose requests have this name.
    pub fn client_of(self: &Arc<Self>, name: &'static str) -> Client {
        let api = Arc::clone(self);
        Client::new(tower::service_fn(move |request| Arc::clone(&api).answer(name, request)), "default")
    }

    /// Determines what happens to requests from now on.
    pub fn fail(&self, faults: impl Fn(&Made) -> Fault + Send + 'static) {
        *self.faults.lock().expect("the faults") = Box::new(faults);
    }

    /// Returns the requests since the last call.
    pub fn take(&self) -> Vec<Made> {
        std::mem::take(&mut self.made.lock().expect("the requests"))
    }

    /// Returns the path of the watch and the name of each object that watches have sent since the last call.
    pub fn take_sent(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.sent.lock().expect("the objects"))
    }

    pub fn get(&self, path: &str) -> Value {
        self.store().get(path).cloned().unwrap_or_default()
    }

    /// Returns the objects of a collection.
    pub fn all<T: DeserializeOwned>(&self, collection: &str) -> Vec<T> {
        self.store().all(collection).map(|object| serde_json::from_value(object.clone()).expect("an object")).collect()
    }

    /// Returns the paths of the objects of a collection.
    pub fn paths(&self, collection: &str) -> Vec<String> {
        let store = self.store();
        store
            .all(collection)
            .map(|object| format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default()))
            .collect()
    }

    /// Changes an object or creates it, as another manager.
    pub fn write(&self, manager: &str, path: &str, change: impl FnOnce(&mut Value)) {
        let manager = Manager { name: manager.to_owned(), operation: "Update", subresource: "" };
        self.store().write(manager, path, change);
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
        self.updates.send_modify(|update| update.cuts += 1);
    }

    /// Forgets the history, so that no watch can continue, and ends all watches.
    pub fn expire(&self) {
        let mut store = self.store();
        store.version += 1;
        store.oldest = store.version;
        drop(store);
        self.cut();
    }

    /// Returns once an object changes.
    pub async fn changed(&self) {
        let mut updates = self.updates.subscribe();
        let _ = updates.changed().await;
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("the store")
    }

    fn publish(&self) {
        let version = self.store().version;
        self.updates.send_if_modified(|update| std::mem::replace(&mut update.version, version) != version);
    }

    async fn answer(
        self: Arc<Self>,
        client: &'static str,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, Infallible> {
        let mut made = Made::read(client, request).await;
        let fault = (self.faults.lock().expect("the faults"))(&made);
        self.made.lock().expect("the requests").push(made.clone());
        sleep(LATENCY).await;
        match fault {
            Fault::None | Fault::AnsweredLate(_) => {}
            Fault::Late(by) => sleep(by).await,
            Fault::Expired => drop(made.query.insert("resourceVersion".into(), "0".into())),
            Fault::Hangs => std::future::pending().await,
            Fault::Text(text) => return Ok(Response::new(Body::from(text))),
            Fault::Endless(text) => {
                let texts = stream::repeat(text).map(Ok::<_, Infallible>);
                return Ok(Response::new(Body::from_stream(texts)));
            }
            Fault::NotServed => {
                let mut response = Response::new(Body::from("404 page not found\n".to_owned()));
                *response.status_mut() = StatusCode::NOT_FOUND;
                return Ok(response);
            }
            Fault::Refused(code) => {
                let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
                return Ok(refuse(Refusal::new(code, &reason, format!("{code} for {}", made.path))));
            }
        }
        if made.is_watch() {
            let (events, lines) = mpsc::unbounded();
            tokio::spawn(self.watch(made, events));
            return Ok(Response::new(Body::from_stream(lines.map(Ok::<_, Infallible>))));
        }
        let answer = self.store().answer(&made);
        self.publish();
        if let Fault::AnsweredLate(by) = fault {
            sleep(by).await;
        }
        Ok(answer.map_or_else(refuse, |value| Response::new(Body::from(value.to_string()))))
    }

    /// Serves a watch until its time is over, the client drops it, or all watches are ended.
    async fn watch(self: Arc<Self>, made: Made, events: mpsc::UnboundedSender<String>) {
        let send = |kind: &str, object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            self.sent.lock().expect("the objects").push((made.path.clone(), name));
            // The type comes first, as in the answers of the API server.
            events.unbounded_send(format!("{{\"type\":{},\"object\":{object}}}\n", json!(kind))).is_ok()
        };
        let mut updates = self.updates.subscribe();
        let cuts = updates.borrow_and_update().cuts;
        let number = |name: &str| made.query.get(name).and_then(|value| value.parse().ok());
        let end = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(290));
        let mut from = number("resourceVersion");
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
                _ = updates.changed() => sleep(LATENCY).await,
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

fn refuse(refusal: Refusal) -> Response<Body> {
    let Refusal { code, reason, message, causes } = refusal;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code.as_u16(),
        "details": {"causes": causes},
    });
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = code;
    response
}
