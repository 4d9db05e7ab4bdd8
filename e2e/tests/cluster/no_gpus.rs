//! A cluster without GPUs: the chart is installed, tested, upgraded and uninstalled as in any other.

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::keys;
use harness::wait::eventually;

use crate::{
    support::{DETECTOR_PODS, Fixture, PROBE_PODS, READY, everywhere},
    uninstall::inventory::Inventory,
};

/// Runs helm on the release, in its namespace.
fn helm(f: &Fixture, command: &str, more: &[&str]) -> Result<()> {
    let of_release = [command, f.cluster.release(), "--namespace", f.cluster.namespace()];
    f.cluster.helm(&[&of_release[..], more].concat()).map(drop)
}

fn uninstall(f: &Fixture) -> Result<()> {
    helm(f, "uninstall", &["--wait"])
}

/// Checks that the chart's own test passes, although only detectors run.
fn works(f: &Fixture, nodes: usize) -> Result<()> {
    helm(f, "test", &["--timeout", "5m"])?;
    let pods = |label| f.cluster.kubectl(&["get", "pods", "-n", f.cluster.namespace(), "-l", label, "-o", "name"]);
    ensure!(pods(DETECTOR_PODS)?.lines().count() == nodes && pods(PROBE_PODS)?.is_empty());
    let found = f.cluster.kubectl(&["get", "gpunodes", "-o", "name"])?;
    let labelled = f.cluster.kubectl(&["get", "nodes", "-l", &format!("{}=true", keys::PRESENT), "-o", "name"])?;
    ensure!(found.is_empty() && labelled.is_empty(), "{found} {labelled}");
    Ok(())
}

#[test]
fn the_chart_works_in_a_cluster_without_gpus() {
    everywhere(async |fixtures| {
        let f = fixtures.first().context("no node")?;
        uninstall(f)?;
        for f in &fixtures {
            f.host.standin().plug(&[])?;
        }
        f.cluster.install_chart()?;
        works(f, fixtures.len())?;
        let (chart, values) = (f.cluster.chart().display().to_string(), f.cluster.values().display().to_string());
        // With policies: Delete, Helm keeps nothing when the release is uninstalled.
        let changed =
            "detector.interval=3s,detector.updateStrategy.rollingUpdate.maxUnavailable=100%,uninstall.policies=Delete";
        helm(f, "upgrade", &[&chart, "--values", &values, "--set", changed, "--wait", "--timeout", "5m"])?;
        // A pod of the former version may still be terminating.
        eventually(READY, "a working upgrade", || async { works(f, fixtures.len()) }).await?;
        uninstall(f)?;
        let nodes: Vec<&Fixture> = fixtures.iter().collect();
        eventually(READY, "nothing that is left", || async { Inventory::take(&nodes).await?.is_bare() }).await
    });
}
