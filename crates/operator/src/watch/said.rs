//! The watch of Events, which are things said rather than things that are: the API server has no history of them by which a
//! watch could go on after some minutes, so that listing them anew each time would never end.
//!
//! A watch without a version begins with what there is, at the price of that list and without one. That its beginning is over
//! is not told, and shows in its silence.

use std::time::Duration;

use futures::{Stream, StreamExt, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, ResourceExt,
    api::WatchParams,
    core::WatchEvent,
    runtime::watcher::{self, Error},
};
use tokio::time::timeout;

/// Silence after which a watch is past its beginning.
const SILENCE: Duration = Duration::from_secs(1);

/// What the API server answers where it has forgotten what came after a version: HTTP's "Gone".
const TOO_OLD: u16 = 410;

/// Where the following of Events is.
enum At {
    /// No watch is open.
    Closed,
    /// A watch tells what there is.
    Beginning(BoxStream<'static, kube::Result<WatchEvent<Event>>>),
    /// A watch tells what is new.
    Open(BoxStream<'static, kube::Result<WatchEvent<Event>>>),
}

/// Follows Events by their fields, as [`watcher::watcher`] follows objects that have a history.
pub fn follow_said(
    api: Api<Event>,
    fields: &str,
) -> impl Stream<Item = watcher::Result<watcher::Event<Event>>> + use<> {
    let params = WatchParams::default().fields(fields);
    stream::unfold((At::Closed, String::new()), move |(mut at, mut version)| {
        let (api, params) = (api.clone(), params.clone());
        async move {
            loop {
                let told;
                (told, at) = step(&api, &params, at, &mut version).await;
                if let Some(told) = told {
                    return Some((told, (at, version)));
                }
            }
        }
    })
}

type Told = Option<watcher::Result<watcher::Event<Event>>>;

/// One step; `version` is that of the last Event that was told of, from which a watch goes on if it can.
async fn step(api: &Api<Event>, params: &WatchParams, at: At, version: &mut String) -> (Told, At) {
    let (mut watch, beginning) = match at {
        At::Closed => {
            return match api.watch(params, version).await {
                Ok(watch) if version.is_empty() => (Some(Ok(watcher::Event::Init)), At::Beginning(watch.boxed())),
                Ok(watch) => (None, At::Open(watch.boxed())),
                Err(kube::Error::Api(status)) if status.code == TOO_OLD && !version.is_empty() => {
                    version.clear();
                    (None, At::Closed)
                }
                Err(error) => (Some(Err(Error::WatchStartFailed(error))), At::Closed),
            };
        }
        At::Beginning(watch) => (watch, true),
        At::Open(watch) => (watch, false),
    };
    let next = if beginning { timeout(SILENCE, watch.next()).await } else { Ok(watch.next().await) };
    let Ok(next) = next else {
        return (Some(Ok(watcher::Event::InitDone)), At::Open(watch));
    };
    let told = match next {
        Some(Ok(WatchEvent::Added(event) | WatchEvent::Modified(event))) => {
            *version = event.resource_version().unwrap_or_default();
            Some(if beginning { watcher::Event::InitApply(event) } else { watcher::Event::Apply(event) })
        }
        Some(Ok(WatchEvent::Deleted(event))) => {
            *version = event.resource_version().unwrap_or_default();
            Some(watcher::Event::Delete(event))
        }
        Some(Ok(WatchEvent::Bookmark(bookmark))) => {
            version.clone_from(&bookmark.metadata.resource_version);
            None
        }
        // It was ended, as every watch is after some minutes; what it has not told in its beginning the next one does.
        None => {
            if beginning {
                version.clear();
            }
            return (None, At::Closed);
        }
        Some(Ok(WatchEvent::Error(status))) => {
            version.clear();
            // There is nothing that would have kept it young.
            let told = (status.code != TOO_OLD).then_some(Err(Error::WatchError(status)));
            return (told, At::Closed);
        }
        Some(Err(error)) => {
            version.clear();
            return (Some(Err(Error::WatchFailed(error))), At::Closed);
        }
    };
    let at = if beginning { At::Beginning(watch) } else { At::Open(watch) };
    (told.map(Ok), at)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{
        body::Body,
        http::{Request, Response},
    };
    use kube::Client;
    use serde_json::{Value, json};

    use super::*;

    /// What the API server does with a watch.
    enum Step {
        /// It tells something.
        Tell(Value),
        /// It has nothing to tell for a while.
        Pause,
        /// It ends it. Without, it stays open.
        End,
    }

    fn told(kind: &str, name: &str, version: &str) -> Step {
        Step::Tell(json!({"type": kind, "object": {
            "kind": "Event", "apiVersion": "v1", "involvedObject": {},
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": version},
        }}))
    }

    fn too_old() -> Step {
        Step::Tell(json!({"type": "ERROR", "object": {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410,
        }}))
    }

    /// What is told of, in words, until nothing comes any more, and the versions from which watches were asked for.
    async fn follow(watches: Vec<Vec<Step>>) -> (Vec<String>, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        let watches = Mutex::new(watches.into_iter());
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(query.contains("watch=true") && query.contains("fieldSelector=reason%3DFailedCreate"), "{query}");
            kept.lock().unwrap().push(query.rsplit_once("resourceVersion=").unwrap().1.to_owned());
            let steps = watches.lock().unwrap().next().unwrap_or_default();
            let stays = !matches!(steps.last(), Some(Step::End));
            let lines = stream::iter(steps).filter_map(async |step| match step {
                Step::Tell(event) => Some(Ok::<_, std::io::Error>(format!("{event}\n"))),
                Step::Pause => {
                    tokio::time::sleep(SILENCE * 3 / 2).await;
                    None
                }
                Step::End => None,
            });
            let rest = if stays { stream::pending().boxed() } else { stream::empty().boxed() };
            async move { Response::builder().body(Body::from_stream(lines.chain(rest))) }
        });
        let api = Api::<Event>::all(Client::new(service, "default"));
        let mut events = follow_said(api, "reason=FailedCreate").boxed();
        let mut words = Vec::new();
        while let Ok(Some(event)) = timeout(SILENCE * 2, events.next()).await {
            words.push(match event.unwrap() {
                watcher::Event::Init => "begin".to_owned(),
                watcher::Event::InitApply(event) => format!("there {}", event.name_any()),
                watcher::Event::InitDone => "done".to_owned(),
                watcher::Event::Apply(event) => format!("new {}", event.name_any()),
                watcher::Event::Delete(event) => format!("gone {}", event.name_any()),
            });
        }
        let asked = asked.lock().unwrap().clone();
        (words, asked)
    }

    #[tokio::test]
    async fn a_watch_goes_on_where_it_can_and_begins_anew_where_it_cannot() {
        let (words, asked) = follow(vec![
            vec![
                told("ADDED", "a", "5"),
                Step::Pause,
                told("MODIFIED", "b", "7"),
                told("DELETED", "a", "8"),
                Step::End,
            ],
            vec![told("ADDED", "c", "9"), Step::End],
            vec![too_old()],
            vec![told("ADDED", "c", "9")],
        ])
        .await;
        assert_eq!(words, ["begin", "there a", "done", "new b", "gone a", "new c", "begin", "there c", "done"]);
        assert_eq!(asked, ["", "8", "9", ""]);
    }

    #[tokio::test]
    async fn a_beginning_that_is_broken_off_is_told_anew() {
        let (words, asked) = follow(vec![
            vec![told("ADDED", "a", "5"), Step::End],
            vec![told("ADDED", "a", "5"), told("ADDED", "b", "6")],
        ])
        .await;
        assert_eq!(words, ["begin", "there a", "begin", "there a", "there b", "done"]);
        assert_eq!(asked, ["", ""]);
    }
}
