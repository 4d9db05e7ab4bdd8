//! Two operators of which one leads, and is killed, stopped and suspended in the middle of an update.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cluster::clients::OPERATOR;
use cluster_client::operator_process::OperatorProcess;
use fleet::FleetNode;
use harness::wait::eventually;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, api::ListParams};

use crate::{
    history::History,
    support::{DEADLINE, Fixture, test},
};

const NODES: usize = 40;
const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";
const MAX_PARALLEL: usize = 4;

fn spec(driver: &str) -> String {
    format!(
        "{{defaults: {{driver: {{version: {driver}}}}}, rollout: {{maxParallel: {MAX_PARALLEL}, maxUnavailable: {MAX_PARALLEL}}}}}"
    )
}

async fn lease(f: &Fixture) -> Result<LeaseSpec> {
    let leases = Api::<Lease>::namespaced(f.cluster.client(), f.cluster.namespace());
    leases.get("nodestack-gpu-operator").await?.spec.context("no spec")
}

/// Waits until so many nodes have their new driver.
async fn until_updated(f: &Fixture, count: usize) -> Result<()> {
    eventually(DEADLINE, &format!("{count} updated nodes"), || async {
        let gpu_nodes = f.gpu_nodes().list(&ListParams::default()).await?;
        let updated =
            gpu_nodes.iter().filter(|node| node.spec.updates_begun == 1 && node.spec.rollout.is_none()).count();
        ensure!(updated >= count, "{updated} of {count}");
        Ok(())
    })
    .await
}

/// Ends the leadership of a replica in the middle of an update, and waits for a write of the other one. Returns how long that took.
async fn follow(
    f: &Fixture,
    [leader, standby]: [&OperatorProcess; 2],
    end: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let before = lease(f).await?;
    ensure!(before.holder_identity.as_deref() == Some(leader.name()), "{before:?}");
    let began = Instant::now();
    end()?;
    eventually(DEADLINE, "the next leader", || async {
        let holder = lease(f).await?.holder_identity;
        ensure!(holder.as_deref() == Some(standby.name()), "{holder:?}");
        Ok(())
    })
    .await?;
    // What the former leader had begun is recorded by now.
    let mark = f.cluster.audit().mark()?;
    eventually(DEADLINE, "the next write", || async {
        ensure!(f.cluster.audit().requests(OPERATOR, mark)?.writes().count() > 0, "no write");
        Ok(())
    })
    .await?;
    let (took, after) = (began.elapsed(), lease(f).await?);
    ensure!(after.lease_transitions == before.lease_transitions.map(|before| before + 1), "{before:?}, {after:?}");
    Ok(took)
}

#[test]
fn the_standby_goes_on_where_the_leader_stopped() {
    test(|f| async move {
        let nodes = (0..NODES).map(|index| FleetNode::with_gpus(&format!("n-{index:02}"), "1eb8", 1));
        f.fleet.join(nodes).await?;
        f.apply(&spec(OLD)).await?;
        f.until_condition("Ready", "True").await?;
        let standby = f.operator.standby(&f.cluster)?;
        let outcome = updated_by_both(&f, &standby).await;
        standby.stop()?;
        outcome?;
        Ok(f)
    });
}

async fn updated_by_both(f: &Fixture, standby: &OperatorProcess) -> Result<()> {
    let (first, second) = (&f.operator, standby);
    let history = History::begin(f).await?;
    f.apply(&spec(NEW)).await?;

    until_updated(f, 4).await?;
    let suspended = follow(f, [first, second], || first.suspend()).await?;
    // It continues with what it was doing, while the other one is at work.
    first.resume()?;

    until_updated(f, 14).await?;
    let stopped = follow(f, [second, first], || second.stop()).await?;
    second.start_again()?;

    until_updated(f, 24).await?;
    let killed = follow(f, [first, second], || first.kill()).await?;
    first.start_again()?;

    until_updated(f, NODES).await?;
    println!(
        "next write after SIGSTOP {:.1} s, after SIGTERM {:.1} s, after SIGKILL {:.1} s",
        suspended.as_secs_f64(),
        stopped.as_secs_f64(),
        killed.as_secs_f64()
    );

    // No node was updated twice, and no more than allowed at a time.
    let mut turns: BTreeMap<String, u32> = BTreeMap::new();
    let (mut most, names) = (0, f.fleet.names());
    history.end(|state| {
        let current = state.gpu_nodes.values().filter(|turn| turn.is_current).count();
        ensure!(current <= MAX_PARALLEL && state.slots.len() <= MAX_PARALLEL, "{current}, {:?}", state.slots.keys());
        most = most.max(current);
        let members = state.gpu_nodes.iter().filter(|(name, _)| names.contains(name));
        turns.extend(members.map(|(name, turn)| (name.clone(), turn.number)));
        Ok(())
    })?;
    ensure!(most == MAX_PARALLEL, "{most}");
    let twice: Vec<_> = turns.iter().filter(|(_, turn)| **turn != 1).collect();
    ensure!(turns.len() == NODES && twice.is_empty(), "{twice:?}");
    Ok(())
}
