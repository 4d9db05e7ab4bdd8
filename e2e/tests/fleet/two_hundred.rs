//! Two hundred nodes with eight models, three operating systems and two container runtimes, with and without host
//! drivers: from applying a policy until quiet, and then changes of single nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cluster::{clients::OPERATOR, node::real_node::HostDriver};
use fleet::{FleetNode, os};
use gpu_operator_crd::{GpuNodeStatus, Phase, keys, policy::Stage, reason::Reason, report::NvmlState};
use harness::wait::eventually;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};

use crate::support::{DEADLINE, Fixture, POLICY, QUIET, test};

const NODES: usize = 200;
/// PCI ids of K80, P100, T4, A100, H100, L4, H200 and B200.
const MODELS: [&str; 8] = ["102d", "15f9", "1eb8", "20b0", "2330", "27b8", "2335", "2901"];
/// A container runtime in which NVIDIA's runtime is configured, and which is restarted for that.
const IN_TURN: &str = "containerd://1.7.27";
const GKE: &str = "cloud.google.com/gke-accelerator";

/// Returns the nodes with their expected reasons; `None` for a node without GPUs.
fn nodes() -> Vec<(FleetNode, Option<Reason>)> {
    (0..NODES).map(node).collect()
}

fn node(index: usize) -> (FleetNode, Option<Reason>) {
    let name = format!("n{index:03}");
    if index % 10 == 9 {
        return (FleetNode::without_gpus(&name), None);
    }
    let model = MODELS[index % MODELS.len()];
    let mut node = FleetNode::with_gpus(&name, model, 8);
    node.os = [os("ubuntu", "22.04"), os("ubuntu", "24.04"), os("rhel", "9.4")][index / 8 % 3].clone();
    let mut wanted = Reason::AllGpusAllocatable;
    if model == "102d" {
        if node.os.version_id == "22.04" {
            node.os = os("ubuntu", "20.04");
        } else {
            // Driver branch 470, the last for Kepler, has no image for these systems.
            wanted = Reason::NoDriverImageForOS;
        }
    }
    // The version of a host's own driver, from a branch that supports the model.
    let driver = if model == "102d" { "470.256.02" } else { "580.95.05" };
    match index % 25 {
        3 => {
            node.host_driver = HostDriver::Loaded(driver.into());
            wanted = Reason::AllGpusAllocatable;
        }
        7 => {
            node.host_driver = HostDriver::Installed(driver.into());
            wanted = Reason::DriverNotLoaded;
        }
        // NVIDIA's runtime is configured in this container runtime.
        12 => node.runtime = IN_TURN.into(),
        15 => node.faults.slow = 5,
        16 => node.runtime = "cri-o://1.34.1".into(),
        20 if wanted == Reason::AllGpusAllocatable => {
            node.faults.driver_crash = Some("no kernel headers".into());
            wanted = Reason::ContainerCrashed;
        }
        22 => {
            // The GPUs are known only from the cloud's label.
            node.faults.mute_probe = true;
            node.labels.insert(GKE.into(), "nvidia-tesla-t4".into());
            wanted = Reason::ProbeMissing;
        }
        _ => {}
    }
    (node, Some(wanted))
}

#[test]
fn a_fleet_settles_and_a_change_of_a_node_affects_only_it() {
    test(|f| async move {
        let nodes = nodes();
        f.fleet.join(nodes.iter().map(|(node, _)| node.clone())).await?;
        let reporting = nodes.iter().filter(|(node, _)| !node.faults.mute_probe && !node.gpus.is_empty()).count();
        eventually(DEADLINE, "the report of every probe", || async {
            let reported = f.statuses().await?.values().filter(|status| status.report.is_some()).count();
            ensure!(reported >= reporting, "{reported} of {reporting} reports");
            Ok(())
        })
        .await?;
        f.fleet.quiet(QUIET, DEADLINE).await?;

        install(&f, &nodes).await?;
        a_settled_fleet_causes_no_requests(&f).await?;
        changes_of_a_node_affect_only_that_node(&f).await?;
        unavailable_nodes_are_excluded(&f).await?;
        Ok(f)
    });
}

/// From applying the policy until quiet: the right DaemonSets, few writes, no early Ready.
async fn install(f: &Fixture, nodes: &[(FleetNode, Option<Reason>)]) -> Result<()> {
    let mark = f.cluster.audit().mark()?;
    let (watcher, lines) = (f.watch_policy(), f.watch_nodes());
    f.apply("{readiness: {minReadyNodes: 60%}, nodeLabels: [{key: accelerator}]}").await?;
    // Nodes whose probe never reports are listed after a minute.
    eventually(DEADLINE, "the expected state of every node", || async {
        let found = f.statuses().await?;
        for (node, wanted) in nodes {
            let status = found.get(&node.name);
            let reason = status.and_then(GpuNodeStatus::reason);
            ensure!(reason == *wanted, "{}: {reason:?}, expected {wanted:?}: {status:?}", node.name);
            let ready = status.is_some_and(GpuNodeStatus::is_ready);
            ensure!(ready == (*wanted == Some(Reason::AllGpusAllocatable)), "{}", node.name);
        }
        Ok(())
    })
    .await?;
    f.fleet.quiet(QUIET, DEADLINE).await?;

    let requests = f.cluster.audit().requests(OPERATOR, mark)?;
    let writes = requests.writes();
    ensure!(writes.rejected().count() == 0, "rejected: {}", writes.rejected());
    let sets = f.daemon_sets().await?;
    let members = nodes.iter().filter(|(_, wanted)| wanted.is_some()).count();
    // The label of a toolkit that restarts the runtime is set one node at a time, and pending nodes are reported.
    let in_turn = nodes.iter().filter(|(node, _)| node.runtime == IN_TURN).count();
    let gpus = |node: &FleetNode| Some((node.name.clone(), u32::try_from(node.gpus.len()).ok()?));
    let gpus: BTreeMap<String, u32> = nodes.iter().filter_map(|(node, _)| gpus(node)).collect();
    lines.never_early(f, &gpus)?;
    let reasons = lines.reasons();
    let becomes_ready = |name: &String| {
        nodes.iter().any(|(node, wanted)| node.name == *name && *wanted == Some(Reason::AllGpusAllocatable))
    };
    let mut without_cause = reasons.iter().filter(|(reasons, _)| reasons.iter().any(|reason| reason.is_failure()));
    let without_cause = without_cause.find(|(_, nodes)| nodes.iter().any(becomes_ready));
    ensure!(without_cause.is_none(), "a node without any trouble has reported a failure: {without_cause:?}");
    // Every Event about trouble of a node is recorded for the GpuNode too, and a driver may be reported down before it is up.
    let is_in_trouble = |wanted: &Option<Reason>| wanted.is_some_and(|wanted| wanted != Reason::AllGpusAllocatable);
    let in_trouble = nodes.iter().filter(|(_, wanted)| is_in_trouble(wanted)).count();
    let allowed = 4 * members + 2 * in_turn + 2 * in_trouble + sets.len() + 20 + lines.lasting_phases();
    ensure!(
        writes.count() <= allowed,
        "{} writes, at most {allowed} are allowed: {writes}; reasons of the nodes: {reasons:?}",
        writes.count()
    );
    watcher.never_early(f, &gpus, 60)?;
    places(f, &sets, nodes).await
}

/// Checks that each DaemonSet's pods are on exactly the nodes whose labels name it; and that the nodes of a driver have
/// one model and operating system, and those of a toolkit have one kind of container runtime.
async fn places(f: &Fixture, sets: &BTreeMap<String, DaemonSet>, nodes: &[(FleetNode, Option<Reason>)]) -> Result<()> {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in Api::<Node>::all(f.cluster.client()).list(&ListParams::default()).await? {
        for stage in Stage::ALL {
            if let Some(group) = node.labels().get(stage.key()) {
                named.entry(format!("{}-{group}", stage.as_str())).or_default().insert(node.name_any());
            }
        }
    }
    let mut placed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let pods = Api::<Pod>::namespaced(f.cluster.client(), f.cluster.namespace());
    for pod in pods.list(&ListParams::default().labels(keys::STAGE)).await? {
        let owner = pod.owner_references().first().context("a pod without an owner")?.name.clone();
        let node = pod.spec.and_then(|spec| spec.node_name).context("a pod without a node")?;
        placed.entry(owner).or_default().insert(node);
    }
    ensure!(named == placed, "named {named:#?}\nplaced {placed:#?}");
    let unused: Vec<_> = sets.keys().filter(|set| !named.contains_key(*set)).collect();
    ensure!(unused.is_empty() && sets.len() == named.len(), "{unused:?}");
    let drivers = sets.keys().filter(|set| set.starts_with("driver-")).count();
    ensure!(drivers >= 20, "only {drivers} drivers for eight models on up to three systems each");
    let nodes: BTreeMap<&str, &FleetNode> = nodes.iter().map(|(node, _)| (node.name.as_str(), node)).collect();
    for (set, on) in &placed {
        let of =
            |what: fn(&FleetNode) -> String| on.iter().map(|node| what(nodes[node.as_str()])).collect::<BTreeSet<_>>();
        let kinds = match set.split_once('-') {
            Some(("driver", _)) => of(|node| format!("{:?} {:?}", node.gpus.first(), node.os)),
            Some(("toolkit", _)) => of(|node| (node.runtime == IN_TURN).to_string()),
            _ => continue,
        };
        ensure!(kinds.len() == 1, "{set} is on nodes of several kinds: {kinds:?}");
    }
    Ok(())
}

/// Checks that for a minute the operator sends no requests except watches.
async fn a_settled_fleet_causes_no_requests(f: &Fixture) -> Result<()> {
    let before = f.generations().await?;
    let mark = f.cluster.audit().mark()?;
    // The absence of requests has no event to wait for.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let requests = f.cluster.audit().requests(OPERATOR, mark)?.only(|request| request.verb != "watch");
    ensure!(requests.count() == 0, "{requests}");
    ensure!(f.generations().await? == before, "a DaemonSet's generation has changed");
    Ok(())
}

/// Nodes join, leave, change labels, lose GPU labels, reboot with fewer GPUs and die: no other node's status is
/// written.
async fn changes_of_a_node_affect_only_that_node(f: &Fixture) -> Result<()> {
    let h100 = |index: usize| format!("n{index:03}");
    // The new node is of an existing kind, so that it needs no new DaemonSet.
    let like_n004 = |name: &str| FleetNode { name: name.into(), ..node(4).0 };
    f.only_touches("joins", &["joiner"], async {
        f.fleet.join([like_n004("joiner")]).await?;
        f.until_reason("joiner", Reason::AllGpusAllocatable).await
    })
    .await?;
    f.only_touches("leaves", &["joiner"], async { f.fleet.leave("joiner").await }).await?;
    let name = h100(4);
    f.only_touches("is relabelled", &[&name], f.fleet.relabel(&name, &[("zone", Some("b"))])).await?;
    f.only_touches("gets a cloud label", &[&name], f.fleet.relabel(&name, &[(GKE, Some("nvidia-h100-80gb"))])).await?;
    f.only_touches("loses the cloud label", &[&name], f.fleet.relabel(&name, &[(GKE, None)])).await?;
    ensure!(f.statuses().await?[&name].reason() == Some(Reason::AllGpusAllocatable));
    f.only_touches("reboots with fewer GPUs", &[&name], async {
        f.fleet.reboot(&name, 1);
        f.until_reason(&name, Reason::GpuMissing).await
    })
    .await?;
    let status = f.statuses().await?.remove(&name).context("no status")?;
    ensure!(status.message.contains("7 of 8") && status.message.contains("0000:"), "{}", status.message);
    let count = serde_json::json!({"metadata": {"annotations": {keys::GPU_COUNT: "7"}}});
    f.only_touches("is annotated with seven GPUs", &[&name], async {
        let nodes = Api::<Node>::all(f.cluster.client());
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&count)).await?;
        f.until_reason(&name, Reason::AllGpusAllocatable).await
    })
    .await?;
    // One of them has a runtime that is restarted, and another one has a host driver.
    for name in [&name, "n012", "n003"] {
        f.only_touches("dies and comes back repeatedly", &[name], async {
            for _ in 0..3 {
                f.fleet.die(name).await?;
                f.until_reason(name, Reason::NodeNotReady).await?;
                f.fleet.revive(name).await?;
                f.until_reason(name, Reason::AllGpusAllocatable).await?;
            }
            Ok(())
        })
        .await?;
    }
    f.only_touches("has a driver and a library of different versions", &[&name], async {
        f.fleet.change(&name, |node| node.faults.nvml_failure = Some("Driver/library version mismatch".into()));
        until_nvml_is(f, &name, NvmlState::Failing).await
    })
    .await?;
    f.only_touches("is repaired", &[&name], async {
        f.fleet.change(&name, |node| node.faults.nvml_failure = None);
        until_nvml_is(f, &name, NvmlState::Answering).await?;
        f.until_reason(&name, Reason::AllGpusAllocatable).await
    })
    .await?;
    f.only_touches("opts out", &[&name], async {
        f.fleet.relabel(&name, &[(keys::MANAGED, Some("false"))]).await?;
        f.until_reason(&name, Reason::OptedOut).await
    })
    .await?;
    f.only_touches("opts in", &[&name], async {
        f.fleet.relabel(&name, &[(keys::MANAGED, None)]).await?;
        f.until_reason(&name, Reason::AllGpusAllocatable).await
    })
    .await?;
    // The GPUs of this node are known only from the cloud's label. The model remains known without it.
    f.only_touches("loses its only GPU label", &["n022"], f.fleet.relabel("n022", &[(GKE, None)])).await?;
    let lost = f.statuses().await?.remove("n022").context("no status")?;
    ensure!(
        (lost.reason(), lost.model.as_deref()) == (Some(Reason::ProbeMissing), Some("nvidia-tesla-t4")),
        "{lost:?}"
    );
    f.only_touches("gets the label back", &["n022"], f.fleet.relabel("n022", &[(GKE, Some("nvidia-tesla-t4"))])).await
}

/// Waits until a node's probe reports this state of NVML.
async fn until_nvml_is(f: &Fixture, node: &str, wanted: NvmlState) -> Result<()> {
    eventually(DEADLINE, &format!("{node}: NVML {wanted:?}"), || async {
        let report = f.gpu_nodes().get(node).await?.status.and_then(|status| status.report).context("no report")?;
        ensure!(report.nvml.state == wanted, "{:?}", report.nvml);
        Ok(())
    })
    .await
}

/// Cordoned, NotReady and deleted nodes do not count for `minReadyNodes`.
async fn unavailable_nodes_are_excluded(f: &Fixture) -> Result<()> {
    let counts = || async { anyhow::Ok(f.policy().await?.status.context("no status")?.nodes) };
    let before = counts().await?;
    let before = &before;
    let excluded = |more: u32| async move {
        eventually(DEADLINE, "the excluded nodes", || async {
            let now = counts().await?;
            ensure!(now.excluded == before.excluded + more && now.ready == before.ready - more, "{now:?} {before:?}");
            ensure!(now.total == before.total, "{now:?} {before:?}");
            Ok(())
        })
        .await
    };
    f.fleet.cordon("n004", true).await?;
    f.fleet.die("n001").await?;
    excluded(2).await?;
    // First exactly as many nodes are required as are still ready, then one more.
    f.apply(&format!("{{readiness: {{minReadyNodes: {}}}, nodeLabels: [{{key: accelerator}}]}}", before.ready - 2))
        .await?;
    f.until_condition("Ready", "True").await?;
    f.apply(&format!("{{readiness: {{minReadyNodes: {}}}, nodeLabels: [{{key: accelerator}}]}}", before.ready - 1))
        .await?;
    f.until_condition("Ready", "False").await?;
    f.fleet.cordon("n004", false).await?;
    f.until_condition("Ready", "True").await?;
    f.fleet.revive("n001").await?;
    excluded(0).await?;
    // A policy without nodes is ready only if it requires none.
    for (least, ready, reason) in [(1, "False", Reason::NoMatchingNodes), (0, "True", Reason::NoNodes)] {
        let none = serde_json::json!({"spec": {
            "nodeSelector": {"matchLabels": {"no": "node"}}, "readiness": {"minReadyNodes": least},
        }});
        f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(&none)).await?;
        f.until_condition("Ready", ready).await?;
        let found = f.policy().await?.status.context("no status")?.conditions.into_iter().find(|c| c.type_ == "Ready");
        ensure!(found.clone().is_some_and(|found| found.reason == reason.as_str()), "{found:?}");
    }
    f.fleet.until("nodes without stages", DEADLINE, |_, node| !node.labels.contains_key(keys::DRIVER)).await?;
    let statuses = f.statuses().await?;
    let left = statuses.values().find(|status| !matches!(status.phase, Phase::Unmanaged | Phase::Discovery));
    ensure!(left.is_none(), "{left:?}");
    Ok(())
}
