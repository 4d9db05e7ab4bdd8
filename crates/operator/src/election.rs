//! Election: of several operators, the one that holds a Lease writes. The others keep their mirrors up to date and wait.
//!
//! The times are those of client-go. A holder renews its Lease every two seconds, and stops writing if it has not been able to for ten; a
//! Lease that has not been renewed for fifteen is free. Each replica measures these times by its own clock, from its own observations. What
//! it writes has absolute times, such as the deadlines of updates, so a replica leads only while its clock agrees with the API server's.

mod candidate;
mod server_clock;

use std::time::Duration;

use candidate::Candidate;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use server_clock::ServerClock;
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::error::{self, request};

const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// The time limit for an attempt: a second one is possible before the holder has to stop.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(4);
/// The time limit for releasing the Lease when the process ends.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// Why a replica does not get or renew the Lease.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] error::Error),
    #[error("no answer within {} s", ATTEMPT_WITHIN.as_secs())]
    NoAnswer,
    #[error(
        "the clock of this replica and the API server's differ by {0} seconds, so it does not lead; synchronize the clocks of the nodes"
    )]
    Clock(u64),
}

/// One replica's part in the election.
pub struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    server: ServerClock,
    term: watch::Sender<Option<Instant>>,
}

impl Election {
    /// Creates the part of the replica `identity` in the election by the Lease `name` in `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let candidate = Candidate::new(name, identity);
        let (client, server) = ServerClock::of(client);
        Self { api: Api::namespaced(client, namespace), candidate, server, term: watch::Sender::new(None) }
    }

    pub fn leadership(&self) -> Leadership {
        Leadership::elected(self.term.subscribe())
    }

    /// Takes part in the election while `may_lead` returns true.
    pub async fn run(&mut self, may_lead: impl Fn() -> bool) {
        loop {
            if !may_lead() {
                self.candidate.doubt();
                self.candidate.resign();
                self.term.send_replace(None);
                sleep(RETRY_PERIOD).await;
                continue;
            }
            let attempt = timeout(ATTEMPT_WITHIN, self.attempt()).await;
            if let Err(error) = attempt.unwrap_or(Err(Failure::NoAnswer)) {
                tracing::warn!(%error, "failed to get or renew the Lease");
                // It may have been written all the same, or by another replica.
                self.candidate.doubt();
                if matches!(error, Failure::Clock(_)) {
                    self.candidate.resign();
                }
            }
            self.term.send_replace(self.candidate.leads_until());
            sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews the Lease, or gets it if it is free. Each answer has the time of the API server.
    async fn attempt(&mut self) -> Result<(), Failure> {
        let name = self.candidate.lease().to_owned();
        // What a holder has written itself, it need not read.
        if !self.candidate.is_certain() {
            let found = request(format!("read Lease {name}"), self.api.get_opt(&name)).await?;
            self.candidate.observe(found, Instant::now());
            self.compare_clocks()?;
        }
        let asked = Instant::now();
        if let Some(claim) = self.candidate.claim(asked, Timestamp::now()) {
            let written = request(format!("write Lease {name}"), self.write(&name, &claim)).await?;
            self.candidate.claimed(written, asked);
            self.compare_clocks()?;
        }
        Ok(())
    }

    fn compare_clocks(&self) -> Result<(), Failure> {
        self.server.difference().map_or(Ok(()), |seconds| Err(Failure::Clock(seconds)))
    }

    async fn write(&self, name: &str, lease: &Lease) -> kube::Result<Lease> {
        if lease.metadata.resource_version.is_some() {
            self.api.replace(name, &PostParams::default(), lease).await
        } else {
            self.api.create(&PostParams::default(), lease).await
        }
    }

    /// Releases the Lease, if this replica holds it, so that another one need not wait until it expires. Nothing may be written after it.
    pub async fn release(mut self) {
        self.term.send_replace(None);
        let Some(lease) = self.candidate.release(Timestamp::now()) else { return };
        let name = self.candidate.lease().to_owned();
        match timeout(RELEASE_WITHIN, request(format!("release Lease {name}"), self.write(&name, &lease))).await {
            Ok(Ok(_)) => tracing::info!("released the Lease"),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease is not released"),
            Err(_) => tracing::warn!("the Lease is not released: no answer in time"),
        }
    }
}

/// Whether this replica leads, which changes with time.
#[derive(Clone, Debug)]
pub struct Leadership(Option<watch::Receiver<Option<Instant>>>);

impl Leadership {
    /// Returns the leadership of the only replica, which leads always.
    pub const fn sole() -> Self {
        Self(None)
    }

    /// Returns the leadership of a replica that leads until the time that was sent last.
    pub const fn elected(term: watch::Receiver<Option<Instant>>) -> Self {
        Self(Some(term))
    }

    /// Returns whether this replica leads now. A process that was suspended, or whose requests hang, leads no longer without having
    /// been notified.
    pub fn holds(&self) -> bool {
        let Some(term) = &self.0 else { return true };
        term.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Does work that has no end until this replica leads no longer.
    pub async fn while_held(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.lost() => {}
        }
    }

    pub async fn gained(&self) {
        let Some(mut term) = self.0.clone() else { return };
        while !self.holds() {
            changed(&mut term).await;
        }
    }

    pub async fn lost(&self) {
        let Some(mut term) = self.0.clone() else { return std::future::pending().await };
        loop {
            let Some(until) = *term.borrow_and_update() else { return };
            tokio::select! {
                () = changed(&mut term) => {}
                () = sleep_until(until) => return,
            }
        }
    }
}

/// Waits for the next decision; indefinitely if the election is over.
async fn changed(term: &mut watch::Receiver<Option<Instant>>) {
    if term.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::{
            Arc,
            atomic::{AtomicI64, AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use http::{Method, Request, Response, header::DATE};
    use k8s_openapi::jiff::{SignedDuration, fmt::rfc2822};
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_term_lasts_as_long_as_it_is_renewed() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::elected(term);
        let (began, seconds) = (Instant::now(), Duration::from_secs);
        let terms = RefCell::new(Vec::new());
        let observe = async {
            loop {
                leadership.gained().await;
                let gained = began.elapsed().as_secs();
                leadership.lost().await;
                terms.borrow_mut().push((gained, began.elapsed().as_secs()));
            }
        };
        let elect = async {
            for (after, lasts) in [(100, Some(10)), (5, Some(10)), (100, Some(50)), (20, None), (100, None)] {
                sleep(seconds(after)).await;
                sender.send_replace(lasts.map(|lasts| Instant::now() + seconds(lasts)));
                assert_eq!(leadership.holds(), lasts.is_some());
            }
        };
        tokio::select! {
            () = observe => {}
            () = elect => {}
        }
        // Renewed once and then not any more; and ended early.
        assert_eq!(*terms.borrow(), [(100, 115), (205, 225)]);
        assert!(Leadership::sole().holds());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_over_in_time_without_a_notification() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::elected(term);
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(leadership.holds());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!leadership.holds());
    }

    /// Returns the part of a replica in an election whose API server is so many seconds ahead, and the number of its writes.
    fn before_a_server(ahead: &Arc<AtomicI64>) -> (Election, Arc<AtomicUsize>) {
        let (ahead, writes) = (Arc::clone(ahead), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&writes);
        let service = tower::service_fn(move |request: Request<Body>| {
            let date = Timestamp::now() + SignedDuration::from_secs(ahead.load(Ordering::Relaxed));
            let counted = Arc::clone(&counted);
            async move {
                let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&date).expect("a date");
                let answer = Response::builder().header(DATE, date);
                if request.method() == Method::GET {
                    let missing =
                        json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "", "metadata": {}});
                    return answer.status(404).body(Body::from(missing.to_string().into_bytes()));
                }
                counted.fetch_add(1, Ordering::Relaxed);
                answer.body(request.into_body())
            }
        });
        (Election::new(Client::new(service, "default"), "default", "operator", "a"), writes)
    }

    #[tokio::test]
    async fn a_replica_whose_clock_is_wrong_does_not_lead() {
        let ahead = Arc::new(AtomicI64::new(-1860));
        let (mut election, writes) = before_a_server(&ahead);
        let error = election.attempt().await.unwrap_err().to_string();
        assert!(error.contains("differ by 1860 seconds") || error.contains("differ by 1861 seconds"), "{error}");
        assert_eq!((writes.load(Ordering::Relaxed), election.candidate.leads_until()), (0, None));
        ahead.store(0, Ordering::Relaxed);
        election.attempt().await.unwrap();
        assert!(writes.load(Ordering::Relaxed) == 1 && election.candidate.leads_until().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_clock_goes_wrong_stops_at_once() {
        let ahead = Arc::<AtomicI64>::default();
        let (mut election, writes) = before_a_server(&ahead);
        let leadership = election.leadership();
        let terms = async {
            leadership.gained().await;
            ahead.store(120, Ordering::Relaxed);
            let wrong = Instant::now();
            leadership.lost().await;
            // The answer to the next renewal has the time, and the term would have lasted longer.
            assert!(wrong.elapsed() <= RETRY_PERIOD, "{:?}", wrong.elapsed());
            let written = writes.load(Ordering::Relaxed);
            sleep(Duration::from_mins(1)).await;
            assert_eq!(writes.load(Ordering::Relaxed), written, "the Lease expires");
            ahead.store(0, Ordering::Relaxed);
            leadership.gained().await;
        };
        tokio::select! {
            () = terms => {}
            () = election.run(|| true) => {}
        }
    }
}
