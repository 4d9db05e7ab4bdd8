//! Election: of several operators, the one that holds a Lease writes. The others keep their mirrors up to date and wait.
//!
//! The times are those of client-go. A holder renews its Lease every two seconds, and stops writing if it has not been able to for ten; a
//! Lease that has not been renewed for fifteen is free. Each replica measures these times by its own clock, from its own observations.

mod candidate;
mod leadership;

use std::time::Duration;

use candidate::Candidate;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
pub use leadership::Leadership;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::error::{Error, request};

/// The pause between two attempts to get or to renew the Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// The time limit for an attempt: a second one is possible before the holder has to stop.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(4);
/// The time limit for releasing the Lease when the process ends.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// One replica's part in the election.
pub struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    /// Until when this replica leads.
    term: watch::Sender<Option<Instant>>,
}

impl Election {
    /// Creates the part of the replica `identity` in the election by the Lease `name` in `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let candidate = Candidate::new(name, identity);
        Self { api: Api::namespaced(client, namespace), candidate, term: watch::Sender::new(None) }
    }

    /// Returns what the election decides about this replica.
    pub fn leadership(&self) -> Leadership {
        Leadership::elected(self.term.subscribe())
    }

    /// Takes part in the election until dropped.
    pub async fn run(&mut self) {
        loop {
            let attempt = timeout(ATTEMPT_WITHIN, self.attempt()).await;
            let failure = match attempt {
                Ok(outcome) => outcome.err().map(|error| error.to_string()),
                Err(_) => Some(format!("no answer within {} s", ATTEMPT_WITHIN.as_secs())),
            };
            if let Some(error) = failure {
                tracing::warn!(error, "failed to get or renew the Lease");
                // It may have been written all the same, or by another replica.
                self.candidate.doubt();
            }
            self.term.send_replace(self.candidate.leads_until());
            sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews the Lease, or gets it if it is free.
    async fn attempt(&mut self) -> Result<(), Error> {
        let name = self.candidate.lease().to_owned();
        // What a holder has written itself, it need not read.
        if !self.candidate.is_certain() {
            let found = request(format!("read Lease {name}"), self.api.get_opt(&name)).await?;
            self.candidate.observe(found, Instant::now());
        }
        let asked = Instant::now();
        if let Some(claim) = self.candidate.claim(asked, Timestamp::now()) {
            let written = request(format!("write Lease {name}"), self.write(&name, &claim)).await?;
            self.candidate.claimed(written, asked);
        }
        Ok(())
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
