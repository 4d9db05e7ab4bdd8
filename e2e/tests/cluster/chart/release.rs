//! Releases of other charts in the namespace: an upgrade never takes one over.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::{Fixture, alone};

/// The release, and its Deployment, as NVIDIA's documentation and chart call them.
const OTHER: &str = "gpu-operator";

/// Installs a chart with one Deployment without pods as release [`OTHER`].
fn install_other(f: &Fixture) -> Result<()> {
    let chart = tempfile::tempdir()?;
    let labels = json!({"app": OTHER, "helm.sh/chart": "gpu-operator-v26.7.0"});
    let pod = json!({"containers": [{"name": "c", "image": "localhost:5999/none:1"}]});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": OTHER, "labels": labels},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": OTHER}},
            "template": {"metadata": {"labels": {"app": OTHER}}, "spec": pod},
        },
    });
    fs::create_dir(chart.path().join("templates"))?;
    fs::write(
        chart.path().join("Chart.yaml"),
        json!({"apiVersion": "v2", "name": OTHER, "version": "26.7.0"}).to_string(),
    )?;
    fs::write(chart.path().join("templates/operator.yaml"), deployment.to_string())?;
    f.cluster.helm(&["install", OTHER, &chart.path().display().to_string(), "--namespace", f.cluster.namespace()])?;
    Ok(())
}

/// Returns the objects of the release, with their versions, and its history.
fn other(f: &Fixture) -> Result<[String; 2]> {
    let namespace = f.cluster.namespace();
    let objects = f.cluster.kubectl(&["get", "deployment", OTHER, "--namespace", namespace, "-o", "json"])?;
    Ok([objects, f.cluster.helm(&["history", OTHER, "--namespace", namespace, "-o", "json"])?])
}

async fn beside_the_other(f: &Fixture) -> Result<()> {
    let before = other(f)?;
    let (chart, values) = (f.cluster.chart().display().to_string(), f.cluster.values().display().to_string());
    let upgrade = ["upgrade", OTHER, &chart, "--namespace", f.cluster.namespace(), "--values", &values];
    let error = format!("{:#}", f.cluster.helm(&upgrade).expect_err("the other release was upgraded"));
    for words in
        ["release gpu-operator in", "Deployment gpu-operator of chart gpu-operator-v26.7.0", "helm install nodestack "]
    {
        ensure!(error.contains(words), "{words}: {error}");
    }
    // This chart's release is upgraded beside it, also after its Deployment was deleted.
    f.cluster.install_chart()?;
    f.cluster.kubectl(&["delete", "deployment", "nodestack-gpu-operator", "--namespace", f.cluster.namespace()])?;
    f.cluster.install_chart()?;
    f.operators_node().await?;
    ensure!(other(f)? == before, "{before:?}, now {:?}", other(f)?);
    Ok(())
}

#[test]
fn a_release_of_another_chart_is_not_upgraded_to_this_chart() {
    alone(async |f| {
        install_other(&f)?;
        let outcome = beside_the_other(&f).await;
        f.cluster.helm(&["uninstall", OTHER, "--namespace", f.cluster.namespace()])?;
        outcome
    });
}
