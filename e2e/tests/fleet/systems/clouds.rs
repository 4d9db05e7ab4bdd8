//! Clouds.

use anyhow::{Context, ensure};
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{
    system::{A100, GKE, H100, K80, System, T4, node, text, with_driver, with_host_runtime, with_label, with_runtime},
    third_party::addon,
};
use crate::support::test;

#[test]
fn gke_with_container_optimized_os() {
    test(|f| async move {
        let k80 = with_label(node("cos", K80, 1, ("cos", "117")), GKE, "nvidia-tesla-k80");
        let s = System::ready(f, "gke-cos", vec![k80]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        let stages = s.stages().await?;
        let (driver, plugin) = (text(&stages["driver"][0])?, text(&stages["device-plugin"][0])?);
        for word in ["/home/kubernetes/bin/nvidia", "--version=default", "install"] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        for word in ["--enable-container-gpu-metrics", "2112", "/home/kubernetes/bin/nvidia"] {
            ensure!(plugin.contains(word), "no {word} in {plugin}");
        }
        ensure!(s.label("cos", GKE).await?.as_deref() == Some("nvidia-tesla-k80"), "the cloud's label was changed");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({GKE: "nvidia-tesla-k80"})).await? == "cos");
        s.end().await
    });
}

#[test]
fn gke_with_ubuntu() {
    test(|f| async move {
        let mut t4 = with_label(node("ubuntu", T4, 1, ("ubuntu", "22.04")), GKE, "nvidia-tesla-t4");
        t4.labels.insert("cloud.google.com/gke-nodepool".into(), "gpus".into());
        let s = System::ready(f, "gke-ubuntu", vec![t4]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({GKE: "nvidia-tesla-t4"})).await? == "ubuntu");
        s.end().await
    });
}

#[test]
fn gke_with_its_own_driver_and_plugin() {
    test(|f| async move {
        let mut managed = with_label(node("managed", H100, 8, ("cos", "117")), GKE, "nvidia-h100-80gb");
        managed.labels.insert("cloud.google.com/gke-gpu-driver-version".into(), "default".into());
        managed.host_driver_root = "/home/kubernetes/bin/nvidia".into();
        let addon = addon()?;
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        sets.patch("nvidia-gpu-device-plugin", &apply, &Patch::Apply(&addon)).await?;
        let s = System::ready(f, "gke-managed", vec![with_driver(managed, "535.309.01")]).await?;
        s.has_stages(&[]).await?;
        ensure!(s.allocatable("managed", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-h100-80gb"})).await? == "managed");
        let status = s.f.gpu_nodes().get("managed").await?.status.unwrap_or_default();
        ensure!(
            status.message.contains("kube-system/nvidia-gpu-device-plugin"),
            "the message does not name the plugin: {}",
            status.message
        );
        sets.delete("nvidia-gpu-device-plugin", &DeleteParams::default()).await?;
        s.end().await
    });
}

#[test]
fn eks_with_accelerated_images() {
    test(|f| async move {
        let mut node = with_driver(node("eks", A100, 8, ("amzn", "2023")), "580.95.05");
        for (key, value) in [("name", "a100"), ("manufacturer", "nvidia"), ("count", "8"), ("memory", "40960")] {
            node.labels.insert(format!("karpenter.k8s.aws/instance-gpu-{key}"), value.into());
        }
        let s = System::ready(f, "eks", vec![node]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-a100"})).await? == "eks");
        s.end().await
    });
}

#[test]
fn aks_and_eks_with_their_own_driver_and_nvidias_runtime() {
    test(|f| async move {
        let image = |name: &str, gpu: &str, system| {
            let node = with_runtime(with_driver(node(name, gpu, 4, system), "580.95.05"), "containerd://1.7.27");
            with_host_runtime(node, "/etc/containerd/config.toml")
        };
        let aks = with_label(image("aks", T4, ("ubuntu", "22.04")), "kubernetes.azure.com/accelerator", "nvidia");
        let eks = image("eks", A100, ("amzn", "2023"));
        let s = System::ready(f, "eks", vec![aks, eks]).await?;
        s.has_stages(&[(Stage::DevicePlugin, 2)]).await?;
        let message = s.f.gpu_nodes().get("aks").await?.status.context("no status")?.message;
        ensure!(message.ends_with("runtime nvidia is configured on the host and left unchanged"), "{message}");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-t4"})).await? == "aks");
        s.end().await
    });
}

#[test]
fn aks_without_its_own_driver() {
    test(|f| async move {
        let t4 = node("aks", T4, 4, ("ubuntu", "22.04"));
        let s = System::ready(f, "aks", vec![with_label(t4, "kubernetes.azure.com/accelerator", "nvidia")]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        s.end().await
    });
}
