//! The operator's account can create only pods whose images come from the allowed registries, by digest if the chart requires it.

use anyhow::{Context, Result, ensure};
use cluster_client::handle::Cluster;
use gpu_operator_plan::desired::images::{GKE_COS, GKE_UBUNTU};
use harness::wait::eventually;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use super::{OPERATOR, account, denied, well_typed};
use crate::support::{READY, SHOWN, test};

/// An image of the registry that the chart's values for tests allow.
const ALLOWED: &str = "localhost:5999/nvidia/driver:1";
const DENIED: &str = "other.example.com/nvidia/driver:1";
/// The second operator, whose account the chart restricts with other values. It does not run.
const SECOND: &str = "admission-test";

fn pod_spec(image: &str) -> Value {
    json!({"containers": [{"name": "main", "image": image, "imagePullPolicy": "Never"}]})
}

/// Creates a DaemonSet of an account, in a dry run.
async fn create_set(client: &Client, pod: Value) -> Result<DaemonSet, kube::Error> {
    let labels = json!({"app": "admission"});
    let set = json!({
        "metadata": {"name": "admission"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    });
    let set = serde_json::from_value(set).map_err(kube::Error::SerdeError)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Api::default_namespaced(client.clone()).create(&dry_run, &set).await
}

/// Like [`create_set`], for a pod.
async fn create_pod(client: &Client, spec: Value) -> Result<Pod, kube::Error> {
    let pod = json!({"metadata": {"name": "admission"}, "spec": spec});
    let pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Api::default_namespaced(client.clone()).create(&dry_run, &pod).await
}

#[test]
fn images_of_other_registries_are_denied() {
    test(async |f| {
        let client = account(&f, OPERATOR).await?;
        create_set(&client, pod_spec(ALLOWED)).await.context("a DaemonSet")?;
        create_pod(&client, pod_spec(ALLOWED)).await.context("a pod")?;
        let words =
            format!("container main has image {DENIED}, which is from none of the allowed registries (localhost:");
        denied("a DaemonSet", create_set(&client, pod_spec(DENIED)).await, &words)?;
        denied("its fix", create_set(&client, pod_spec(DENIED)).await, "admission.allowedRegistries")?;
        denied("a pod", create_pod(&client, pod_spec(DENIED)).await, &words)?;
        let mut init = pod_spec(ALLOWED);
        init["initContainers"] = json!([{"name": "gate", "image": DENIED}]);
        denied("an init container", create_set(&client, init).await, "container gate has image other.example.com/")?;
        let mut volume = pod_spec(ALLOWED);
        volume["volumes"] = json!([{"name": "files", "image": {"reference": DENIED}}]);
        denied("a volume", create_set(&client, volume).await, "volume files has image other.example.com/")
    });
}

/// Creates a service account with the operator's role, and the policies that the chart renders for it with these values.
fn install(cluster: &Cluster, values: &str) -> Result<()> {
    let (namespace, chart) = (cluster.namespace(), cluster.chart().display().to_string());
    let values = format!("fullnameOverride={SECOND},image.repository=localhost:5999,{values}");
    let args = ["template", SECOND, &chart, "-n", namespace, "--set", &values];
    let policies = cluster.helm(&[&args[..], &["--show-only=templates/operator-admission.yaml"]].concat())?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), policies)?;
    cluster.kubectl(&["apply", "-f", &file.path().display().to_string()])?;
    cluster.kubectl(&["create", "serviceaccount", SECOND, "-n", namespace])?;
    let account = format!("--serviceaccount={namespace}:{SECOND}");
    cluster.kubectl(&["create", "rolebinding", SECOND, "-n", namespace, "--role", OPERATOR, &account])?;
    Ok(())
}

/// Deletes what [`install`] has created, if it exists.
fn uninstall(cluster: &Cluster) -> Result<()> {
    let policies = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    let of_second = format!("app.kubernetes.io/instance={SECOND}");
    cluster.kubectl(&["delete", policies, "-l", &of_second])?;
    let objects = [format!("rolebinding/{SECOND}"), format!("serviceaccount/{SECOND}")];
    let ignore = ["-n", cluster.namespace(), "--ignore-not-found"];
    cluster.kubectl(&[&["delete", &objects[0], &objects[1]], &ignore[..]].concat())?;
    Ok(())
}

/// Images with a digest, and whether they are from nvcr.io, a.example.com/b or docker.io/library.
const NAMES: [(&str, bool); 16] = [
    ("nvcr.io/nvidia/driver", true),
    ("nvcr.io.example.com/nvidia/driver", false),
    ("nvcr.io:5000/nvidia/driver", false),
    ("a.example.com/b/driver", true),
    ("a.example.com/b/driver:1", true),
    ("a.example.com/b", true),
    ("a.example.com/b:1", true),
    ("a.example.com/bc/driver", false),
    ("a.example.com/driver", false),
    ("localhost:5999/nvml-probe", true),
    ("localhost:5999/driver", false),
    ("busybox", true),
    ("docker.io/library/busybox", true),
    ("nvidia/driver", false),
    // A registry, because of its capital letters.
    ("NVIDIA/library/busybox", false),
    ("localhost/library/busybox", false),
];

#[test]
fn registries_match_by_component_and_digests_are_required() {
    test(async |f| {
        let digest = format!("sha256:{:064}", 7);
        uninstall(&f.cluster)?;
        let registries = "admission.allowedRegistries={nvcr.io,a.example.com/b,docker.io/library}";
        install(&f.cluster, &format!("image.digests.probe={digest},admission.requireDigests=true,{registries}"))?;
        ensure!(well_typed(&f.cluster, &format!("app.kubernetes.io/instance={SECOND}")).await?.len() == 2);
        let client = account(&f, SECOND).await?;
        eventually(SHOWN, "the policy", || async {
            denied("a tag", create_set(&client, pod_spec("nvcr.io/a:1")).await, "which has no digest")
        })
        .await?;
        for (name, is_allowed) in NAMES {
            let answer = create_set(&client, pod_spec(&format!("{name}@{digest}"))).await;
            if is_allowed {
                answer.context(name)?;
            } else {
                denied(name, answer, "from none of the allowed registries")?;
            }
        }
        denied("the fix", create_pod(&client, pod_spec("busybox:1")).await, "set image.digest in the policy")?;
        // GKE's nodes contain them, unless they are pulled.
        for image in [GKE_COS, GKE_UBUNTU] {
            create_set(&client, pod_spec(image)).await.context(image)?;
            let mut pulled = pod_spec(image);
            pulled["containers"][0]["imagePullPolicy"] = "Always".into();
            denied(image, create_set(&client, pulled).await, "which has no digest")?;
        }
        uninstall(&f.cluster)
    });
}

#[test]
fn a_policy_reports_a_denied_image() {
    test(async |f| {
        f.apply("{defaults: {driver: {image: {repository: other.example.com/driver}}}}").await?;
        eventually(READY, "the denial in the policy's condition", || async {
            let status = f.policies().get(&f.policy).await?.status.context("no status")?;
            let stalled =
                status.conditions.iter().find(|condition| condition.type_ == "Stalled").context("no condition")?;
            ensure!((stalled.status.as_str(), stalled.reason.as_str()) == ("True", "ApplyFailed"), "{stalled:?}");
            let words = ["has image other.example.com/driver:", "value admission.allowedRegistries of the chart"];
            ensure!(words.iter().all(|words| stalled.message.contains(words)), "{}", stalled.message);
            Ok(())
        })
        .await?;
        f.apply("{}").await?;
        f.wait_for_condition("Stalled", "False").await?;
        f.wait_until_ready().await
    });
}
