//! Workstations and servers: models, operating systems, and how pods share their GPUs.

use anyhow::{Context, Result, ensure};
use fleet::FleetNode;
use gpu_operator_crd::{keys, policy::Stage};
use harness::wait::eventually;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::system::{
    A100, GEFORCE, H100, K80, K620, P100, System, T4, node, text, with_driver, with_host_runtime, with_label,
    with_runtime,
};
use crate::support::{DEADLINE, POLICY, test};

#[test]
fn centos_7_with_tesla_k80s_and_a_packaged_driver() {
    test(|f| async move {
        // These systems came with 384.66, which is too old for current device plugins; the plan's own tests check that
        // message.
        let k80s = with_driver(node("k80s", K80, 4, ("centos", "7")), "470.256.02");
        let s = System::ready(f, "legacy-k80", vec![k80s]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.allocatable("k80s", keys::GPU_RESOURCE).await?.as_deref() == Some("4"));
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-k80"})).await? == "k80s");
        s.end().await
    });
}

#[test]
fn centos_7_with_tesla_k80s_and_a_run_file_from_a_mirror() {
    test(|f| async move {
        let s = System::ready(f, "legacy-k80-run-file", vec![node("k80s", K80, 4, ("centos", "7"))]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        let driver = text(&s.stages().await?["driver"][0])?;
        for word in [
            "https://mirror.example.com/nvidia/",
            "NVIDIA_DRIVER_SHA256",
            "HTTPS_PROXY",
            "10.8.0.0/16",
            "el7-nvidia-install",
        ] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": "nvidia-tesla-k80"})).await? == "k80s");
        s.end().await
    });
}

#[test]
fn docker_with_two_geforce_cards_per_node() {
    test(|f| async move {
        let cards = |name: &str| {
            let node = with_runtime(node(name, GEFORCE, 2, ("rhel", "8.10")), "docker://27.0.3");
            with_label(with_driver(node, "430.34"), "host", name)
        };
        // In one node's daemon.json NVIDIA's runtime was configured by hand, in the other's it was not.
        let by_hand = with_host_runtime(cards("by-hand"), "/etc/docker/daemon.json");
        let cpu = FleetNode::without_gpus("cpu-only");
        let s = System::ready(f, "docker", vec![cards("geforce"), by_hand]).await?;
        s.f.fleet.join([cpu]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 2)]).await?;
        ensure!(s.label("by-hand", keys::TOOLKIT).await?.is_none(), "a manual configuration must be left unchanged");
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"host": "by-hand"})).await? == "by-hand");
        let toolkit = text(&s.stages().await?["toolkit"][0])?;
        for word in ["/etc/docker", "docker.sock", "--no-daemon"] {
            ensure!(toolkit.contains(word), "no {word} in {toolkit}");
        }
        ensure!(s.allocatable("geforce", keys::GPU_RESOURCE).await?.as_deref() == Some("2"));
        ensure!(s.allocatable("cpu-only", keys::GPU_RESOURCE).await?.is_none());
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"host": "geforce"})).await? == "geforce");
        s.end().await
    });
}

#[test]
fn workstations_with_a_custom_label() {
    test(|f| async move {
        let workstation = |name: &str| {
            let node = with_runtime(node(name, K620, 1, ("ubuntu", "20.04")), "docker://20.10.24");
            with_host_runtime(with_driver(node, "450.66"), "/etc/docker/daemon.json")
        };
        let nodes = (1..=3).map(|n| workstation(&format!("worker-amd64-gpuceph-node{n}"))).collect();
        let s = System::ready(f, "bare-metal-labels", nodes).await?;
        s.has_stages(&[(Stage::DevicePlugin, 1)]).await?;
        ensure!(s.label("worker-amd64-gpuceph-node2", "gpu/nividia").await?.as_deref() == Some("P630"));
        let model = s.label("worker-amd64-gpuceph-node2", keys::MODEL).await?;
        ensure!(model.as_deref() == Some("nvidia-quadro-k620"), "{model:?}");
        let node = s.runs_on(keys::GPU_RESOURCE, json!({"gpu/nividia": "P630"})).await?;
        ensure!(node.starts_with("worker-amd64-gpuceph-node"), "{node}");
        s.end().await
    });
}

#[test]
fn workstations_with_a_run_file_googles_plugin_and_no_toolkit() {
    test(|f| async move {
        let labelled = |name: &str| with_label(node(name, K620, 1, ("ubuntu", "20.04")), "gpu/nividia", "P630");
        let nodes = vec![labelled("ceph-node1"), labelled("ceph-node2")];
        let s = System::ready(f, "bare-metal-run-file", nodes).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::DevicePlugin, 1)]).await?;
        let stages = s.stages().await?;
        let (driver, plugin) = (text(&stages["driver"][0])?, text(&stages["device-plugin"][0])?);
        for word in ["XFree86/Linux-x86_64/460.56", "nvidia-driver-install:20.04"] {
            ensure!(driver.contains(word), "no {word} in {driver}");
        }
        ensure!(plugin.contains("nvidia-plugin:prometheus"), "{plugin}");
        ensure!(
            s.label("ceph-node1", "gpu/nividia").await?.as_deref() == Some("P630"),
            "the user's own label was changed"
        );
        s.runs_on(keys::GPU_RESOURCE, json!({"gpu/nividia": "P630"})).await?;
        s.end().await
    });
}

#[test]
fn k80s_and_p100s_and_newer_models_in_one_cluster() {
    test(|f| async move {
        let b200 = node("b200", "2901", 8, ("ubuntu", "22.04"));
        let nodes = [("k80", K80), ("p100", P100), ("t4", T4), ("h100", H100)];
        let mut nodes: Vec<_> = nodes
            .iter()
            .map(|(name, gpu)| {
                // The last driver branch for Kepler has no image for a newer Ubuntu.
                node(name, gpu, 2, ("ubuntu", if *gpu == K80 { "20.04" } else { "22.04" }))
            })
            .collect();
        nodes.push(b200);
        let s = System::ready(f, "mixed-models", nodes).await?;
        let drivers = &s.stages().await?["driver"];
        ensure!(drivers.len() == 5, "{} driver DaemonSets", drivers.len());
        for version in ["470.256.02", "580.173.02", "595.91.07"] {
            ensure!(drivers.iter().any(|set| text(set).is_ok_and(|text| text.contains(version))), "no {version}");
        }
        for (model, node) in [("nvidia-tesla-k80", "k80"), ("nvidia-tesla-p100", "p100"), ("nvidia-b200", "b200")] {
            let found = s.runs_on(keys::GPU_RESOURCE, json!({"accelerator": model})).await?;
            ensure!(found == node, "{model} on {found}");
        }
        // A version that a model does not support is rejected only for nodes with that model.
        let pin = json!({"spec": {"pools": [{
            "name": "pinned", "match": {"models": ["nvidia-tesla-k80"]}, "driver": {"version": "595.91.07"},
        }]}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(pin)).await?;
        eventually(DEADLINE, "the message about the pool", || async {
            let status = s.f.policy().await?.status.context("no status")?;
            let accepted = status
                .conditions
                .iter()
                .find(|condition| condition.type_ == "Accepted")
                .context("no such condition")?;
            ensure!(accepted.status == "False" && accepted.message.contains("470"), "{accepted:?}");
            Ok(())
        })
        .await?;
        s.until_ready("h100").await?;
        s.end().await
    });
}

#[test]
fn four_pods_per_gpu_by_time_slicing() {
    test(|f| async move {
        let s = System::ready(f, "time-slicing", vec![node("sliced", T4, 2, ("ubuntu", "22.04"))]).await?;
        ensure!(s.allocatable("sliced", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        for _ in 0..8 {
            s.runs_on(keys::GPU_RESOURCE, json!({})).await?;
        }
        let driver = s.label("sliced", keys::DRIVER).await?;
        let fewer = json!({"spec": {"defaults": {"devicePlugin": {"sharing": {"timeSlicing": {"replicas": 5}}}}}});
        s.f.policies().patch(POLICY, &PatchParams::default(), &Patch::Merge(fewer)).await?;
        eventually(DEADLINE, "ten allocatable GPUs", || async {
            let count = s.allocatable("sliced", keys::GPU_RESOURCE).await?;
            ensure!(count.as_deref() == Some("10"), "{count:?}");
            Ok(())
        })
        .await?;
        s.until_ready("sliced").await?;
        ensure!(s.label("sliced", keys::DRIVER).await? == driver, "the driver's revision was changed");
        s.end().await
    });
}

#[test]
fn four_pods_per_gpu_by_mps() {
    test(|f| async move {
        let s = System::ready(f, "mps", vec![node("shared", A100, 2, ("ubuntu", "22.04"))]).await?;
        s.has_stages(&[(Stage::Driver, 1), (Stage::Toolkit, 1), (Stage::Mps, 1), (Stage::DevicePlugin, 1)]).await?;
        ensure!(s.allocatable("shared", keys::GPU_RESOURCE).await?.as_deref() == Some("8"));
        s.end().await
    });
}

#[test]
fn network_cards_that_access_gpu_memory() {
    test(|f| async move {
        let h100 = |way: &str| with_label(node(way, H100, 8, ("ubuntu", "24.04")), "example.com/rdma", way);
        let s = System::ready(f, "gpudirect-rdma", vec![h100("dma-buf"), h100("peermem")]).await?;
        let drivers = &s.stages().await?["driver"];
        let texts = drivers.iter().map(text).collect::<Result<Vec<_>>>()?;
        let with = |words: &str| texts.iter().filter(|text| text.contains(words)).count();
        ensure!(with(r#"{"name":"KERNEL_MODULE_TYPE","value":"open"}"#) == 2, "{texts:?}");
        ensure!(with(r#"{"name":"GPU_DIRECT_RDMA_ENABLED","value":"true"}"#) == 1, "{texts:?}");
        s.end().await
    });
}
