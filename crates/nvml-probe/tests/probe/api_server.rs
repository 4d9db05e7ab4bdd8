//! An API server for one kind that records its requests.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower::service_fn;

const PATH: &str = "/apis/gpu.nodestack.dev/v1alpha1/gpunodes";

/// One request: method and path, and its body.
pub type Asked = (String, Value);

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    object: Option<Value>,
    /// Error codes to answer with instead, in reverse order.
    failures: Vec<u16>,
    /// Fields of the report that the schema lacks.
    pruned: Vec<&'static str>,
}

#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

impl Server {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let uri = parts.uri.to_string();
                if uri.contains("watch=true") {
                    server.note(&parts.method, &uri, body);
                    return std::future::pending().await;
                }
                Ok::<_, Infallible>(server.answer(&parts.method, &uri, &body))
            }
        });
        Client::new(service, "default")
    }

    pub fn has(&self, object: Value) {
        self.0.lock().unwrap().object = Some(object);
    }

    pub fn has_none(&self) {
        self.0.lock().unwrap().object = None;
    }

    pub fn fails_next_with(&self, code: u16) {
        self.0.lock().unwrap().failures.push(code);
    }

    pub fn prunes(&self, field: &'static str) {
        self.0.lock().unwrap().pruned.push(field);
    }

    pub fn object(&self) -> Option<Value> {
        self.0.lock().unwrap().object.clone()
    }

    /// Returns the requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    fn note(&self, method: &Method, uri: &str, body: Value) {
        self.0.lock().unwrap().asked.push((format!("{method} {uri}"), body));
    }

    fn answer(&self, method: &Method, uri: &str, body: &Value) -> Response<Body> {
        self.note(method, uri, body.clone());
        let mut state = self.0.lock().unwrap();
        if let Some(code) = state.failures.pop() {
            return failure(code);
        }
        let path = uri.split('?').next().unwrap();
        if *method == Method::GET && path == PATH {
            let items: Vec<Value> = state.object.iter().cloned().collect();
            return reply(
                200,
                &json!({
                    "apiVersion": "gpu.nodestack.dev/v1alpha1",
                    "kind": "GpuNodeList",
                    "metadata": {"resourceVersion": "7"},
                    "items": items,
                }),
            );
        }
        if *method == Method::POST && path == PATH {
            if state.object.is_some() {
                return failure(409);
            }
            state.object = Some(body.clone());
            return reply(201, body);
        }
        if *method == Method::PATCH && path.ends_with("/status") {
            let pruned = state.pruned.clone();
            let Some(object) = &mut state.object else {
                return failure(404);
            };
            object["status"]["report"] = body["status"]["report"].clone();
            for field in pruned {
                object["status"]["report"].as_object_mut().unwrap().remove(field);
            }
            return reply(200, object);
        }
        failure(405)
    }
}

fn reply(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn failure(code: u16) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "AlreadyExists",
        _ => "InternalError",
    };
    reply(code, &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}))
}
