//! `gpuPods.mode: Evict` on real nodes: real evictions of pods whose controllers create them again.

use anyhow::{Context, Result, bail, ensure};
use gpu_operator_cli::{objects::Objects, plan::report};
use gpu_operator_crd::{ClusterGpuPolicy, Phase, keys, reason::Reason};
use gpu_operator_plan::forecast::Outcome;
use harness::wait::eventually;
use k8s_openapi::{
    api::{apps::v1::Deployment, batch::v1::Job, policy::v1::PodDisruptionBudget},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{DEFAULT_DRIVER, Fixture, HOSTNAME, READY, everywhere};

const OTHER: &str = "590.10.01";

/// Returns a policy with this driver for some nodes.
fn policy(nodes: &[Fixture], driver: &str) -> Result<ClusterGpuPolicy> {
    let names: Vec<String> = nodes.iter().map(|f| f.host.name()).collect();
    let spec = json!({
        "deletionPolicy": "Now",
        "images": {"registry": "localhost:5999"},
        "nodeSelector": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]},
        "defaults": {"driver": {"version": driver}},
        "rollout": {"maxParallel": 4, "maxUnavailable": "100%", "gpuPods": {"mode": "Evict"}},
    });
    Ok(ClusterGpuPolicy::new("fleet", serde_json::from_value(spec)?))
}

async fn apply(nodes: &[Fixture], driver: &str) -> Result<()> {
    let policy = policy(nodes, driver)?;
    nodes[0].policies().patch("fleet", &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await?;
    Ok(())
}

/// Returns the template of a pod with a GPU of a node, with this label. It fails when it is evicted.
fn template(f: &Fixture, app: &str) -> Value {
    let mut pod = f.gpu_pod(app, &["nvidia-smi", "--loop=1"]);
    pod["metadata"] = json!({"labels": {"app": app}});
    pod
}

/// Returns the name of the running pod with this label.
async fn running(f: &Fixture, app: &str) -> Result<String> {
    let pods = f.pods(&f.users()).list(&kube::api::ListParams::default().labels(&format!("app={app}"))).await?;
    let runs = |pod: &&k8s_openapi::api::core::v1::Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    Ok(pods.iter().find(runs).context("no running pod")?.name_any())
}

/// Creates a Deployment of one pod with a budget that allows no disruption, and a Job for which evictions are no failures.
async fn create(served: &Fixture, training: &Fixture) -> Result<(Api<PodDisruptionBudget>, Api<Job>)> {
    let client = || served.cluster.client();
    let users = served.users();
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(served, "web"),
        },
    });
    let mut deployment: Deployment = serde_json::from_value(deployment)?;
    if let Some(pod) = deployment.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) {
        pod.restart_policy = Some("Always".to_owned());
    }
    Api::namespaced(client(), &users).create(&PostParams::default(), &deployment).await?;
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    let budgets = Api::<PodDisruptionBudget>::namespaced(client(), &users);
    budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    let ignore = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let job = json!({
        "metadata": {"name": "training"},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignore]},
            "template": template(training, "training"),
        },
    });
    let jobs = Api::<Job>::namespaced(client(), &training.users());
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    Ok((budgets, jobs))
}

/// Creates a Deployment's pod, and one of a DaemonSet with data that would be lost, which is never evicted.
async fn create_kept(f: &Fixture) -> Result<()> {
    let mut agent = template(f, "agent");
    agent["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    for (kind, mut spec) in [
        ("Deployment", json!({"replicas": 1, "template": template(f, "notebook")})),
        ("DaemonSet", json!({"template": agent})),
    ] {
        let app = spec["template"]["metadata"]["labels"]["app"].clone();
        spec["selector"] = json!({"matchLabels": {"app": app}});
        spec["template"]["spec"]["restartPolicy"] = json!("Always");
        let object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": app, "namespace": f.users()}, "spec": spec});
        let object: kube::api::DynamicObject = serde_json::from_value(object)?;
        let plural = format!("{}s", kind.to_lowercase());
        let resource = kube::api::ApiResource {
            plural,
            ..kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk("apps", "v1", kind))
        };
        Api::<kube::api::DynamicObject>::namespaced_with(f.cluster.client(), &f.users(), &resource)
            .create(&PostParams::default(), &object)
            .await?;
    }
    Ok(())
}

/// Checks that `kubectl gpu-fleet plan` reports the change of the driver beforehand: all nodes in the first wave, each with its pod.
async fn is_planned(nodes: &[Fixture], outcomes: [(&str, Outcome); 3]) -> Result<()> {
    let cluster = &nodes[0].cluster;
    let objects = Objects::of_cluster(&cluster.client(), cluster.namespace()).await?;
    let planned = report(&objects, &[policy(nodes, OTHER)?], Timestamp::now())?;
    let planned = planned.policies.first().context("no plan")?;
    for (f, (pod, outcome)) in nodes.iter().zip(outcomes) {
        let update = planned.updates.iter().find(|update| update.node == f.host.name().as_str());
        let update = update.with_context(|| format!("no update of {}: {planned:#?}", f.host.name()))?;
        let pods: Vec<_> = update.pods.iter().map(|pod| (pod.pod.clone(), pod.outcome)).collect();
        let expected = (Some(1), vec![(format!("{}/{pod}", f.users()), outcome)]);
        ensure!((update.wave, pods) == expected, "{planned:#?}");
    }
    Ok(())
}

/// Waits until the only pod with a GPU of a node is in the probe's report, and in its metrics.
async fn is_attributed(f: &Fixture, pod: &str) -> Result<()> {
    eventually(READY, "the pod in the probe's report and metrics", || async {
        let report = f.status().await?.report.context("no report")?;
        let pods = report.gpu_pods.context("no pods in the report")?;
        ensure!(pods.count == 1 && pods.names == [format!("{}/{pod}", f.users())], "{pods:?}");
        let metrics = f.ask_probe("/metrics").await?;
        let of_pod = metrics.lines().filter(|line| line.contains(&format!("pod=\"{pod}\"")));
        let of_pod: Vec<_> = of_pod.filter_map(|line| line.split('{').next()).collect();
        ensure!(of_pod == ["nvml_probe_gpu_pod_info"], "{metrics}");
        Ok(())
    })
    .await
}

#[test]
fn evicted_pods_come_back_and_a_bare_pod_stays() {
    everywhere(async |nodes| {
        let [served, training, bare, kept, ..] = nodes.as_slice() else { bail!("too few nodes") };
        let all = &nodes[..4];
        apply(all, DEFAULT_DRIVER).await?;
        for f in all {
            f.wait_for_status("a ready node", |status| {
                ensure!(status.phase == Phase::Ready && status.gpus.allocatable > 0, "{status:?}");
                Ok(())
            })
            .await?;
        }
        let (budgets, jobs) = create(served, training).await?;
        bare.run_gpu_pod("bare").await?;
        create_kept(kept).await?;
        let pods_kept = || async { Ok([running(kept, "agent").await?, running(kept, "notebook").await?]) };
        let kept_before: [String; 2] = eventually(READY, "running pods", pods_kept).await?;
        let pods = || async { Ok([running(served, "web").await?, running(training, "training").await?]) };
        let before: [String; 2] = eventually(READY, "running pods", pods).await?;
        eventually(READY, "a budget that allows no disruption", || async {
            let status = budgets.get("web").await?.status.context("no status")?;
            ensure!(status.current_healthy == 1 && status.disruptions_allowed == 0, "{status:?}");
            Ok(())
        })
        .await?;

        let outcomes =
            [(before[0].as_str(), Outcome::Blocked), (&before[1], Outcome::Evicted), ("bare", Outcome::Kept)];
        is_planned(&nodes[..3], outcomes).await?;
        apply(all, OTHER).await?;
        let loaded = |f: &Fixture| f.host.standin().loaded_driver();
        let updated = async |f: &Fixture| {
            eventually(READY, "the other driver and no cordon", || async {
                ensure!(loaded(f).as_deref() == Some(OTHER), "{:?}: {:?}", loaded(f), f.status().await?.message);
                let node = f.node().await?;
                ensure!(!node.annotations().contains_key(keys::CORDON), "{:?}", f.status().await?.message);
                Ok(())
            })
            .await
        };
        // The Job's pod is evicted, which is no failure of the Job.
        updated(training).await?;
        let job = eventually(READY, "another pod of the Job", || async {
            ensure!(running(training, "training").await? != before[1], "the pod was not evicted");
            Ok(jobs.get("training").await?)
        })
        .await?;
        let failed = job.status.and_then(|status| status.failed).unwrap_or_default();
        ensure!(failed == 0, "{failed} failures");
        // The bare pod is named and stays.
        bare.wait_for_reason(Reason::GpuPodsInUse).await?;
        let status = bare.status().await?;
        ensure!(status.waits_on == [format!("{}/bare", bare.users())], "{status:?}");
        ensure!(status.message.contains("gpuPods.barePods: Evict"), "{}", status.message);
        is_attributed(bare, "bare").await?;
        // No pod is evicted beside one that has to be kept.
        kept.wait_for_reason(Reason::GpuPodsInUse).await?;
        let message = kept.status().await?.message;
        ensure!(message.contains(&kept_before[0]) && message.contains("gpuPods.emptyDir: Evict"), "{message}");
        // The budget is named.
        served.wait_for_reason(Reason::EvictionBlocked).await?;
        let message = served.status().await?.message;
        ensure!(message.contains("The disruption budget web needs 1 healthy pods and has 1 currently"), "{message}");
        ensure!(running(served, "web").await? == before[0] && loaded(served).as_deref() == Some(DEFAULT_DRIVER));
        budgets.delete("web", &kube::api::DeleteParams::default()).await?;
        updated(served).await?;
        eventually(READY, "another pod of the Deployment", || async {
            ensure!(running(served, "web").await? != before[0], "the pod was not evicted");
            Ok(())
        })
        .await?;
        bare.cluster.kubectl(&["delete", "pod", "bare", "-n", &bare.users()])?;
        updated(bare).await?;
        ensure!(pods_kept().await? == kept_before, "a pod was evicted beside one that is kept");
        kept.cluster.kubectl(&["delete", "daemonset", "agent", "-n", &kept.users()])?;
        updated(kept).await?;
        eventually(READY, "metrics without the pod that has ended", || async {
            let metrics = bare.ask_probe("/metrics").await?;
            ensure!(!metrics.contains("pod=\"bare\""), "{metrics}");
            Ok(())
        })
        .await
    });
}
