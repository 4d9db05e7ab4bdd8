//! Measures `kubectl gpu-fleet`: what its screens cost the API server, and how long they take.
//!
//! The commands read what the operator has written, so no operator runs: the policy and the GpuNodes are those of a small simulated fleet,
//! with a node that fails, multiplied to the size of the fleet.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cluster::clients::READER;
use cluster_client::{audit::Requests, handle::Cluster};
use fleet::{FleetNode, Padding};
use futures::{StreamExt, TryStreamExt, stream};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, policy_status::NodeCounts};
use harness::outln;
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use test_support::sim::{Faults, Sim};

use super::{
    fleets::{GPUS_PER_NODE, MODELS, POLICY, name, step},
    table::{Column, float, requests},
};

/// The name of the program, of package `gpu-operator-cli`.
pub(super) const PROGRAM: &str = "kubectl-gpu_fleet";
/// The number of requests at a time that create the fleet.
const CONCURRENT: usize = 16;

/// What a command costs, and its text.
struct Screen {
    requests: Requests,
    time: Duration,
    text: String,
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes, and prints the screen of `status`.
pub(super) async fn measure(cluster: &Cluster, program: &Path, nodes: u32) -> Result<Column> {
    let created = Box::pin(create(cluster, nodes));
    Box::pin(step("nodes, GpuNodes and a policy are created", String::new, created)).await?;
    let account = "--serviceaccount=default:default";
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "status",
        "--clusterrole=nodestack-gpu-operator-cli",
        account,
    ])?;
    let token = cluster.kubectl(&["create", "token", "default", "-n", "default"])?;
    let screen = |args: &[&str]| {
        let mark = cluster.audit().mark()?;
        let began = Instant::now();
        let mut command = Command::new(program);
        command.args(["--token", token.trim()]).args(args).env("KUBECONFIG", cluster.kubeconfig());
        let output = command.output()?;
        let time = began.elapsed();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(errors.is_empty() && !output.stdout.is_empty(), "{args:?}: {errors}");
        let text = String::from_utf8(output.stdout)?;
        anyhow::Ok(Screen { requests: cluster.audit().requests(READER, mark)?, time, text })
    };
    let path = "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies";
    let [status, check] = [screen(&["status"])?, screen(&["check"])?];
    let policies = cluster.kubectl(&["get", "--raw", path])?.len();
    let milliseconds = |of: &Screen| of.time.as_secs_f64() * 1000.0;
    outln!("{}", status.text);
    let mut column = Column::of_fleet(nodes);
    column
        .count("requests of `status`", requests(&status.requests))
        .at_most(5)
        .count("bytes of the list of policies", float(policies))
        .count("lines of `status`", float(status.text.lines().count()))
        .at_most(24)
        .count("time of `status`, ms", milliseconds(&status))
        .count("requests of `check`", requests(&check.requests))
        .count("time of `check`, ms", milliseconds(&check));
    Ok(column)
}

/// Returns a fleet with a node of each model, of which the last one cannot pull its driver's image.
fn simulated() -> Sim {
    let mut sim = Sim::new().policy(POLICY, "{}");
    for (index, model) in MODELS.into_iter().enumerate() {
        sim.join(name(index), model, u32::try_from(GPUS_PER_NODE).unwrap_or_default());
    }
    let missing_images = ["595.91.07", "580.173.02"].map(str::to_owned).into();
    sim.faults.insert(name(MODELS.len() - 1).into(), Faults { missing_images, ..Faults::default() });
    sim.steps(90);
    sim
}

/// Creates the fleet.
async fn create(cluster: &Cluster, nodes: u32) -> Result<()> {
    let (client, sim) = (cluster.client(), simulated());
    let (objects, gpu_nodes) = (Api::<Node>::all(client.clone()), Api::<GpuNode>::all(client.clone()));
    let params = PostParams::default();
    let one = async |index: usize| {
        let at = index % MODELS.len();
        let mut node = FleetNode::with_gpus(&name(index), MODELS[at], GPUS_PER_NODE);
        node.padding = Padding::REALISTIC;
        objects.create(&params, &node.object(Timestamp::now())).await?;
        let mut gpu_node = sim.gpu_nodes.get(&name(at).as_str().into()).context("a GpuNode")?.clone();
        let (spec, status) = (gpu_node.spec.clone(), gpu_node.status.take());
        gpu_nodes.create(&params, &GpuNode::new(&name(index), spec)).await?;
        let status = Patch::Merge(json!({"status": status}));
        gpu_nodes.patch_status(&name(index), &PatchParams::default(), &status).await?;
        anyhow::Ok(())
    };
    stream::iter((0..nodes as usize).map(one)).buffer_unordered(CONCURRENT).try_collect::<()>().await?;

    let policies = Api::<ClusterGpuPolicy>::all(client);
    let policy = sim.policies.get(&POLICY.into()).context("a policy")?;
    let created = policies.create(&params, &ClusterGpuPolicy::new(POLICY, policy.spec.clone())).await?;
    let mut status = policy.status.clone().context("a status")?;
    status.observed_generation = created.metadata.generation;
    let factor = nodes / u32::try_from(MODELS.len())?;
    multiply(&mut status.nodes, factor);
    for pool in &mut status.pools {
        multiply(&mut pool.nodes, factor);
        pool.gpus.expected *= factor;
        pool.gpus.allocatable *= factor;
    }
    status.gpus.expected *= factor;
    status.gpus.allocatable *= factor;
    // As many nodes as a status lists.
    let first = status.attention.first().context("a node that fails")?.clone();
    status.attention = vec![first; gpu_operator_crd::policy_status::MAX_ATTENTION];
    policies.patch_status(POLICY, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    Ok(())
}

fn multiply(counts: &mut NodeCounts, factor: u32) {
    let NodeCounts { total, ready, progressing, failed, excluded, opted_out, updating, outdated, leaving } = counts;
    for count in [total, ready, progressing, failed, excluded, opted_out, updating, outdated, leaving] {
        *count *= factor;
    }
}
