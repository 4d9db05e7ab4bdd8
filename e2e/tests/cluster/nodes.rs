//! Who has which of the cluster's nodes: each test one of its own, or all of them where it touches what all have in common.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use e2e::{Cluster, RealNode};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// As many permits as nodes. Whoever came first has them first, so that one who waits for all of them gets them.
static FREE: OnceCell<Semaphore> = OnceCell::const_new();
/// The numbers, in [`Cluster::nodes`], of those that a test has.
static TAKEN: LazyLock<Mutex<Vec<usize>>> = LazyLock::new(Mutex::default);

fn taken() -> MutexGuard<'static, Vec<usize>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a test has of the nodes until it ends.
pub struct Hold {
    number: Option<usize>,
    _permit: SemaphorePermit<'static>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Before the permit, with which another test looks for it.
        taken().retain(|number| Some(*number) != self.number);
    }
}

async fn permits(cluster: &Cluster, count: usize) -> Result<SemaphorePermit<'static>> {
    let all = cluster.nodes().len();
    let free = FREE.get_or_init(|| async { Semaphore::new(all) }).await;
    Ok(free.acquire_many(u32::try_from(count.min(all))?).await?)
}

/// A node that no other test has.
pub async fn one(cluster: &Cluster) -> Result<(RealNode, Hold)> {
    let permit = permits(cluster, 1).await?;
    let mut taken = taken();
    let nodes = cluster.nodes().into_iter().enumerate();
    let (number, node) = nodes.into_iter().find(|(number, _)| !taken.contains(number)).context("no node is free")?;
    taken.push(number);
    Ok((node, Hold { number: Some(number), _permit: permit }))
}

/// All of them: no other test runs.
pub async fn all(cluster: &Cluster) -> Result<(Vec<RealNode>, Hold)> {
    let permit = permits(cluster, usize::MAX).await?;
    Ok((cluster.nodes(), Hold { number: None, _permit: permit }))
}
