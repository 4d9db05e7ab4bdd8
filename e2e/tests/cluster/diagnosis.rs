//! Mistakes in pods are reported in Events on the pod, or on its owner if the API server rejects the pod.

use anyhow::{Result, ensure};
use gpu_operator_crd::keys;
use harness::wait::eventually;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::{Fixture, HOSTNAME, READY, SHOWN, test};

/// The namespace of owners whose pods are rejected.
const NAMESPACE: &str = "diagnosis-test";
/// A label that no other test publishes.
const ACCELERATOR: &str = "diagnosis.example/accelerator";
/// A `RuntimeClass` that does not exist.
const NO_CLASS: &str = "nvidia-missing";

/// Returns a pod that does nothing.
async fn create(f: &Fixture, name: &str, spec: Value) -> Result<()> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    f.pods(&f.users()).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

fn requesting_pod(resource: &str) -> Value {
    json!({
        "containers": [{
            "name": "main", "image": "localhost:5999/nvml-probe:dev", "args": ["hold"],
            "resources": {"limits": {resource: "1"}},
        }],
    })
}

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
fn events(f: &Fixture, namespace: &str, kind: &str, name: &str) -> Result<Vec<String>> {
    let selector = format!("--field-selector=reportingComponent={},involvedObject.kind={kind}", keys::MANAGER);
    let columns = "-o=jsonpath={range .items[*]}{.involvedObject.name}|{.type} {.reason}: {.message}{\"\\n\"}{end}";
    let events = f.cluster.kubectl(&["get", "events", "-n", namespace, &selector, columns])?;
    let lines = events.lines().filter_map(|line| line.split_once('|'));
    Ok(lines.filter(|(about, _)| about.starts_with(name)).map(|(_, event)| event.to_owned()).collect())
}

/// Waits until the object has exactly one Event, whose text contains these words.
async fn wait_for_event(f: &Fixture, namespace: &str, kind: &str, name: &str, words: [&str; 2]) -> Result<()> {
    // Diagnoses that depend on the state of the fleet wait for a minute.
    eventually(SHOWN + SHOWN, &format!("an Event on {kind} {name}"), || async move {
        let events = events(f, namespace, kind, name)?;
        let [event] = events.as_slice() else { anyhow::bail!("{events:?}") };
        ensure!(words.iter().all(|word| event.contains(word)), "{event}");
        Ok(())
    })
    .await
}

#[test]
fn a_pod_with_a_mistake_gets_an_event_and_a_valid_one_does_not() {
    test(async |f| {
        f.apply(&format!("{{nodeLabels: [{{key: {ACCELERATOR}}}]}}")).await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("good").await?;
        create(&f, "legacy", requesting_pod("alpha.kubernetes.io/nvidia-gpu")).await?;
        let mut k80 = requesting_pod(keys::GPU_RESOURCE);
        k80["nodeSelector"] = json!({ACCELERATOR: "nvidia-tesla-k80"});
        create(&f, "k80", k80).await?;
        wait_for_event(&f, &f.users(), "Pod", "legacy", ["Warning LegacyGpuResource", "nvidia.com/gpu: 1"]).await?;
        let words = format!("{ACCELERATOR}=nvidia-tesla-k80, which no node has; nodes have nvidia-h100-80gb");
        wait_for_event(&f, &f.users(), "Pod", "k80", ["Warning NoNodeFits", &words]).await?;
        let good = events(&f, &f.users(), "Pod", "good")?;
        ensure!(good.is_empty(), "{good:?}");
        Ok(())
    });
}

#[test]
fn a_pod_before_its_gpus_gets_an_event_with_the_progress() {
    test(async |f| {
        let mut early = requesting_pod(keys::GPU_RESOURCE);
        early["nodeSelector"] = json!({HOSTNAME: f.host.name()});
        create(&f, "early", early).await?;
        wait_for_event(&f, &f.users(), "Pod", "early", ["Normal GpuNodesNotReady", &f.host.name()]).await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        eventually(READY, "the pod on its node", || async {
            let pod = f.pods(&f.users()).get("early").await?;
            ensure!(pod.spec.is_some_and(|spec| spec.node_name.is_some()), "the pod has no node");
            Ok(())
        })
        .await
    });
}

#[test]
fn the_owner_of_rejected_pods_gets_an_event_with_the_reason() {
    test(async |f| {
        let outcome = async {
            f.cluster.kubectl(&["create", "namespace", NAMESPACE])?;
            let mut requesting = requesting_pod("cpu");
            requesting["containers"][0]["resources"] = json!({"requests": {keys::GPU_RESOURCE: "1"}});
            // A mistake in the template itself is rejected on apply.
            let rejection = apply(&f, &deployment("requesting", &requesting)).expect_err("rejected");
            ensure!(format!("{rejection:#}").contains("Limit must be set"), "{rejection:#}");
            // A mistake that a LimitRange introduces is not.
            let range = json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gpus", "namespace": NAMESPACE},
                "spec": {"limits": [{"type": "Container", "defaultRequest": {keys::GPU_RESOURCE: "1"}}]},
            });
            apply(&f, &range)?;
            apply(&f, &deployment("limitless", &requesting_pod("cpu")))?;
            let words = ["Warning GpuRequestWithoutLimit", "LimitRange"];
            wait_for_event(&f, NAMESPACE, "ReplicaSet", "limitless-", words).await?;
            f.cluster.kubectl(&["delete", "limitrange/gpus", "-n", NAMESPACE])?;
            let mut classless = requesting_pod("cpu");
            classless["runtimeClassName"] = NO_CLASS.into();
            apply(&f, &deployment("classless", &classless))?;
            wait_for_event(&f, NAMESPACE, "ReplicaSet", "classless-", ["Warning RuntimeClassMissing", NO_CLASS]).await
        }
        .await;
        f.cluster.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false"])?;
        outcome
    });
}
