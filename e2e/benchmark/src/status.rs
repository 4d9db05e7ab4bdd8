//! Measures `kubectl gpu-fleet` on a settled fleet: what a screen costs the API server, and how long it takes.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use cluster_client::{audit::Requests, handle::Cluster};

use super::{
    measure::Bench,
    row::{Row, requests},
    table,
};

/// The user of the command. No other requests are made by it.
const ACCOUNT: &str = "default";
const USER: &str = "system:serviceaccount:default:default";
/// The name of the program, of package `gpu-operator-cli`.
pub(super) const PROGRAM: &str = "kubectl-gpu_fleet";

/// The figures of one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    status: Screen,
    nodes_listed: Screen,
    check: Screen,
    /// The size of the list of policies, in bytes.
    policies: usize,
}

/// What a command costs.
#[derive(Clone, Debug, Default)]
struct Screen {
    requests: Requests,
    time: Duration,
    lines: usize,
}

fn milliseconds(of: &Screen) -> f64 {
    of.time.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
const ROWS: [Row<Figures>; 8] = [
    Row::count("requests of `status`", |of: &Figures| requests(&of.status.requests)).at_most(|_| 5.0),
    Row::count("bytes of the list of policies", |of| of.policies as f64),
    Row::count("lines of `status`", |of: &Figures| of.status.lines as f64).at_most(|_| 24.0),
    Row::count("time of `status`, ms", |of| milliseconds(&of.status)),
    Row::count("requests of `status --nodes`", |of| requests(&of.nodes_listed.requests)),
    Row::count("time of `status --nodes`, ms", |of| milliseconds(&of.nodes_listed)),
    Row::count("requests of `check`", |of| requests(&of.check.requests)),
    Row::count("time of `check`, ms", |of| milliseconds(&of.check)),
];

pub(super) fn tables(all: &[Figures]) -> String {
    let fleets: Vec<_> = all.iter().map(|of| (table::nodes(of.nodes), of)).collect();
    table::figures(&ROWS, &fleets)
}

/// Returns the figures that are above their limits.
pub(super) fn exceeded(figures: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|row| row.exceeded(figures)).collect()
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, program: &Path, nodes: u32) -> Result<Figures> {
    let (_bench, _) = Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let account = format!("--serviceaccount=default:{ACCOUNT}");
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "status",
        "--clusterrole=nodestack-gpu-operator-cli",
        &account,
    ])?;
    let token = cluster.kubectl(&["create", "token", ACCOUNT, "-n", "default"])?;
    let screen = |args: &[&str]| {
        let mark = cluster.audit().mark()?;
        let began = Instant::now();
        let mut command = Command::new(program);
        command.args(["--token", token.trim()]).args(args).env("KUBECONFIG", cluster.kubeconfig());
        let output = command.output()?;
        let time = began.elapsed();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(errors.is_empty() && !output.stdout.is_empty(), "{args:?}: {errors}");
        let lines = String::from_utf8_lossy(&output.stdout).lines().count();
        anyhow::Ok(Screen { requests: cluster.audit().requests(USER, mark)?, time, lines })
    };
    let path = "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies";
    Ok(Figures {
        nodes,
        status: screen(&["status"])?,
        nodes_listed: screen(&["status", "--nodes"])?,
        check: screen(&["check"])?,
        policies: cluster.kubectl(&["get", "--raw", path])?.len(),
    })
}
