//! Updates of many nodes under the budgets of a policy, while nodes fail, come and go. The budgets are checked at every version
//! of every object.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fleet::FleetNode;
use gpu_operator_crd::{GpuNode, NodeName, keys, policy_status::RolloutStatus, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{
    history::{Availability, History, State},
    support::{DEADLINE, Fixture, test},
};

/// The name, model and PCI id of each pool, in the order of their turns.
const POOLS: [(&str, &str, &str); 4] =
    [("a", "nvidia-tesla-a100", "20b0"), ("b", "h100", "2330"), ("c", "l4", "27b8"), ("d", "t4", "1eb8")];
const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";
/// The version whose image cannot be pulled on some nodes.
const MISSING: &str = "580.95.05";
/// The time without changes after which nothing more is expected: longer than any pause of the operator.
const QUIET: Duration = Duration::from_secs(12);
/// The pool with limits of its own, its maxParallel and its maxUnavailable.
const SMALL: (&str, usize, usize) = ("a", 2, 3);
/// Nodes that administrators have cordoned before.
const CORDONED: [&str; 12] =
    ["a-005", "b-007", "b-014", "b-020", "b-033", "b-046", "c-009", "c-030", "c-031", "d-000", "d-001", "d-020"];

/// Creates the nodes of all pools, which have these sizes, and waits until they are ready.
async fn ready_fleet(f: &Fixture, sizes: [usize; 4]) -> Result<()> {
    let of_pool = |(pool, size): (&(&str, &'static str, &'static str), usize)| {
        let (name, _, id) = *pool;
        (0..size).map(move |index| FleetNode::with_gpus(&format!("{name}-{index:03}"), id, 1)).collect::<Vec<_>>()
    };
    f.fleet.join(POOLS.iter().zip(sizes).flat_map(of_pool)).await?;
    f.apply(&spec(OLD, "maxParallel: 1")).await?;
    f.until_condition("Ready", "True").await?;
    until_settled(f, OLD).await
}

fn spec(driver: &str, strategy: &str) -> String {
    let (small, max_parallel, max_unavailable) = SMALL;
    let pools = POOLS.map(|(pool, model, _)| {
        let limits = format!(", rollout: {{maxParallel: {max_parallel}, maxUnavailable: {max_unavailable}}}");
        let limits = if pool == small { limits.as_str() } else { "" };
        format!("{{name: {pool}, match: {{models: [{model}]}}{limits}}}")
    });
    format!(
        "{{readiness: {{progressDeadline: 60s}}, defaults: {{driver: {{version: {driver}}}}}, pools: [{}], \
         rollout: {{{strategy}, maxFailures: 3, gpuPods: {{mode: Await, timeout: 2h}}}}}}",
        pools.join(", ")
    )
}

/// What must be true at every version of every object.
#[derive(Default)]
struct Laws {
    max_parallel: usize,
    max_unavailable: usize,
    /// Nodes that others make unavailable during the rollout.
    disturbed: BTreeSet<String>,
    cordoned_by_others: BTreeSet<String>,
    /// The greatest numbers of updates at a time, and of nodes that were unavailable or had slots.
    most: (usize, usize),
}

impl Laws {
    fn check(&mut self, state: &State) -> Result<()> {
        let in_small = |name: &str| name.starts_with(SMALL.0);
        let current: Vec<_> = state.gpu_nodes.iter().filter(|(_, turn)| turn.is_current).collect();
        ensure!(current.len() <= self.max_parallel, "{} nodes are being updated", current.len());
        ensure!(state.slots.len() <= self.max_parallel, "{} slots: {:?}", state.slots.len(), state.slots.keys());
        let of_small = current.iter().filter(|(name, _)| in_small(name)).count();
        ensure!(of_small <= SMALL.1, "{of_small} nodes of pool {} are being updated", SMALL.0);
        for (name, turn) in &current {
            let slot = state.slots.get(*name).with_context(|| format!("{name} is updated without a slot: {turn:?}"))?;
            ensure!((slot.update, &slot.uid) == (turn.number, &turn.uid), "{name}: {turn:?}, but {slot:?}");
        }
        let cordons = state.nodes.values().filter(|node| node.has_own_cordon).count();
        ensure!(cordons <= self.max_parallel, "{cordons} nodes are cordoned by the operator");
        for name in &self.cordoned_by_others {
            let is_touched = state.nodes.get(name).is_some_and(|node| !node.is_cordoned_by_others());
            ensure!(!is_touched, "the cordon of {name} is not the operator's: {:?}", state.nodes[name]);
        }
        let by_others = state.nodes.iter().filter(|(_, node)| node.is_cordoned_by_others());
        self.cordoned_by_others.extend(by_others.map(|(name, _)| name.clone()));
        self.check_availability(state)?;
        self.most.0 = self.most.0.max(current.len());
        Ok(())
    }

    fn check_availability(&mut self, state: &State) -> Result<()> {
        let counts = |name: &String, node: &Availability| {
            (node.is_unavailable() || state.slots.contains_key(name)) && !self.disturbed.contains(name)
        };
        let unavailable = state.nodes.iter().filter(|(name, node)| counts(name, node));
        let unavailable: Vec<_> = unavailable.map(|(name, _)| name).collect();
        ensure!(unavailable.len() <= self.max_unavailable, "{} unavailable nodes: {unavailable:?}", unavailable.len());
        let of_small = unavailable.iter().filter(|name| name.starts_with(SMALL.0)).count();
        ensure!(of_small <= SMALL.2, "{of_small} unavailable nodes of pool {}: {unavailable:?}", SMALL.0);
        self.most.1 = self.most.1.max(unavailable.len());
        Ok(())
    }
}

/// Runs a phase of a test under laws. A violated law explains the failure of the phase.
async fn lawful(f: &Fixture, mut laws: Laws, phase: impl Future<Output = Result<()>>) -> Result<Laws> {
    let history = History::begin(f).await?;
    let outcome = phase.await;
    let changes = history.end(|state| laws.check(state))?;
    outcome?;
    ensure!(changes > 0, "nothing was watched");
    Ok(laws)
}

#[test]
fn budgets_hold_while_nodes_fail_come_and_go() {
    test(|f| async move {
        ready_fleet(&f, [12, 50, 34, 34]).await?;
        for name in CORDONED {
            f.fleet.cordon(name, true).await?;
        }
        disturbed_update(&f).await?;
        only_cordoned_nodes_are_updated(&f).await?;
        Ok(f)
    });
}

/// An update of all nodes, during which one dies, one is deleted, one is cordoned, one joins, and one has a pod that uses its GPU.
async fn disturbed_update(f: &Fixture) -> Result<()> {
    let [dead, deleted, late, newcomer, busy] = ["d-033", "d-032", "d-031", "d-034", "b-000"];
    let disturbed = [dead, deleted, late].map(str::to_owned).into();
    let laws = Laws { max_parallel: 30, max_unavailable: 40, disturbed, ..Laws::default() };
    let pods = Api::<Pod>::namespaced(f.cluster.client(), "default");
    pods.create(&PostParams::default(), &gpu_pod(busy)).await?;
    let laws = lawful(f, laws, async {
        f.apply(&spec(NEW, "maxParallel: 30, maxUnavailable: 40")).await?;
        eventually(DEADLINE, "the first updates", || async {
            let updated = drivers(f).await?.values().filter(|driver| driver.as_deref() == Some(NEW)).count();
            ensure!(updated >= 20, "{updated} nodes are updated");
            Ok(())
        })
        .await?;
        f.fleet.die(dead).await?;
        f.fleet.leave(deleted).await?;
        f.fleet.cordon(late, true).await?;
        f.fleet.join([FleetNode::with_gpus(newcomer, "1eb8", 1)]).await?;
        until_all_have(f, NEW, &[dead, busy], &[busy]).await?;
        let spec = f.gpu_nodes().get(busy).await?.spec;
        ensure!(spec.rollout.is_some(), "{busy} does not await its pod: {spec:?}");
        pods.delete("training", &DeleteParams::default()).await?;
        until_all_have(f, NEW, &[dead], &[]).await
    })
    .await?;
    // Two of the unavailable nodes are among those that others disturb.
    ensure!(laws.most.0 == 30 && laws.most.1 >= 38, "the budgets were not used: {:?}", laws.most);
    // A node that is NotReady gets no slot, because nothing could be updated on it, until it is back.
    let spec = f.gpu_nodes().get(dead).await?.spec;
    ensure!(spec.rollout.is_none() && spec.current.as_ref() != Some(&spec.wanted), "{dead}: {spec:?}");
    f.fleet.revive(dead).await?;
    until_settled(f, NEW).await
}

fn gpu_pod(node: &str) -> Pod {
    let container = json!({"name": "training", "image": "training", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let pod = json!({"metadata": {"name": "training"}, "spec": {"nodeName": node, "containers": [container]}});
    serde_json::from_value(pod).expect("a pod")
}

/// Cordoned nodes are updated although more nodes are unavailable than the policy allows. All others wait.
async fn only_cordoned_nodes_are_updated(f: &Fixture) -> Result<()> {
    let cordoned: BTreeSet<&str> = CORDONED.into_iter().chain(["d-031"]).collect();
    let laws = Laws { max_parallel: 10, max_unavailable: cordoned.len(), ..Laws::default() };
    lawful(f, laws, async {
        f.apply(&spec(MISSING, "maxParallel: 10, maxUnavailable: 1")).await?;
        let names = f.fleet.names();
        let others: Vec<_> = names.iter().map(String::as_str).filter(|name| !cordoned.contains(name)).collect();
        until_all_have(f, MISSING, &others, &[]).await
    })
    .await?;
    let found = drivers(f).await?;
    let updated = found.iter().filter(|(_, driver)| driver.as_deref() == Some(MISSING)).map(|(name, _)| name.as_str());
    ensure!(updated.collect::<BTreeSet<_>>() == cordoned, "{found:?}");
    Ok(())
}

#[test]
fn a_pool_halts_at_its_failures_while_others_complete() {
    test(|f| async move {
        ready_fleet(&f, [4, 12, 40, 12]).await?;
        // The first nodes can pull the image, as the preflight finds.
        let failing = ["c-003", "c-004", "c-005", "c-006"];
        for name in failing {
            f.fleet.change(name, |node| node.faults.missing_images = [MISSING.into()].into());
        }
        // Others may be updated until the first ones have failed, but not a busy one.
        let pods = Api::<Pod>::namespaced(f.cluster.client(), "default");
        pods.create(&PostParams::default(), &gpu_pod("c-039")).await?;
        let laws = || Laws { max_parallel: 10, max_unavailable: 17, ..Laws::default() };
        lawful(&f, laws(), async {
            f.apply(&spec(MISSING, "maxParallel: 10, maxUnavailable: 25%")).await?;
            f.until_condition("Stalled", "True").await?;
            eventually(DEADLINE, "the end of all updates", || async {
                let rollout = rollout(&f).await?;
                let failed: Vec<_> = rollout.pools.iter().flat_map(|pool| &pool.failed).map(NodeName::as_str).collect();
                let are_known = failed.iter().all(|name| failing.contains(name));
                ensure!(rollout.slots.is_empty() && failed.len() >= 3 && are_known, "{rollout:?}");
                let found = drivers(&f).await?;
                let left: Vec<_> = found.iter().filter(|(_, driver)| driver.as_deref() != Some(MISSING)).collect();
                ensure!(left.iter().all(|(name, _)| name.starts_with("c-")), "{left:?}");
                ensure!(found["c-039"].as_deref() == Some(OLD), "the busy node is updated: {left:?}");
                Ok(())
            })
            .await
        })
        .await?;
        eventually(DEADLINE, "the halt", || async {
            let status = f.policy().await?.status.context("no status")?;
            ensure!(status.pools[2].reason() == Some(Reason::RolloutHalted), "{:?}", status.pools[2]);
            Ok(())
        })
        .await?;
        pods.delete("training", &DeleteParams::default().grace_period(0)).await?;
        f.fleet.quiet(QUIET, DEADLINE).await?;
        ensure!(drivers(&f).await?["c-039"].as_deref() == Some(OLD), "an idle node of a halted pool is updated");
        lawful(&f, laws(), async {
            f.apply(&spec(OLD, "maxParallel: 10, maxUnavailable: 25%")).await?;
            until_settled(&f, OLD).await
        })
        .await?;
        lawful(&f, laws(), a_pool_halts_on_its_way_back(&f)).await?;
        it_returns_once_its_nodes_can(&f).await?;
        Ok(f)
    });
}

/// Nodes of a pool that cannot return from a failed rollout.
const STUCK: [&str; 3] = ["c-000", "c-001", "c-002"];

/// The pool with the missing images returns. Some of its nodes cannot, which halts it.
async fn a_pool_halts_on_its_way_back(f: &Fixture) -> Result<()> {
    for name in STUCK {
        f.fleet.change(name, |node| node.faults.missing_images = [OLD.into()].into());
    }
    f.apply(&spec(MISSING, "maxParallel: 10, maxUnavailable: 25%, onFailure: RollBack")).await?;
    eventually(DEADLINE, "the halt of the pool that returns", || async {
        let rollout = rollout(f).await?;
        let pool = rollout.pools.iter().find(|pool| pool.pool.as_str() == "c").context("no record of the pool")?;
        let failed: BTreeSet<_> = pool.failed.iter().map(NodeName::as_str).collect();
        let is_over = rollout.slots.is_empty() && rollout.pools.len() == 1;
        ensure!(is_over && !pool.rolled_back.is_empty() && failed == STUCK.into(), "{rollout:?}");
        // It is written apart from the record.
        let status = f.policy().await?.status.context("no status")?;
        ensure!(status.pools[2].reason() == Some(Reason::RolloutHalted), "{:?}", status.pools[2]);
        Ok(())
    })
    .await?;
    let halted = turns(f).await?;
    f.fleet.quiet(QUIET, DEADLINE).await?;
    ensure!(turns(f).await? == halted, "the pool oscillates");
    Ok(())
}

async fn it_returns_once_its_nodes_can(f: &Fixture) -> Result<()> {
    for name in STUCK {
        f.fleet.change(name, |node| node.faults.missing_images.clear());
    }
    eventually(DEADLINE, "the return of the whole pool", || async {
        let found = drivers(f).await?;
        let wanted = |name: &str| if name.starts_with("c-") { OLD } else { MISSING };
        let left: Vec<_> = found.iter().filter(|(name, found)| found.as_deref() != Some(wanted(name))).collect();
        ensure!(left.is_empty(), "{left:?}");
        let status = f.policy().await?.status.context("no status")?;
        ensure!(status.pools[2].reason() == Some(Reason::RolledBack), "{:?}", status.pools[2]);
        Ok(())
    })
    .await?;
    until_uncordoned(f).await
}

/// Returns the number of updates of each node.
async fn turns(f: &Fixture) -> Result<BTreeMap<String, u32>> {
    let nodes = f.gpu_nodes().list(&ListParams::default()).await?;
    Ok(nodes.iter().map(|node| (node.name_any(), node.spec.updates_begun)).collect())
}

/// Returns the loaded driver of each node; `None` while the node does not have the wanted revision, or is being updated.
async fn drivers(f: &Fixture) -> Result<BTreeMap<String, Option<String>>> {
    let driver = |node: GpuNode| {
        let report = node.status.as_ref().and_then(|status| status.report.as_ref());
        let loaded = report.and_then(|report| report.driver.loaded.clone());
        (node.name_any(), loaded.filter(|_| node.spec.rollout.is_none()))
    };
    // The cluster may have other nodes.
    let names = f.fleet.names();
    let nodes = f.gpu_nodes().list(&ListParams::default()).await?.into_iter();
    Ok(nodes.filter(|node| names.contains(&node.name_any())).map(driver).collect())
}

async fn rollout(f: &Fixture) -> Result<RolloutStatus> {
    Ok(f.policy().await?.status.context("no status")?.rollout)
}

/// Waits until all nodes but some have this driver, and only these nodes have slots.
async fn until_all_have(f: &Fixture, driver: &str, except: &[&str], slots: &[&str]) -> Result<()> {
    eventually(DEADLINE, &format!("driver {driver} on all nodes but {except:?}"), || async {
        let rollout = rollout(f).await?;
        let found: Vec<_> = rollout.slots.iter().map(|slot| slot.node.as_str()).collect();
        ensure!(found == slots, "slots: {found:?}");
        let found = drivers(f).await?;
        let names = f.fleet.names();
        let others = names.iter().filter(|name| !except.contains(&name.as_str()));
        let left: Vec<_> = others.filter(|name| found.get(*name).and_then(Option::as_deref) != Some(driver)).collect();
        ensure!(left.is_empty(), "{} nodes: {left:?}", left.len());
        Ok(())
    })
    .await
}

/// Waits until all nodes have this driver, and no cordon and no record of the rollout is left. Counts in the policy's status follow
/// within half a minute.
async fn until_settled(f: &Fixture, driver: &str) -> Result<()> {
    until_all_have(f, driver, &[], &[]).await?;
    let rollout = rollout(f).await?;
    ensure!(rollout.pools.is_empty(), "{rollout:?}");
    until_uncordoned(f).await
}

async fn until_uncordoned(f: &Fixture) -> Result<()> {
    eventually(DEADLINE, "the end of all cordons of the operator", || async {
        let nodes = Api::<Node>::all(f.cluster.client()).list(&ListParams::default()).await?;
        let cordoned = nodes.iter().filter(|node| node.annotations().contains_key(keys::CORDON));
        let cordoned: Vec<_> = cordoned.map(ResourceExt::name_any).collect();
        ensure!(cordoned.is_empty(), "{cordoned:?}");
        Ok(())
    })
    .await
}
