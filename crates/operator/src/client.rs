//! A client that holds bounded answers in memory: objects of users, their number and their size, must not exhaust the process.
//!
//! A page of a list whose text is too large is requested again with fewer objects, down to one. This is invisible to the caller: the
//! API server may return fewer objects than requested anyway. The answers to watches and of logs are streams, which are not collected.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

/// The maximum size of a page with several objects, in bytes. A hundred ordinary objects have a tenth of it.
pub const MAX_PAGE: usize = 8 << 20;
/// The maximum size of any other answer. etcd accepts objects of 1.5 MiB, which are a few times larger as JSON.
const MAX_ANSWER: usize = 16 << 20;
/// Answers up to this size are received concurrently, larger ones one after the other.
const MAX_CONCURRENT: usize = 1 << 20;
/// How long a large answer may take, for which others may wait.
const WITHIN: Duration = Duration::from_secs(30);
/// A page with less than this part of [`MAX_PAGE`] is followed by one of twice as many objects.
const SMALL: usize = 4;
/// The maximum number of lists whose pages are smaller than requested.
const MAX_LISTS: usize = 64;
/// The query parameters of a list that differ from page to page.
const LIMIT: &str = "limit";
const CONTINUE: &str = "continue";

pub fn bounded(inner: Client) -> Client {
    let namespace = inner.default_namespace().to_owned();
    let answers = Arc::new(Answers { inner, large: Semaphore::new(1), pages: Mutex::default() });
    let service = tower::service_fn(move |request| {
        let answers = Arc::clone(&answers);
        async move { answers.answer(request).await }
    });
    Client::new(service, namespace)
}

struct Answers {
    inner: Client,
    /// Held by the request whose large answer is being received. The runtime has one thread, so the caller has parsed an answer
    /// before the next one is received.
    large: Semaphore,
    /// The number of objects in a page of lists with large objects, by the list's URI without [`LIMIT`] and [`CONTINUE`].
    pages: Mutex<BTreeMap<String, usize>>,
}

/// The text of an answer, or that it is too large.
enum Text {
    Complete(Vec<u8>),
    TooLarge,
}

impl Answers {
    async fn answer(&self, request: Request<Body>) -> kube::Result<Response<Body>> {
        let list = List::of(&request);
        let Some(list) = list else {
            let is_stream = is_stream(request.uri());
            let (parts, body) = self.inner.send(request).await?.into_parts();
            if is_stream && parts.status.is_success() {
                return Ok(Response::from_parts(parts, body));
            }
            return match self.read(body, MAX_ANSWER).await? {
                Text::Complete(text) => Ok(Response::from_parts(parts, text.into())),
                Text::TooLarge => Err(failure(&format!("the answer has more than {MAX_ANSWER} bytes"))),
            };
        };
        loop {
            let count = self.page(&list);
            let most = if count == 1 { MAX_ANSWER } else { MAX_PAGE };
            let (parts, body) = self.inner.send(list.page(&request, count)?).await?.into_parts();
            match self.read(body, most).await? {
                Text::Complete(text) => {
                    if text.len() < MAX_PAGE / SMALL {
                        self.set_page(&list, count.saturating_mul(2));
                    }
                    return Ok(Response::from_parts(parts, text.into()));
                }
                Text::TooLarge if count > 1 => self.set_page(&list, count / 2),
                Text::TooLarge => return Err(failure(&format!("an object has more than {MAX_ANSWER} bytes"))),
            }
        }
    }

    /// Receives an answer of at most `most` bytes.
    async fn read(&self, mut body: Body, most: usize) -> kube::Result<Text> {
        let mut text = Vec::new();
        let small = receive(&mut body, &mut text, MAX_CONCURRENT.min(most)).await?;
        if small {
            return Ok(Text::Complete(text));
        }
        let permit: Option<SemaphorePermit<'_>> = self.large.acquire().await.ok();
        let whole = timeout(WITHIN, receive(&mut body, &mut text, most)).await;
        drop(permit);
        let whole =
            whole.map_err(|_| failure(&format!("a large answer takes longer than {} s", WITHIN.as_secs())))??;
        Ok(if whole { Text::Complete(text) } else { Text::TooLarge })
    }

    fn page(&self, list: &List) -> usize {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.get(&list.key).map_or(list.limit, |count| list.limit.min(*count))
    }

    fn set_page(&self, list: &List, count: usize) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if count >= list.limit {
            pages.remove(&list.key);
            return;
        }
        // A list that was not continued leaves an entry. Without it, its first pages are requested again.
        if pages.len() >= MAX_LISTS && !pages.contains_key(&list.key) {
            pages.clear();
        }
        pages.insert(list.key.clone(), count);
    }
}

struct List {
    key: String,
    limit: usize,
}

impl List {
    fn of(request: &Request<Body>) -> Option<Self> {
        let uri = request.uri();
        let value = parameters(uri).find_map(|parameter| parameter.strip_prefix(LIMIT)?.strip_prefix('='));
        let limit = value?.parse().ok().filter(|limit| *limit > 0);
        let is_same = |parameter: &&str| !is_named(parameter, LIMIT) && !is_named(parameter, CONTINUE);
        let same: Vec<_> = parameters(uri).filter(is_same).collect();
        let key = format!("{}?{}", uri.path(), same.join("&"));
        limit.filter(|_| request.method() == Method::GET && !is_stream(uri)).map(|limit| Self { key, limit })
    }

    fn page(&self, request: &Request<Body>, count: usize) -> kube::Result<Request<Body>> {
        let token = parameters(request.uri()).find(|parameter| is_named(parameter, CONTINUE));
        let token = token.map(|token| format!("&{token}")).unwrap_or_default();
        let separator = if self.key.ends_with('?') { "" } else { "&" };
        let mut page = Request::builder().uri(format!("{}{separator}{LIMIT}={count}{token}", self.key));
        if let Some(headers) = page.headers_mut() {
            headers.clone_from(request.headers());
        }
        page.body(Body::empty()).map_err(kube::Error::HttpError)
    }
}

fn parameters(uri: &Uri) -> impl Iterator<Item = &str> {
    uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty())
}

fn is_named(parameter: &str, name: &str) -> bool {
    parameter.split('=').next() == Some(name)
}

/// Returns whether the answer has no end, or need not have one.
fn is_stream(uri: &Uri) -> bool {
    parameters(uri).any(|parameter| parameter == "watch=true") || uri.path().ends_with("/log")
}

/// Appends a body to a text. Returns whether it has ended, with at most `most` bytes in all.
async fn receive(body: &mut Body, text: &mut Vec<u8>, most: usize) -> kube::Result<bool> {
    while text.len() <= most {
        let Some(frame) = body.frame().await else { return Ok(true) };
        if let Ok(data) = frame?.into_data() {
            text.extend_from_slice(&data);
        }
    }
    Ok(false)
}

fn failure(message: &str) -> kube::Error {
    kube::Error::Service(message.into())
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, TryStreamExt, stream};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, ResourceExt,
        api::{ListParams, LogParams, WatchParams},
    };
    use serde_json::json;
    use test_api_server::{Api as Server, Fault};

    use super::*;

    /// Returns a client of a server with so many objects of the sizes that `size` returns, and the server.
    fn client(count: usize, size: fn(usize) -> usize) -> (Client, Server) {
        let server = Server::new();
        for number in 0..count {
            let (name, text) = (format!("{number:03}"), "x".repeat(size(number)));
            let meta = json!({"name": name, "resourceVersion": "1"});
            let object = json!({"a": "b", "metadata": meta, "data": {"text": text}});
            server.put(&format!("/api/v1/namespaces/default/configmaps/{name}"), object);
        }
        (bounded(server.client()), server)
    }

    /// Lists all objects, and returns the size of each page.
    async fn list(client: &Client) -> kube::Result<Vec<usize>> {
        let api = Api::<ConfigMap>::all(client.clone());
        let mut params = ListParams::default().fields("a=b").limit(100);
        let (mut pages, mut count) = (Vec::new(), 0);
        loop {
            let page = api.list(&params).await?;
            pages.push(page.items.len());
            for object in page.items {
                assert_eq!(object.name_any(), format!("{count:03}"));
                count += 1;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(pages);
            }
        }
    }

    #[tokio::test]
    async fn pages_of_ordinary_objects_are_as_large_as_requested() {
        let (client, server) = client(250, |_| 10_000);
        assert_eq!(list(&client).await.unwrap(), [100, 100, 50]);
        assert_eq!(server.take().len(), 3);
    }

    #[tokio::test]
    async fn pages_of_large_objects_are_smaller_and_grow_again() {
        let (client, server) = client(120, |number| if number < 20 { 1_500_000 } else { 1000 });
        let pages = list(&client).await.unwrap();
        assert_eq!(pages, [3, 3, 3, 3, 3, 3, 3, 3, 6, 12, 24, 48, 6]);
        assert_eq!(server.take().len(), pages.len() + 5, "100, 50, 25, 12 and 6 are too many at first");
        list(&client).await.unwrap();
        let again = server.take().len();
        assert!(again <= pages.len() + 5, "{again}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_an_error() {
        let (client, _) = client(2, |number| if number == 0 { 9 << 20 } else { 17 << 20 });
        let error = list(&client).await.unwrap_err().to_string();
        assert!(error.contains("an object has more than 16777216 bytes"), "{error}");
        let (client, _) = self::client(1, |_| 9 << 20);
        assert_eq!(list(&client).await.unwrap(), [1], "it is larger than a page may be");
        let (client, _) = self::client(1, |_| 17 << 20);
        let error = Api::<ConfigMap>::default_namespaced(client).get("000").await.unwrap_err().to_string();
        assert!(error.contains("the answer has more than 16777216 bytes"), "{error}");
    }

    #[tokio::test]
    async fn streams_are_not_collected() {
        let (client, server) = client(0, |_| 0);
        let event =
            json!({"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "1"}}}).to_string() + "\n";
        let endless = move |_: &_| stream::repeat(event.clone()).boxed();
        server.fail(|_| true, Fault::Answered(Arc::new(endless)));
        let api = Api::<ConfigMap>::all(client.clone());
        let events = api.watch(&WatchParams::default(), "0").await.unwrap();
        assert_eq!(events.take(100_000).try_fold(0, async |count, _| Ok(count + 1)).await.unwrap(), 100_000);
        let api = Api::<k8s_openapi::api::core::v1::Pod>::default_namespaced(client);
        api.log_stream("a", &LogParams::default()).await.unwrap();
    }
}
