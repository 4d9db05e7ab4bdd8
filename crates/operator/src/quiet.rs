//! Quiet: the last passes of an operator that is uninstalled while policies stay, in the process of the chart's hook. They are passes like all
//! others, with a plan that undoes only what needs an operator: [`gpu_operator_plan::quiet`].

use std::sync::Arc;

use futures::{StreamExt, stream::FuturesUnordered};
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    settings::Settings,
};
use kube::Client;
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use crate::{election::Election, reconcile::Loop, watch::Mirrors};

/// Why nodes may still have something that only an operator can undo.
#[derive(Debug, Error)]
pub enum QuietError {
    #[error("objects have not been listed: {}", .0.join(", "))]
    Unread(Vec<&'static str>),
    #[error("another operator holds Lease {0}")]
    NotLeading(String),
    #[error("writes to nodes and policies have failed; the log lines before this one contain the errors")]
    Unwritten,
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
}

/// Makes passes as the replica `identity` of the operator, until nothing is left to write. `lease` is the name of the operator's Lease.
pub async fn quiet(
    client: &Client,
    namespace: &str,
    lease: &str,
    identity: &str,
    until: Instant,
) -> Result<(), QuietError> {
    let settings = Settings { namespace: namespace.to_owned(), quiets: true, ..Settings::default() };
    let mut election = Election::new(client.clone(), namespace, lease, identity);
    let leadership = election.leadership();
    let mirrors = Arc::<Mirrors>::default();
    let (passes, tasks) = Loop::new(client, settings, Catalogue::builtin()?, leadership.clone(), Arc::clone(&mirrors));
    // None of the watches ends.
    let followed = tasks.into_iter().collect::<FuturesUnordered<_>>().collect::<()>();
    let followed_and_elected = async { tokio::join!(followed, election.run()) };
    let outcome = tokio::select! {
        () = passes.settle() => Ok(()),
        _ = followed_and_elected => Err(QuietError::Unwritten),
        () = sleep_until(until) => Err(match mirrors.missing() {
            missing if !missing.is_empty() => QuietError::Unread(missing),
            _ if !leadership.holds() => QuietError::NotLeading(lease.to_owned()),
            _ => QuietError::Unwritten,
        }),
    };
    election.release().await;
    outcome
}
