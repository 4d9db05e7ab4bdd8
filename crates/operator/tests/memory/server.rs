//! An API server on the loopback interface, which generates objects while it sends them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Method, Request},
};
use futures::{StreamExt, stream};
use serde_json::json;
use tokio::net::TcpListener;

use crate::objects;

/// The size of a request that the operator makes.
const MAX_REQUEST: usize = 1 << 20;

/// What the operator has done so far.
#[derive(Debug, Default)]
pub struct Server {
    lists: AtomicUsize,
}

impl Server {
    /// Starts the server, which ends with the test.
    pub async fn start() -> (Arc<Self>, SocketAddr) {
        let server = Arc::<Self>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let serving = Arc::clone(&server);
        let app = Router::new().fallback(move |request| async move { serving.answer(request).await });
        tokio::spawn(async move { axum::serve(listener, app).await });
        (server, address)
    }

    async fn answer(&self, request: Request<Body>) -> Body {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let parameters: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if request.method() != Method::GET {
            let body = axum::body::to_bytes(request.into_body(), MAX_REQUEST).await.expect("a body");
            let is_policy = path.contains("/clustergpupolicies/");
            return if is_policy { Body::from(objects::policy().to_string()) } else { Body::from(body) };
        }
        let (count, object) = objects::of(&path);
        if parameters.contains_key("watch") {
            // A watch without a version begins with the existing objects. It stays open.
            let is_first = parameters.get("resourceVersion").is_none_or(String::is_empty);
            let existing = (0..if is_first { count } else { 0 })
                .map(move |number| format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", object(number)));
            return body(stream::iter(existing).chain(stream::pending()));
        }
        self.lists.fetch_add(1, Ordering::Relaxed);
        let number = |name: &str| parameters.get(name).and_then(|value| value.parse::<usize>().ok());
        let first = number("continue").unwrap_or_default();
        let end = number("limit").map_or(count, |limit| count.min(first + limit));
        let next = if end < count { end.to_string() } else { String::new() };
        let metadata = json!({"resourceVersion": "10000", "continue": next});
        let head = format!("{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":[");
        let items = (first..end).map(move |number| {
            let comma = if number == first { "" } else { "," };
            format!("{comma}{}", object(number))
        });
        body(stream::iter([head].into_iter().chain(items).chain(["]}".to_owned()])))
    }
}

fn body(parts: impl futures::Stream<Item = String> + Send + 'static) -> Body {
    Body::from_stream(parts.map(|part| Ok::<_, Infallible>(Bytes::from(part))))
}
