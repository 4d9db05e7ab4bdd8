//! The watch of Events. The API server keeps no history of Events from which a watch could continue after some minutes, so a
//! watcher that lists them first would list them over and over.
//!
//! A watch without a version begins with the existing Events. This costs as much as a list, but replaces it. The API server
//! does not signal the end of this initial part; it is assumed when no Event arrives for some time.

use std::{fmt::Debug, time::Duration};

use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use kube::{
    Api, Resource, ResourceExt,
    api::WatchParams,
    core::WatchEvent,
    runtime::{watcher, watcher::Error},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The silence that ends the initial part of the first watch, for which the operator waits.
const SILENCE: Duration = Duration::from_millis(250);
/// The silence that ends the initial part of every later watch, which may be slow.
const LATER_SILENCE: Duration = Duration::from_secs(10);
/// The pause after an initial part that was interrupted.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum duration of the initial part: if Events keep arriving, there is no silence.
const LONGEST: Duration = Duration::from_secs(10);
/// The API server ends every watch before this time. A connection that is silent for longer is dead.
const IDLE: Duration = Duration::from_mins(5);
/// The API server's status code if it no longer has the changes since a version: HTTP 410, "Gone".
const TOO_OLD: u16 = 410;

type Watch<E> = BoxStream<'static, kube::Result<WatchEvent<E>>>;
type Item<E> = Option<watcher::Result<watcher::Event<E>>>;

/// An Event, or a part of it.
pub trait AnyEvent: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static {}

impl<E: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static> AnyEvent for E {}

enum State<E> {
    Closed,
    /// A watch sends the existing Events, until this time at most.
    Beginning(Watch<E>, Instant),
    Open(Watch<E>),
}

/// Watches Events by field selector, as [`watcher::watcher`] watches objects that have a history.
pub fn watch_events<E: AnyEvent>(
    api: Api<E>,
    fields: &str,
) -> impl Stream<Item = watcher::Result<watcher::Event<E>>> + use<E> {
    let params = WatchParams::default().fields(fields);
    let follower = Follower { api, params, version: String::new(), begun: false };
    stream::unfold((follower, State::Closed), |(mut follower, mut state)| async move {
        loop {
            let item;
            (item, state) = follower.step(state).await;
            if let Some(item) = item {
                return Some((item, (follower, state)));
            }
        }
    })
}

struct Follower<E> {
    api: Api<E>,
    params: WatchParams,
    /// The version of the last Event, from which the next watch continues if possible.
    version: String,
    /// Whether the initial part of a watch has been completed.
    begun: bool,
}

impl<E: AnyEvent> Follower<E> {
    async fn step(&mut self, state: State<E>) -> (Item<E>, State<E>) {
        match state {
            State::Closed => self.open().await,
            State::Beginning(mut watch, until) => {
                let silence = if self.begun { LATER_SILENCE } else { SILENCE };
                let by = until.min(Instant::now() + silence);
                match timeout_at(by, watch.next()).await {
                    Err(_) => self.finish_initial(watch),
                    // A change is not part of the initial Events.
                    Ok(Some(Ok(event @ (WatchEvent::Modified(_) | WatchEvent::Deleted(_))))) => {
                        let rest = stream::iter([Ok(event)]).chain(watch).boxed();
                        self.finish_initial(rest)
                    }
                    Ok(Some(Ok(WatchEvent::Added(event)))) => {
                        self.version = event.resource_version().unwrap_or_default();
                        (Some(Ok(watcher::Event::InitApply(event))), State::Beginning(watch, until))
                    }
                    Ok(Some(Ok(WatchEvent::Bookmark(_)))) => (None, State::Beginning(watch, until)),
                    Ok(broken_off) => {
                        // The next watch sends the remaining Events. The pause keeps it from being opened in a tight loop.
                        self.version.clear();
                        sleep(PAUSE).await;
                        ended(broken_off)
                    }
                }
            }
            State::Open(mut watch) => match timeout(IDLE, watch.next()).await {
                Err(_) | Ok(None) => (None, State::Closed),
                Ok(Some(Ok(WatchEvent::Added(event) | WatchEvent::Modified(event)))) => {
                    self.version = event.resource_version().unwrap_or_default();
                    (Some(Ok(watcher::Event::Apply(event))), State::Open(watch))
                }
                Ok(Some(Ok(WatchEvent::Deleted(event)))) => {
                    self.version = event.resource_version().unwrap_or_default();
                    (Some(Ok(watcher::Event::Delete(event))), State::Open(watch))
                }
                Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => {
                    self.version.clone_from(&bookmark.metadata.resource_version);
                    (None, State::Open(watch))
                }
                Ok(broken_off) => {
                    self.version.clear();
                    ended(broken_off)
                }
            },
        }
    }

    async fn open(&mut self) -> (Item<E>, State<E>) {
        match self.api.watch(&self.params, &self.version).await {
            Ok(watch) if self.version.is_empty() => {
                (Some(Ok(watcher::Event::Init)), State::Beginning(watch.boxed(), Instant::now() + LONGEST))
            }
            Ok(watch) => (None, State::Open(watch.boxed())),
            Err(kube::Error::Api(status)) if status.code == TOO_OLD && !self.version.is_empty() => {
                self.version.clear();
                (None, State::Closed)
            }
            Err(error) => (Some(Err(Error::WatchStartFailed(error))), State::Closed),
        }
    }

    fn finish_initial(&mut self, watch: Watch<E>) -> (Item<E>, State<E>) {
        self.begun = true;
        (Some(Ok(watcher::Event::InitDone)), State::Open(watch))
    }
}

fn ended<E>(last: Option<kube::Result<WatchEvent<E>>>) -> (Item<E>, State<E>) {
    let item = match last {
        Some(Err(error)) => Some(Err(Error::WatchFailed(error))),
        // Expired versions are expected, because there were no bookmarks to keep the version current.
        Some(Ok(WatchEvent::Error(status))) => (status.code != TOO_OLD).then_some(Err(Error::WatchError(status))),
        _ => None,
    };
    (item, State::Closed)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::Event;
    use serde_json::{Value, json};
    use test_api_server::{Api as Server, Fault, Made};

    use super::*;

    /// Longer than any timeout of the watch. Tokio advances the paused time automatically.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A step of the API server in a watch.
    enum Step {
        /// It sends an event.
        Tell(Value),
        /// It sends nothing for longer than the silence.
        Pause,
        /// It sends nothing for less than the silence.
        Breath,
        /// It ends the watch. Otherwise the watch stays open.
        End,
    }

    fn item(kind: &str, name: &str, version: &str) -> Step {
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

    /// Returns the received events as text until nothing arrives any more, and the versions from which watches were opened.
    async fn follow(watches: Vec<Vec<Step>>, patience: Duration) -> (Vec<String>, Vec<String>) {
        let watches = Mutex::new(watches.into_iter());
        let answer = move |_: &Made| {
            let steps = watches.lock().unwrap().next().unwrap_or_default();
            let stays = !matches!(steps.last(), Some(Step::End));
            let lines = stream::iter(steps).filter_map(async |step| match step {
                Step::Tell(event) => Some(format!("{event}\n")),
                Step::Pause => {
                    sleep(SILENCE * 3 / 2).await;
                    None
                }
                Step::Breath => {
                    sleep(SILENCE / 2).await;
                    None
                }
                Step::End => None,
            });
            let rest = if stays { stream::pending().boxed() } else { stream::empty().boxed() };
            lines.chain(rest).boxed()
        };
        let server = Server::new();
        server.fail(|_| true, Fault::Answered(Arc::new(answer)));
        let api = Api::<Event>::all(server.client());
        let mut events = watch_events(api, "reason=FailedCreate").boxed();
        let mut words = Vec::new();
        while let Ok(Some(event)) = timeout(patience, events.next()).await {
            words.push(match event.unwrap() {
                watcher::Event::Init => "begin".to_owned(),
                watcher::Event::InitApply(event) => format!("there {}", event.name_any()),
                watcher::Event::InitDone => "done".to_owned(),
                watcher::Event::Apply(event) => format!("new {}", event.name_any()),
                watcher::Event::Delete(event) => format!("gone {}", event.name_any()),
            });
        }
        let made = server.take();
        assert!(
            made.iter().all(|made| made.is_watch() && made.query["fieldSelector"] == "reason=FailedCreate"),
            "{made:?}"
        );
        (words, made.into_iter().map(|made| made.query["resourceVersion"].clone()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_continues_from_its_version_unless_that_has_expired() {
        let (words, asked) = follow(
            vec![
                vec![
                    item("ADDED", "a", "5"),
                    Step::Pause,
                    item("MODIFIED", "b", "7"),
                    item("DELETED", "a", "8"),
                    Step::End,
                ],
                vec![item("ADDED", "c", "9"), Step::End],
                vec![too_old()],
                vec![item("ADDED", "c", "9")],
            ],
            PATIENCE,
        )
        .await;
        assert_eq!(words, ["begin", "there a", "done", "new b", "gone a", "new c", "begin", "there c", "done"]);
        assert_eq!(asked, ["", "8", "9", ""]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_initial_part_is_sent_again() {
        let (words, asked) = follow(
            vec![vec![item("ADDED", "a", "5"), Step::End], vec![item("ADDED", "a", "5"), item("ADDED", "b", "6")]],
            PATIENCE,
        )
        .await;
        assert_eq!(words, ["begin", "there a", "begin", "there a", "there b", "done"]);
        assert_eq!(asked, ["", ""]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_or_the_time_limit_ends_the_initial_part() {
        let (words, _) = follow(vec![vec![item("ADDED", "a", "5"), item("MODIFIED", "a", "6")]], PATIENCE).await;
        assert_eq!(words, ["begin", "there a", "done", "new a"]);
        let short = || [item("ADDED", "a", "5"), Step::Breath];
        let (words, _) = follow(vec![std::iter::repeat_with(short).take(120).flatten().collect()], PATIENCE).await;
        let done = words.iter().position(|word| word == "done").unwrap();
        assert!((70..90).contains(&done) && words[done + 1] == "new a", "{words:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        let watches = vec![vec![item("ADDED", "a", "5")], vec![item("ADDED", "b", "6")]];
        let (words, asked) = follow(watches, IDLE + PATIENCE).await;
        assert_eq!(words, ["begin", "there a", "done", "new b"]);
        assert_eq!(asked, ["", "5", "6"]);
    }
}
