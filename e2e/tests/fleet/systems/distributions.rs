//! Distributions of Kubernetes, and clusters behind a mirror.

use anyhow::{Context, ensure};
use gpu_operator_crd::{policy::Stage, reason::Reason};
use harness::wait::eventually;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::system::{A100, H100, System, T4, node, text, with_runtime};
use crate::support::{DEADLINE, POLICY, test};

#[test]
fn kubeadm_with_containerd_and_cri_o() {
    test(|f| async move {
        let crio = with_runtime(node("crio", A100, 8, ("rhel", "9.4")), "cri-o://1.34.1");
        let s = System::ready(f, "kubeadm", vec![node("containerd", H100, 8, ("ubuntu", "24.04")), crio]).await?;
        s.has_stages(&[(Stage::Driver, 2), (Stage::Toolkit, 2), (Stage::DevicePlugin, 2)]).await?;
        for set in &s.stages().await?["toolkit"] {
            ensure!(!text(set)?.contains("containerd.sock"), "a runtime with CDI support was configured");
        }
        s.end().await
    });
}

#[test]
fn k3s_with_its_own_containerd() {
    test(|f| async move {
        let mut node = with_runtime(node("k3s", T4, 1, ("ubuntu", "22.04")), "containerd://2.1.4-k3s1");
        node.kubelet = "v1.37.2+k3s1".into();
        let s = System::ready(f, "k3s", vec![node]).await?;
        let sets = &s.stages().await?["toolkit"];
        ensure!(sets.len() == 1 && !text(&sets[0])?.contains("containerd.sock"), "{sets:?}");
        // If requested, the runtime is configured in k3s's own file, with its socket.
        let runtime = json!({"spec": {"defaults": {"toolkit": {"injection": "Runtime"}}}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(&runtime)).await?;
        eventually(DEADLINE, "a toolkit that configures k3s's containerd", || async {
            let sets = &s.stages().await?["toolkit"];
            ensure!(sets.len() == 1 && text(&sets[0])?.contains("/run/k3s/containerd"), "{sets:?}");
            Ok(())
        })
        .await?;
        s.f.until_reason("k3s", Reason::AllGpusAllocatable).await?;
        s.end().await
    });
}

#[test]
fn rke2_with_cdi() {
    test(|f| async move {
        let mut node = with_runtime(node("rke2", T4, 1, ("rhel", "9.4")), "containerd://2.1.4-k3s1");
        node.kubelet = "v1.37.2+rke2r1".into();
        let s = System::ready(f, "rke2", vec![node]).await?;
        ensure!(!text(&s.stages().await?["toolkit"][0])?.contains("containerd.sock"));
        s.end().await
    });
}

#[test]
fn an_air_gapped_cluster_pulls_only_from_its_mirror() {
    test(|f| async move {
        let s = System::ready(f, "air-gapped", vec![node("gapped", H100, 8, ("ubuntu", "22.04"))]).await?;
        for (stage, sets) in s.stages().await? {
            for set in sets {
                let spec = set.spec.and_then(|spec| spec.template.spec).context("no pod")?;
                for container in spec.init_containers.unwrap_or_default().iter().chain(&spec.containers) {
                    let image = container.image.as_deref().unwrap_or_default();
                    let is_probe = image.starts_with("localhost:5999/nvml-probe:");
                    ensure!(is_probe || image.starts_with("registry.example.com:5000/mirror/"), "{stage}: {image}");
                    ensure!(
                        stage != "driver" || is_probe || image.contains("6.8.0-60-generic"),
                        "not precompiled: {image}"
                    );
                }
            }
        }
        s.end().await
    });
}
