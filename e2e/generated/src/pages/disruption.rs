//! What updates disturb: for each mode of `rollout.gpuPods`, what the plan would do to a node in use. Every cell is what `kubectl gpu-fleet
//! plan` forecasts for a node of the simulator.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gpu_operator_crd::ClusterGpuPolicy;
use gpu_operator_plan::{
    forecast::{Forecast, Inputs, Outcome, forecast},
    world::{GpuPod, PodOwner},
};
use serde_json::{Value, json};
use test_support::sim::Sim;

use super::page::Page;
use crate::file::Generated;

const SOURCE: &str = "e2e/generated/src/pages/disruption.rs";
const MODES: [&str; 3] = ["Leave", "Await", "Evict"];
const NODE: &str = "a";
/// The labels of a pod that `gpuPods.waitForJobs` selects.
const JOB: (&str, &str) = ("example.com/kind", "training");

pub(super) fn page() -> Result<Generated> {
    let mut page = Page::new("disruption", SOURCE, "What updates disturb");
    page.block(
        "`rollout.gpuPods.mode` of a policy or pool decides what an update does to a node whose GPUs are in use. In every mode, the limits, \
         windows and canary nodes of [`rollout`](../guides/rollouts.md) decide when the node is updated, and pods that use neither GPU nor \
         driver keep running.",
    );
    page.heading(2, "By change");
    page.block("For a node with a GPU pod that a controller, such as that of a Deployment, can create again:");
    page.block(&table("Change of", changes().into_iter().map(|(name, defaults)| (name, defaults, GpuPod::default())))?);
    page.block(
        "Where an update disturbs nothing, the pod keeps its GPU while the node's components are replaced. A change that waits for pods \
         removes the device plugin first and then looks for GPU pods again: if there is one, the node gets back what it had.",
    );
    page.heading(2, "By pod");
    page.block("For a node whose driver, MIG layout or MPS daemon changes:");
    let driver = || changes()[0].1.clone();
    page.block(&table("GPU pod", pods().into_iter().map(|(name, pod)| (name, driver(), pod)))?);
    page.block(
        "Programs that use the driver without requesting a GPU are awaited in every mode, unless [their DaemonSet gives \
         way](reasons.md#daemonsets-that-use-the-driver). [Evicting GPU pods](../guides/eviction.md) describes the fields that allow more evictions, and the budgets that prevent some. A node \
         that is cordoned is so until its update has ended, or until `gpuPods.timeout` has passed. \
         [`kubectl gpu-fleet plan`](../guides/plan.md) lists the same for each node of a cluster, before a policy is applied.",
    );
    page.heading(2, "Apart from updates");
    page.list([
        "A health taint with `NoExecute`, if `health.onUnhealthy` sets one, evicts the pods of the node that do not tolerate it, \
         on at most `rollout.maxUnavailable` nodes of a pool at a time.".to_owned(),
        "With `deletionPolicy: Now`, a node that its policy no longer governs loses its components although pods use its GPUs.".to_owned(),
    ]);
    Ok(page.end())
}

/// Returns the changes, each with the settings of `defaults` that it changes.
fn changes() -> [(&'static str, Value); 6] {
    [
        ("the driver", json!({"driver": {"version": "590.10.01"}})),
        (
            "the MIG layout",
            json!({"devicePlugin": {"mig": {"strategy": "Mixed", "layout": [{"profiles": [{"profile": "1g.10gb", "count": 7}]}]}}}),
        ),
        ("sharing by MPS: on, off, or another image", json!({"devicePlugin": {"sharing": {"mps": {"replicas": 2}}}})),
        (
            "the driver's image, with [the same driver](../concepts/revisions.md#the-same-driver)",
            json!({"driver": {"image": {"repository": "mirror.example.com/nvidia/driver"}}}),
        ),
        ("the container toolkit", json!({"toolkit": {"image": {"tag": "v9"}}})),
        ("the device plugin, or time-slicing", json!({"devicePlugin": {"image": {"tag": "v9"}}})),
    ]
}

fn pods() -> [(&'static str, GpuPod); 5] {
    let owned = |owner| GpuPod { owner, ..GpuPod::default() };
    let labels = BTreeMap::from([(JOB.0.to_owned(), JOB.1.to_owned())]);
    [
        ("of a ReplicaSet, StatefulSet, Job or another controller", owned(PodOwner::Controller)),
        ("without a controller", owned(PodOwner::None)),
        ("with an emptyDir volume", GpuPod { has_empty_dir: true, ..GpuPod::default() }),
        ("that `gpuPods.waitForJobs` selects", GpuPod { labels, ..GpuPod::default() }),
        ("of a DaemonSet", owned(PodOwner::DaemonSet)),
    ]
}

/// Returns a table with a column for each mode.
fn table(title: &str, rows: impl Iterator<Item = (&'static str, Value, GpuPod)>) -> Result<String> {
    let mut lines = vec![
        format!("| {title} | {} |", MODES.map(|mode| format!("`mode: {mode}`")).join(" | ")),
        format!("|---{}|", "|---".repeat(MODES.len())),
    ];
    for (name, defaults, pod) in rows {
        let cells =
            MODES.map(|mode| cell(&of_change(mode, &defaults, &pod)?)).into_iter().collect::<Result<Vec<_>>>()?;
        lines.push(format!("| {name} | {} |", cells.join(" | ")));
    }
    Ok(lines.join("\n"))
}

/// Returns what a change would do to a node that is in use.
fn of_change(mode: &str, defaults: &Value, pod: &GpuPod) -> Result<Forecast> {
    let gpu_pods = json!({"mode": mode, "waitForJobs": {"matchLabels": {(JOB.0): JOB.1}}});
    let gpu_pods = if mode == "Evict" { gpu_pods } else { json!({"mode": mode}) };
    let spec = |defaults: &Value| json!({"rollout": {"gpuPods": gpu_pods}, "defaults": defaults});
    let mut sim = Sim::settled_fleet(&spec(&json!({})).to_string(), &[NODE]);
    sim.pod_facts.insert("team/pod".to_owned(), pod.clone());
    sim.gpu_pods.insert(NODE.into(), vec!["team/pod".to_owned()]);
    sim.settle();
    let mut world = sim.world();
    let requests = world.gpu_requests();
    world.gpu_pods.insert(NODE.into(), sim.gpu_pods_on(&NODE.into(), &requests));
    let inputs =
        Inputs { settings: &sim.settings, catalogue: &sim.catalogue, world: &world, budgets: &[], now: sim.now };
    let policy = ClusterGpuPolicy::new("all", serde_json::from_value(spec(defaults))?);
    let mut forecasts = forecast(inputs, &[policy]);
    ensure!(forecasts.len() == 1, "one policy has {} forecasts", forecasts.len());
    Ok(forecasts.remove(0))
}

/// Returns a forecast for one node in words.
fn cell(forecast: &Forecast) -> Result<String> {
    let Some(update) = forecast.updates.first() else {
        ensure!(forecast.waiting.len() == 1, "neither updated nor waiting: {forecast:?}");
        return Ok("is awaited, without a cordon".to_owned());
    };
    ensure!(forecast.updates.len() == 1 && forecast.waiting.is_empty(), "more than one node: {forecast:?}");
    let outcome = update.pods.first().map(|pod| pod.outcome);
    let text = match (outcome, &update.blocked_by) {
        (Some(Outcome::Evicted), None) => "is evicted",
        (Some(Outcome::Awaited), _) => "is awaited",
        (Some(Outcome::Kept), Some(_)) => "is kept, and blocks the update",
        (None, None) => "is not disturbed",
        other => anyhow::bail!("no words for {other:?}: {update:?}"),
    };
    Ok(if update.cordon { format!("{text}; the node is cordoned") } else { text.to_owned() })
}
