//! Mistakes in pods are reported in Events on the pod, or on its owner if the API server rejects the pod.

use anyhow::{Result, ensure};
use e2e::eventually;
use gpu_operator_crd::keys;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{Fixture, HOSTNAME, READY, SHOWN, test};

/// The namespace of owners whose pods are rejected.
const NAMESPACE: &str = "diagnosis-test";
/// A label that no other test publishes.
const ACCELERATOR: &str = "diagnosis.example/accelerator";
/// A `RuntimeClass` that does not exist.
const NO_CLASS: &str = "nvidia-nobodys";

/// Returns a pod that does nothing.
async fn create(f: &Fixture, name: &str, spec: Value) -> Result<()> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    f.pods(&f.users()).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

fn asking(resource: &str) -> Value {
    json!({
        "containers": [{
            "name": "main", "image": "localhost:5999/nvml-probe:dev", "args": ["hold"],
            "resources": {"limits": {resource: "1"}},
        }],
    })
}

/// Returns a Deployment with one pod.
fn deployment(name: &str, pod: &Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

fn apply(f: &Fixture, object: &Value) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), object.to_string())?;
    f.cluster.kubectl(&["apply", "-f", &file.path().display().to_string()])
}

/// Returns the operator's Events on objects of a kind with this name prefix: type, reason and message, one per line.
fn told(f: &Fixture, namespace: &str, kind: &str, name: &str) -> Result<Vec<String>> {
    let ours = format!("--field-selector=reportingComponent={},involvedObject.kind={kind}", keys::MANAGER);
    let columns = "-o=jsonpath={range .items[*]}{.involvedObject.name}|{.type} {.reason}: {.message}{\"\\n\"}{end}";
    let events = f.cluster.kubectl(&["get", "events", "-n", namespace, &ours, columns])?;
    let lines = events.lines().filter_map(|line| line.split_once('|'));
    Ok(lines.filter(|(about, _)| about.starts_with(name)).map(|(_, said)| said.to_owned()).collect())
}

/// Waits until there is exactly one Event, with this content.
async fn says(f: &Fixture, namespace: &str, kind: &str, name: &str, words: [&str; 2]) -> Result<()> {
    // Diagnoses that depend on the state of the fleet wait for a minute.
    eventually(SHOWN + SHOWN, &format!("an Event on {kind} {name}"), || async move {
        let told = told(f, namespace, kind, name)?;
        let [said] = told.as_slice() else { anyhow::bail!("{told:?}") };
        ensure!(words.iter().all(|word| said.contains(word)), "{said}");
        Ok(())
    })
    .await
}

#[test]
fn a_pod_with_a_mistake_is_told_and_a_good_one_is_left_in_peace() {
    test(|f| async move {
        f.apply(&format!("{{nodeLabels: [{ACCELERATOR}]}}")).await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("good").await?;
        create(&f, "legacy", asking("alpha.kubernetes.io/nvidia-gpu")).await?;
        let mut k80 = asking(keys::GPU_RESOURCE);
        k80["nodeSelector"] = json!({ACCELERATOR: "nvidia-tesla-k80"});
        create(&f, "k80", k80).await?;
        says(&f, &f.users(), "Pod", "legacy", ["Warning LegacyGpuResource", "nvidia.com/gpu: 1"]).await?;
        let words = format!("{ACCELERATOR}=nvidia-tesla-k80, which no node has; nodes have nvidia-h100-80gb");
        says(&f, &f.users(), "Pod", "k80", ["Warning NoNodeFits", &words]).await?;
        let good = told(&f, &f.users(), "Pod", "good")?;
        ensure!(good.is_empty(), "{good:?}");
        Ok(())
    });
}

#[test]
fn a_pod_that_comes_before_the_gpus_is_told_how_far_they_are() {
    test(|f| async move {
        let mut early = asking(keys::GPU_RESOURCE);
        early["nodeSelector"] = json!({HOSTNAME: f.host.name()});
        create(&f, "early", early).await?;
        says(&f, &f.users(), "Pod", "early", ["Normal GpuNodesNotReady", &f.host.name()]).await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        eventually(READY, "the pod on its node", || async {
            let pod = f.pods(&f.users()).get("early").await?;
            ensure!(pod.spec.is_some_and(|spec| spec.node_name.is_some()), "it has none");
            Ok(())
        })
        .await
    });
}

#[test]
fn owners_of_pods_that_the_api_server_refuses_are_told_why() {
    test(|f| async move {
        let outcome = async {
            f.cluster.kubectl(&["create", "namespace", NAMESPACE])?;
            let mut requesting = asking("cpu");
            requesting["containers"][0]["resources"] = json!({"requests": {keys::GPU_RESOURCE: "1"}});
            // A mistake in the template itself is rejected on apply.
            let refused = apply(&f, &deployment("requesting", &requesting)).expect_err("refused");
            ensure!(format!("{refused:#}").contains("Limit must be set"), "{refused:#}");
            // A mistake that a LimitRange adds is not.
            let range = json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gpus", "namespace": NAMESPACE},
                "spec": {"limits": [{"type": "Container", "defaultRequest": {keys::GPU_RESOURCE: "1"}}]},
            });
            apply(&f, &range)?;
            apply(&f, &deployment("limitless", &asking("cpu")))?;
            let words = ["Warning GpuRequestWithoutLimit", "LimitRange"];
            says(&f, NAMESPACE, "ReplicaSet", "limitless-", words).await?;
            f.cluster.kubectl(&["delete", "limitrange/gpus", "-n", NAMESPACE])?;
            let mut classless = asking("cpu");
            classless["runtimeClassName"] = NO_CLASS.into();
            apply(&f, &deployment("classless", &classless))?;
            says(&f, NAMESPACE, "ReplicaSet", "classless-", ["Warning RuntimeClassMissing", NO_CLASS]).await
        }
        .await;
        f.cluster.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false"])?;
        outcome
    });
}
