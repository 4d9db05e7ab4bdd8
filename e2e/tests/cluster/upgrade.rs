//! Upgrades from an older build to this one, and back, with a policy and a GPU pod: no pod that uses a GPU, and no operand, is restarted. The
//! older build is this one under another tag, with CRDs of a later schema revision, as an operator has them that was rolled back. With CRDs
//! of an earlier revision, the operator does not lead.

use std::{collections::BTreeMap, fs};

use anyhow::{Result, ensure};
use gpu_operator_crd::{
    keys,
    policy::Stage,
    schema_revision::{ANNOTATION, SCHEMA_REVISION, crd_names},
};
use harness::{files::copy, wait::eventually};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::support::{Fixture, PLAIN_STAGES, PROBE_PODS, READY, alone};

/// The tags of the images of this build, and of the older one.
const NEW: &str = "dev";
const OLD: &str = "older";
/// A DaemonSet of this operator that no node needs.
const UNNEEDED: &str = "device-plugin-unneeded";
/// The user's pod.
const USER: &str = "user";

/// Adds the tag of the older build to the images in all nodes.
fn tag_images(f: &Fixture) -> Result<()> {
    for node in f.cluster.nodes() {
        for program in ["gpu-operator", "nvml-probe"] {
            let [new, old] = [NEW, OLD].map(|tag| format!("localhost:5999/{program}:{tag}"));
            let images = |args: &[&str]| node.exec(&[&["ctr", "--namespace=k8s.io", "images"], args].concat());
            images(&["tag", "--force", &new, &old])?;
            // containerd 1.7 finds an image that it has not pulled only once it is labelled.
            images(&["label", &old, "io.cri-containerd.image=managed"])?;
        }
    }
    Ok(())
}

/// Installs or upgrades the release to a chart with the values of this cluster, and waits until operator and probes are available.
fn upgrade(f: &Fixture, chart: &str, tag: &str) -> Result<()> {
    let (release, namespace, values) = (f.cluster.release(), f.cluster.namespace(), f.cluster.values());
    // All nodes at a time: tests wait for it.
    let at_once = ["detector", "probe"].map(|part| format!("{part}.updateStrategy.rollingUpdate.maxUnavailable=100%"));
    let set = format!("image.tag={tag},{}", at_once.join(","));
    let args = ["upgrade", "--install", release, chart, "--namespace", namespace, "--set", &set];
    let values = values.display().to_string();
    f.cluster.helm(&[&args[..], &["--values", &values, "--wait", "--timeout", "5m"]].concat()).map(drop)
}

/// Installs the older build with CRDs of a later schema revision.
fn install_old(f: &Fixture) -> Result<()> {
    let chart = tempfile::tempdir()?;
    copy(&f.cluster.chart(), chart.path())?;
    for entry in fs::read_dir(chart.path().join("crd"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let [own, later] = [SCHEMA_REVISION, SCHEMA_REVISION + 1].map(|revision| format!("{ANNOTATION}: '{revision}'"));
        ensure!(text.contains(&own), "{} lacks {own}", path.display());
        fs::write(&path, text.replace(&own, &later))?;
    }
    upgrade(f, &chart.path().display().to_string(), OLD)
}

/// Upgrades the release to this build's chart.
fn to_new(f: &Fixture) -> Result<()> {
    upgrade(f, &f.cluster.chart().display().to_string(), NEW)
}

/// Goes back to the older build, which the release had before.
fn roll_back(f: &Fixture) -> Result<()> {
    let args = ["rollback", f.cluster.release(), "--namespace", f.cluster.namespace(), "--wait", "--timeout", "5m"];
    f.cluster.helm(&args).map(drop)
}

/// Returns uid and restarts of the user's pod and of the operands' pods on the node.
async fn identities(f: &Fixture) -> Result<BTreeMap<String, (Option<String>, Vec<i32>)>> {
    let mut pods = vec![f.pods(&f.users()).get(USER).await?];
    for stage in PLAIN_STAGES {
        pods.extend(f.operands(stage).await?);
    }
    let restarts = |pod: &Pod| {
        let statuses =
            pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
        statuses.flatten().flatten().map(|container| container.restart_count).collect()
    };
    Ok(pods.into_iter().map(|pod| (pod.name_any(), (pod.uid(), restarts(&pod)))).collect())
}

fn daemon_sets(f: &Fixture) -> Api<DaemonSet> {
    Api::namespaced(f.cluster.client(), f.cluster.namespace())
}

/// Creates a DaemonSet that looks like one of the operator's, and that no node needs.
async fn add_unneeded(f: &Fixture) -> Result<()> {
    let labels = json!({keys::STAGE: Stage::DevicePlugin.as_str(), keys::MANAGED_BY: keys::MANAGER});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": UNNEEDED, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost:5999/none:1"}]},
            },
        },
    });
    daemon_sets(f).patch(UNNEEDED, &PatchParams::apply("test"), &Patch::Apply(set)).await?;
    Ok(())
}

/// Waits until the operator has pruned it, which shows that it plans and writes.
async fn wait_until_pruned(f: &Fixture) -> Result<()> {
    eventually(READY, "the deletion of a DaemonSet that no node needs", || async {
        ensure!(daemon_sets(f).get_opt(UNNEEDED).await?.is_none(), "it exists");
        Ok(())
    })
    .await
}

/// Waits until the node's probe is of a build, and the policy is ready.
async fn wait_until_served_by(f: &Fixture, tag: &str) -> Result<()> {
    eventually(READY, "the probe of the build", || async {
        let pods = f.pods_here(PROBE_PODS).await?;
        let images =
            pods.iter().flat_map(|pod| &pod.spec).flat_map(|spec| &spec.containers).map(|c| c.image.as_deref());
        let images: Vec<_> = images.flatten().collect();
        ensure!(!images.is_empty() && images.iter().all(|image| image.ends_with(tag)), "{images:?}");
        Ok(())
    })
    .await?;
    f.wait_until_ready().await
}

/// Sets the schema revision of the CRDs.
fn set_revision(f: &Fixture, revision: u32) -> Result<()> {
    let annotation = format!("{ANNOTATION}={revision}");
    f.cluster.kubectl(&[&["annotate", "--overwrite", "crd"], &crd_names()[..], &[&annotation]].concat()).map(drop)
}

/// With CRDs of an earlier revision, the operator does not lead, and once they are updated, it does.
async fn outdated_crds_end_the_lead(f: &Fixture) -> Result<()> {
    let shows = async |metric: &str| {
        eventually(READY, &format!("the metric {metric}"), || async {
            let metrics = f.ask_operator("/metrics").await?;
            ensure!(metrics.lines().any(|line| line == metric), "{metrics}");
            Ok(())
        })
        .await
    };
    set_revision(f, SCHEMA_REVISION - 1)?;
    let outdated = async {
        shows("gpu_operator_leader 0").await?;
        shows(&format!("gpu_operator_crd_outdated{{crd=\"{}\"}} 1", crd_names()[0])).await?;
        add_unneeded(f).await
    }
    .await;
    set_revision(f, SCHEMA_REVISION)?;
    outdated?;
    shows("gpu_operator_leader 1").await?;
    wait_until_pruned(f).await
}

async fn there_and_back(f: &Fixture) -> Result<()> {
    f.cluster.helm(&["uninstall", f.cluster.release(), "--namespace", f.cluster.namespace(), "--wait"])?;
    install_old(f)?;
    f.apply("{}").await?;
    wait_until_served_by(f, OLD).await?;
    f.run_gpu_pod(USER).await?;
    let before = identities(f).await?;
    let unchanged = async |when: &str| {
        let now = identities(f).await?;
        ensure!(now == before, "{when}: {now:?}, before {before:?}");
        f.sees_one_gpu(USER)
    };

    to_new(f)?;
    wait_until_served_by(f, NEW).await?;
    unchanged("after the upgrade").await?;

    roll_back(f)?;
    add_unneeded(f).await?;
    wait_until_pruned(f).await?;
    wait_until_served_by(f, OLD).await?;
    unchanged("after going back").await?;

    to_new(f)?;
    wait_until_served_by(f, NEW).await?;
    outdated_crds_end_the_lead(f).await?;
    unchanged("after a time with outdated CRDs").await
}

#[test]
fn an_upgrade_from_an_older_build_and_back_restarts_no_pod() {
    alone(async |f| {
        tag_images(&f)?;
        let outcome = there_and_back(&f).await;
        // The following tests expect this build, with their values.
        let returned = to_new(&f);
        f.cluster.install_chart()?;
        outcome.and(returned)?;
        wait_until_pruned(&f).await?;
        wait_until_served_by(&f, NEW).await
    });
}
