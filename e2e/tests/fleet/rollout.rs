//! New revisions on a fleet of four pools, and an operator that is killed at random times.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fleet::FleetNode;
use gpu_operator_crd::{GpuNodeSpec, Phase, keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};

use crate::support::{DEADLINE, Fixture, POLICY, QUIET, SOON_QUIET, test};

/// Four pools of three nodes: H100, T4, L4 and A100.
const POOLS: [(&str, &str); 4] = [("h100", "2330"), ("t4", "1eb8"), ("l4", "27b8"), ("a100", "20b0")];

fn nodes() -> impl Iterator<Item = FleetNode> {
    POOLS.iter().flat_map(|(pool, id)| (0..3).map(move |index| FleetNode::with_gpus(&format!("{pool}-{index}"), id, 2)))
}

fn spec(h100: &str) -> String {
    let pools = "{name: t4, match: {models: [t4]}}, {name: l4, match: {models: [l4]}}, {name: a100, match: {models: [nvidia-tesla-a100]}}";
    format!("{{pools: [{{name: h100, match: {{models: [h100]}}, driver: {{version: {h100}}}}}, {pools}]}}")
}

/// Returns the driver revision in each node's label.
fn revisions(f: &Fixture) -> BTreeMap<String, String> {
    let label = |name: &String| f.fleet.observe(name)?.labels.get(keys::DRIVER).cloned();
    f.fleet.names().iter().filter_map(|name| Some((name.clone(), label(name)?))).collect()
}

async fn ready_fleet(f: &Fixture, driver: &str) -> Result<()> {
    f.fleet.join(nodes()).await?;
    f.apply(&spec(driver)).await?;
    f.until_condition("Ready", "True").await?;
    f.fleet.quiet(SOON_QUIET, DEADLINE).await?;
    Ok(())
}

#[test]
fn a_pool_is_updated_node_by_node_halts_and_is_rolled_back() {
    test(|f| async move {
        ready_fleet(&f, "595.91.07").await?;
        let (before, generations) = (revisions(&f), f.generations().await?);
        let others = |revisions: &BTreeMap<String, String>| {
            let others = revisions.iter().filter(|(name, _)| !name.starts_with("h100"));
            others.map(|(name, revision)| (name.clone(), revision.clone())).collect::<BTreeMap<_, _>>()
        };
        let lines = f.watch_nodes();
        // One node cannot pull the new image.
        f.fleet.change("h100-1", |node| node.faults.missing_images = ["590.10.01".into()].into());
        f.apply(&spec("590.10.01")).await?;
        eventually(DEADLINE, "the halt of the pool", || async {
            let pools = f.policy().await?.status.context("no status")?.pools;
            ensure!(pools.iter().any(|pool| pool.reason() == Some(Reason::RolloutHalted)), "{pools:?}");
            Ok(())
        })
        .await?;
        f.fleet.quiet(QUIET, DEADLINE).await?;
        let halted = revisions(&f);
        ensure!(others(&halted) == others(&before), "another pool was updated: {halted:?}");
        let updated: Vec<_> = halted.iter().filter(|(name, revision)| before.get(*name) != Some(revision)).collect();
        ensure!(
            updated.len() == 2 && halted["h100-2"] == before["h100-2"],
            "expected one updated, one failed and one pending node: {updated:?}"
        );
        let statuses = f.statuses().await?;
        ensure!(statuses["h100-0"].phase == Phase::Ready && statuses["h100-2"].phase == Phase::Ready, "{statuses:?}");
        ensure!(statuses["h100-1"].reason() == Some(Reason::DriverImageNotFound), "{:?}", statuses["h100-1"]);
        let policy = f.policy().await?.status.context("no status")?;
        let stalled: Vec<_> = policy.pools.iter().filter(|pool| pool.reason.is_some()).collect();
        ensure!(stalled.len() == 1 && stalled[0].name == "h100", "{stalled:?}");
        ensure!(
            stalled[0].reason() == Some(Reason::RolloutHalted) && stalled[0].message.contains("h100-1"),
            "{stalled:?}"
        );
        let now = f.generations().await?;
        ensure!(generations.iter().all(|(set, generation)| now.get(set) == Some(generation)), "{now:?}");

        let (updated, most) = lines.moves()?;
        ensure!(updated.iter().eq(["h100-0", "h100-1"]), "the update affected other nodes: {updated:?}");
        ensure!(most == 1, "{most} nodes were updated at the same time");

        // The rollback affects only the updated nodes.
        let lines = f.watch_nodes();
        f.fleet.change("h100-1", |node| node.faults.missing_images.clear());
        f.apply(&spec("595.91.07")).await?;
        f.until_condition("Ready", "True").await?;
        f.until_condition("Reconciling", "False").await?;
        f.fleet.quiet(SOON_QUIET, DEADLINE).await?;
        ensure!(revisions(&f) == before, "{:?}", revisions(&f));
        ensure!(f.generations().await? == generations, "unused DaemonSets are left, or others were changed");
        // The failed node has no GPUs to lose, so its rollback is never pending.
        let (updated, _) = lines.moves()?;
        ensure!(updated.iter().eq(["h100-0", "h100-1"]), "the rollback affected other nodes: {updated:?}");
        Ok(f)
    });
}

/// Returns the final state of the fleet: all of the operator's objects, without times and the API server's counters.
async fn outcome(f: &Fixture) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for gpu_node in f.gpu_nodes().list(&ListParams::default()).await? {
        let status = gpu_node.status.clone().unwrap_or_default();
        let reported = (status.phase, status.reason, &status.model, &status.gpus, &status.published_labels);
        // The number of updates, and the time of the last one, depend on how often the operator was killed.
        let spec = GpuNodeSpec { updates_begun: 0, last_update: None, ..gpu_node.spec.clone() };
        lines.push(format!("{}: {spec:?} {reported:?}", gpu_node.name_any()));
    }
    for name in f.fleet.names() {
        lines.push(format!("{name}: {:?}", f.fleet.observe(&name).map(|node| (node.labels, node.gpus))));
    }
    for (name, set) in f.daemon_sets().await? {
        let mut spec = set.spec.context("no spec")?;
        // A hash of the applied object, including its owner, which differs if the policy is recreated.
        spec.template.metadata.iter_mut().for_each(|pod| pod.annotations = None);
        lines.push(format!("{name}: {}", serde_json::to_string(&spec)?));
    }
    let status = f.policy().await?.status.context("no status")?;
    lines.push(format!("{:?} {:?} {:?} {:?}", status.nodes, status.gpus, status.pools, status.attention));
    lines.extend(status.conditions.iter().map(|condition| format!("{}={}", condition.type_, condition.status)));
    Ok(lines)
}

/// Returns random durations up to `within`. They depend only on the seed.
fn random_pauses(seed: u64, within: Duration) -> impl Iterator<Item = Duration> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        within.mul_f64(f64::from(u32::try_from(state % 1000).unwrap_or_default()) / 1000.0)
    })
}

/// Kills the operator at two times within a duration, and starts it again.
async fn kill_twice(f: &Fixture, seed: u64, within: Duration) -> Result<()> {
    for pause in random_pauses(seed, within / 2).take(2) {
        // The time of the kill is the subject of this test.
        tokio::time::sleep(pause).await;
        f.operator.kill()?;
        f.operator.start_again()?;
    }
    Ok(())
}

#[test]
fn an_operator_killed_at_any_time_reaches_the_same_state() {
    const DRIVERS: [&str; 2] = ["595.91.07", "590.10.01"];
    test(|f| async move {
        // Without kills: an update and a rollback.
        ready_fleet(&f, DRIVERS[0]).await?;
        let mut undisturbed = Vec::new();
        let began = Instant::now();
        for driver in [DRIVERS[1], DRIVERS[0]] {
            f.apply(&spec(driver)).await?;
            settled(&f).await?;
            undisturbed.push(outcome(&f).await?);
        }
        let takes = began.elapsed() / 2;
        for seed in 0..10 {
            let there = usize::from(seed % 2 == 1);
            if seed % 5 == 4 {
                // Here the operator is killed during the removal of the policy, and then during a new installation.
                f.policies().delete(POLICY, &DeleteParams::default()).await?;
                kill_twice(&f, seed + 10, takes / 2).await?;
                eventually(DEADLINE, "the end of the policy", || async {
                    ensure!(f.policies().get_opt(POLICY).await?.is_none(), "the policy still exists");
                    Ok(())
                })
                .await?;
            }
            f.apply(&spec(DRIVERS[1 - there])).await?;
            kill_twice(&f, seed, takes).await?;
            settled(&f).await.with_context(|| format!("seed {seed}"))?;
            let found = outcome(&f).await?;
            let differing: Vec<_> = found.iter().filter(|line| !undisturbed[there].contains(line)).collect();
            ensure!(found == undisturbed[there], "seed {seed}: {differing:#?}\nexpected {:#?}", undisturbed[there]);
        }
        Ok(f)
    });
}

/// Waits until no change is in progress any more.
async fn settled(f: &Fixture) -> Result<()> {
    f.until_condition("Reconciling", "False").await?;
    f.until_condition("Ready", "True").await?;
    // Unused DaemonSets are deleted one by one.
    eventually(DEADLINE, "no DaemonSet without nodes", || async {
        let nodes = f.fleet.names();
        let labels = nodes.iter().filter_map(|name| Some(f.fleet.observe(name)?.labels));
        let of_node = |labels: BTreeMap<String, String>| {
            Stage::ALL.map(|stage| Some(format!("{}-{}", stage.as_str(), labels.get(stage.key())?)))
        };
        let named: BTreeSet<String> = labels.flat_map(of_node).flatten().collect();
        let sets = f.daemon_sets().await?;
        let left: Vec<_> = sets.keys().filter(|set| !named.contains(*set)).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}
