//! Drive: carries out the requests of a pass, several at a time, and passes it the answers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use gpu_operator_plan::{
    catalogue::Catalogue,
    loop_memory::LoopState,
    output::write::Write,
    pass::{Answer, Pass, PassContext, Request},
    settings::Settings,
    time::Uptime,
};
use kube::Client;
use tokio::{
    select,
    time::{Instant, timeout, timeout_at},
};

use crate::{apply::Writer, election::Leadership, error::Error, observe, watch::Mirrors};

/// The maximum number of concurrent requests, without those that have not been answered within [`SLOW`].
const MAX_REQUESTS: usize = 16;
/// The time after which the answer to a write is no longer waited for before the next write is made.
const SLOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Written {
    pub write: Arc<Write>,
    pub result: Result<(), Error>,
}

/// The driver of all passes.
pub struct Driver {
    settings: Settings,
    catalogue: Catalogue,
    client: Client,
    writer: Writer,
    started: Instant,
}

enum Outcome<'d> {
    Read(Answer),
    Written(Arc<Write>, Result<(), Error>),
    /// A write has not been answered within [`SLOW`].
    Slow(Arc<Write>, BoxFuture<'d, Result<(), Error>>),
}

impl Driver {
    pub fn new(settings: Settings, catalogue: Catalogue, client: Client, mirrors: Arc<Mirrors>) -> Self {
        let writer = Writer::new(client.clone(), settings.namespace.clone(), mirrors);
        Self { settings, catalogue, client, writer, started: Instant::now() }
    }

    /// The time since its creation: the clock of what passes carry over.
    pub fn uptime(&self) -> Uptime {
        self.started.elapsed()
    }

    /// Returns what a pass uses of the loop around it.
    pub fn around<'a>(&'a self, carry: &'a mut LoopState) -> PassContext<'a> {
        PassContext { settings: &self.settings, catalogue: &self.catalogue, carry, uptime: self.uptime() }
    }

    /// Carries out a pass, beginning with these requests, and returns the result of each write. Makes no further
    /// request once this replica no longer leads: a process may have been suspended at any point.
    pub async fn drive(
        &self,
        pass: &mut Pass,
        first: Vec<Request>,
        carry: &mut LoopState,
        leadership: &Leadership,
    ) -> Vec<Written> {
        // Requests are made as they are needed: their bodies for a fleet would need more memory than all its facts.
        let mut queue = VecDeque::from(first);
        let (mut begun, mut slow) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut written = Vec::new();
        loop {
            let is_over = pass.begins_until().is_some_and(|end| self.uptime() >= end) || !leadership.holds();
            while !is_over && begun.len() < MAX_REQUESTS {
                let Some(request) = queue.pop_front() else { break };
                begun.push(self.begin(request));
            }
            let outcome = select! {
                Some(outcome) = begun.next() => outcome,
                Some((write, result)) = slow.next() => Outcome::Written(write, result),
                else => return written,
            };
            let answer = match outcome {
                Outcome::Read(answer) => answer,
                Outcome::Slow(write, request) => {
                    slow.push(self.wait(Arc::clone(&write), request, pass.ends().unwrap_or_default()));
                    Answer::Slow(write)
                }
                Outcome::Written(write, result) => {
                    let failure = result.as_ref().copied().map_err(Error::failure);
                    written.push(Written { write: Arc::clone(&write), result });
                    Answer::Written(write, failure)
                }
            };
            queue.extend(pass.step(answer, &mut self.around(carry)));
        }
    }

    async fn begin(&self, request: Request) -> Outcome<'_> {
        let namespace = &self.settings.namespace;
        match request {
            Request::ReadLogs(pods) => {
                Outcome::Read(Answer::Logs(observe::log_tails(&self.client, namespace, &pods).await))
            }
            Request::ListPods(nodes, requests) => {
                Outcome::Read(Answer::Pods(observe::gpu_pods(&self.client, namespace, &nodes, &requests).await))
            }
            Request::Write(write) => {
                let of_request = Arc::clone(&write);
                let mut request: BoxFuture<'_, _> = Box::pin(async move { self.writer.write(&of_request).await });
                match timeout(SLOW, &mut request).await {
                    Ok(result) => Outcome::Written(write, result),
                    Err(_) => Outcome::Slow(write, request),
                }
            }
        }
    }

    /// Waits for the answer to a slow write until the pass ends.
    async fn wait(
        &self,
        write: Arc<Write>,
        request: BoxFuture<'_, Result<(), Error>>,
        until: Uptime,
    ) -> (Arc<Write>, Result<(), Error>) {
        let answer = timeout_at(self.started + until, request).await;
        let result = answer.unwrap_or_else(|_| Err(Error::NoAnswer { what: write.to_string() }));
        (write, result)
    }
}
