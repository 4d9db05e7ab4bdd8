//! Upgrades from the archived version 0.1.0 to this one, and back, with a policy and a GPU pod: no pod that uses a GPU, and no operand, is
//! restarted.

use std::{collections::BTreeMap, fs, path::PathBuf, thread};

use anyhow::{Context, Result, ensure};
use cluster::node::real_node::RealNode;
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{Fixture, PLAIN_STAGES, READY, alone};

const OLD: &str = "0.1.0";
const NEW: &str = env!("CARGO_PKG_VERSION");
/// A DaemonSet of this operator that no node needs.
const UNNEEDED: &str = "device-plugin-unneeded";
/// The user's pod.
const USER: &str = "user";

/// A policy with the images of this version: the older one has other defaults, and a change of these restarts pods in turn.
const SAME_IMAGES: &str = "{defaults: {toolkit: {image: {tag: v1.20.2}}, devicePlugin: {image: {tag: v0.19.3}}}}";

/// Returns the path of a file of the archive.
fn archived(f: &Fixture, name: &str) -> PathBuf {
    f.cluster.paths().root.join("e2e/releases/v0.1.0").join(name)
}

/// Imports the archived images into all nodes.
fn import_images(f: &Fixture) -> Result<()> {
    let archive = archived(f, &format!("images-{OLD}.oci.tar")).display().to_string();
    let import = |node: RealNode| {
        let import = ["ctr", "--namespace=k8s.io", "images", "import", "--local", &archive];
        node.exec(&import).map(drop)
    };
    thread::scope(|scope| {
        let imports = f.cluster.nodes().into_iter().map(|node| scope.spawn(|| import(node)));
        imports.collect::<Vec<_>>().into_iter().try_for_each(|import| import.join().expect("an import"))
    })
}

/// Installs or upgrades the release to a chart with the values of this cluster, and waits until operator and probes are available.
fn upgrade(f: &Fixture, chart: &str, values: &str, more: &[&str]) -> Result<()> {
    let (release, namespace) = (f.cluster.release(), f.cluster.namespace());
    let args = ["upgrade", "--install", release, chart, "--namespace", namespace, "--values", values];
    // All nodes at a time: tests wait for it.
    let at_once = ["detector", "probe"].map(|part| format!("{part}.updateStrategy.rollingUpdate.maxUnavailable=100%"));
    let at_once = ["--set", &at_once.join(","), "--wait", "--timeout", "2m"];
    f.cluster.helm(&[&args[..], &at_once, more].concat()).map(drop)
}

/// Upgrades the release to this version's chart.
fn to_new(f: &Fixture, more: &[&str]) -> Result<()> {
    upgrade(f, &f.cluster.chart().display().to_string(), &f.cluster.values().display().to_string(), more)
}

/// Upgrades, or goes back, to the archived version.
fn to_old(f: &Fixture) -> Result<()> {
    let mut values: Value = serde_json::from_str(&fs::read_to_string(f.cluster.values())?)?;
    // The chart names its images, and its schema has neither replicas nor the hook.
    let of_chart = values.as_object_mut().context("values")?;
    of_chart.retain(|key, _| key != "image" && key != "uninstall");
    values["operator"].as_object_mut().context("values of the operator")?.remove("replicas");
    let file = f.cluster.values().with_file_name("values-v0.1.0.json");
    fs::write(&file, values.to_string())?;
    let chart = archived(f, &format!("gpu-operator-{OLD}.tgz"));
    upgrade(f, &chart.display().to_string(), &file.display().to_string(), &[])
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

/// Waits until the probe of this version has reported, and the policy is ready.
async fn wait_until_served_by(f: &Fixture, version: &str) -> Result<()> {
    f.wait_for_status("the report of the probe", |status| {
        let found = status.report.as_ref().map(|report| report.probe_version.as_str());
        ensure!(found == Some(version), "probe {found:?}, not {version}");
        Ok(())
    })
    .await?;
    f.wait_until_ready().await
}

/// Returns the number of the operator's passes.
async fn passes(f: &Fixture) -> Result<u64> {
    let metrics = f.ask_operator("/metrics").await?;
    let passes = metrics.lines().find_map(|line| line.strip_prefix("gpu_operator_passes_total "));
    Ok(passes.context("no metric")?.trim().parse()?)
}

/// This version's operator with the CRDs of the archived one: policies report it, and nothing is removed.
async fn outdated_crds_are_reported(f: &Fixture) -> Result<()> {
    to_new(f, &["--set", "crds.enabled=false"])?;
    let degraded = |message: &str| message.contains("no schema revision") && message.contains("config/crd");
    eventually(READY, "condition Degraded with the reason CrdsOutdated", || async {
        let status = f.policies().get(&f.policy).await?.status.context("no status")?;
        let found = status.conditions.iter().find(|found| found.type_ == "Degraded").context("no condition")?;
        ensure!(found.reason == Reason::CrdsOutdated.as_str() && degraded(&found.message), "{found:?}");
        Ok(())
    })
    .await?;
    add_unneeded(f).await?;
    let before = passes(f).await?;
    eventually(READY, "a pass", || async {
        ensure!(passes(f).await? > before, "no pass");
        Ok(())
    })
    .await?;
    ensure!(daemon_sets(f).get_opt(UNNEEDED).await?.is_some(), "a DaemonSet was pruned with outdated CRDs");
    wait_until_served_by(f, NEW).await
}

async fn there_and_back(f: &Fixture) -> Result<()> {
    f.cluster.helm(&["uninstall", f.cluster.release(), "--namespace", f.cluster.namespace(), "--wait"])?;
    to_old(f)?;
    f.apply(SAME_IMAGES).await?;
    wait_until_served_by(f, OLD).await?;
    f.run_gpu_pod(USER).await?;
    let before = identities(f).await?;
    let unchanged = async |when: &str| {
        let now = identities(f).await?;
        ensure!(now == before, "{when}: {now:?}, before {before:?}");
        f.sees_one_gpu(USER)
    };

    outdated_crds_are_reported(f).await?;
    unchanged("with outdated CRDs").await?;
    to_new(f, &[])?;
    wait_until_pruned(f).await?;
    f.wait_for_condition("Degraded", "False").await?;
    wait_until_served_by(f, NEW).await?;
    unchanged("after the upgrade").await?;

    to_old(f)?;
    add_unneeded(f).await?;
    wait_until_pruned(f).await?;
    wait_until_served_by(f, OLD).await?;
    unchanged("after going back").await
}

#[test]
fn an_upgrade_from_0_1_0_and_back_restarts_no_pod() {
    alone(async |f| {
        import_images(&f)?;
        let outcome = there_and_back(&f).await;
        // The following tests expect this version, with their values.
        let returned = to_new(&f, &[]);
        f.cluster.install_chart()?;
        outcome.and(returned)?;
        wait_until_served_by(&f, NEW).await
    });
}
