//! Third-party device plugins and DRA drivers.

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::system::{A100, GKE, System, node, with_driver, with_label};
use crate::support::{DEADLINE, test};

#[test]
fn a_third_party_plugin_stays_until_its_node_is_taken_over() {
    test(|f| async move {
        let third_party =
            with_label(with_driver(node("third-party", A100, 8, ("ubuntu", "22.04")), "580.173.02"), "static", "yes");
        let a100 = |name: &str| with_driver(node(name, A100, 8, ("ubuntu", "22.04")), "580.173.02");
        let operated = with_label(a100("operated"), "nvidia.com/gpu.deploy.device-plugin", "true");
        let name = "nvidia-device-plugin-daemonset";
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), "kube-system");
        let apply = PatchParams::apply("test").force();
        let of_operator = plugin("of-nvidias-operator", ("nvidia.com/gpu.deploy.device-plugin", "true"))?;
        let dra = dra_driver("nvidia-dra-driver-gpu-kubelet-plugin", ("claims", "yes"))?;
        for set in [plugin(name, ("static", "yes"))?, of_operator, dra] {
            let name = set.metadata.name.clone().context("no name")?;
            sets.patch(&name, &apply, &Patch::Apply(&set)).await?;
        }
        let s = System::ready(f, "beside-other-stacks", vec![third_party, operated, a100("bare")]).await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        let status = s.f.gpu_nodes().get("operated").await?.status.unwrap_or_default();
        ensure!(status.message.contains("kube-system/of-nvidias-operator"), "{}", status.message);
        s.f.fleet.join([with_label(a100("claimed"), "claims", "yes")]).await?;
        s.f.until_reason("claimed", Reason::ForeignDraDriver).await?;
        ensure!(
            s.label("claimed", keys::DEVICE_PLUGIN).await?.is_none(),
            "the operator's plugin runs next to a DRA driver"
        );
        s.f.until_condition("Ready", "True").await?;
        let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
        ensure!(status.reason() == Some(Reason::ForeignDevicePlugin), "{:?}: {}", status.reason(), status.message);
        ensure!(
            s.label("third-party", keys::DEVICE_PLUGIN).await?.is_none(),
            "the operator's plugin runs next to a third-party one"
        );
        ensure!(s.runs_on(keys::GPU_RESOURCE, json!({"static": "yes"})).await? == "third-party");

        let label = |key: &'static str, value: Value| {
            let nodes = Api::<Node>::all(s.f.cluster.client());
            let patch = json!({"metadata": {"labels": {key: value}}});
            async move { nodes.patch("third-party", &PatchParams::default(), &Patch::Merge(patch)).await }
        };
        label("example.com/gpu-stack", json!("gpu-operator")).await?;
        eventually(DEADLINE, "a message with the way to remove the third-party plugin", || async {
            let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
            ensure!(status.message.contains("nodeSelector"), "{}", status.message);
            Ok(())
        })
        .await?;
        label("static", Value::Null).await?;
        eventually(DEADLINE, "the operator's plugin instead of the third-party one", || async {
            let status = s.f.gpu_nodes().get("third-party").await?.status.unwrap_or_default();
            let all = status.is_ready() && status.foreign.is_empty();
            ensure!(
                all && status.reason() == Some(Reason::AllGpusAllocatable),
                "{:?} {}",
                status.reason(),
                status.message
            );
            let pods = Api::<Pod>::namespaced(s.f.cluster.client(), s.f.cluster.namespace());
            let plugins = format!("{}={}", keys::STAGE, Stage::DevicePlugin.as_str());
            let here = ListParams::default().labels(&plugins).fields("spec.nodeName=third-party,status.phase=Running");
            ensure!(pods.list(&here).await?.items.len() == 1, "the operator's plugin is not running");
            Ok(())
        })
        .await?;
        for name in [name, "of-nvidias-operator", "nvidia-dra-driver-gpu-kubelet-plugin"] {
            sets.delete(name, &DeleteParams::default()).await?;
        }
        s.end().await
    });
}

#[test]
fn a_plugin_and_a_dra_driver_that_no_daemon_set_has_are_known() {
    test(|f| async move {
        let a100 = |name: &str| with_driver(node(name, A100, 8, ("ubuntu", "22.04")), "580.173.02");
        let client = f.cluster.client();
        // The API that the operator reads is served from Kubernetes 1.34 on.
        let has_slices = client.apiserver_version().await?.minor.trim_end_matches('+').parse::<u32>()? >= 34;
        let all = ["auto-mode", "bare", "sliced"];
        f.fleet.join(all[..2 + usize::from(has_slices)].iter().map(|name| a100(name))).await?;
        // As kubelet publishes the GPUs of a plugin that the machine's image starts as a service.
        let gpus =
            json!({"status": {"allocatable": {keys::GPU_RESOURCE: "16"}, "capacity": {keys::GPU_RESOURCE: "16"}}});
        let nodes = Api::<Node>::all(client.clone());
        nodes.patch_status("auto-mode", &PatchParams::default(), &Patch::Merge(gpus)).await?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice"));
        let slices = Api::<DynamicObject>::all_with(client, &kind);
        let slice = |driver: &str, on: &str| {
            let name = format!("{on}-{driver}");
            let pool = json!({"name": on, "generation": 1, "resourceSliceCount": 1});
            let spec = json!({"driver": driver, "nodeName": on, "pool": pool, "devices": [{"name": "gpu-0"}]});
            DynamicObject::new(&name, &kind).data(json!({"spec": spec}))
        };
        let both = [slice("gpu.nvidia.com", "sliced"), slice("compute-domain.nvidia.com", "bare")];
        for slice in both.iter().filter(|_| has_slices) {
            slices.create(&PostParams::default(), slice).await?;
        }
        let s = System { f };
        s.apply("beside-other-stacks").await?;
        s.f.until_reason("auto-mode", Reason::ForeignDevicePlugin).await?;
        s.f.until_reason("bare", Reason::AllGpusAllocatable).await?;
        s.until_ready("auto-mode").await?;
        s.has_stages(&[(Stage::Toolkit, 1), (Stage::DevicePlugin, 1)]).await?;
        let status = s.f.gpu_nodes().get("auto-mode").await?.status.unwrap_or_default();
        ensure!(status.gpus.summary == "16/8", "{:?}", status.gpus);
        ensure!(status.reason() == Some(Reason::ForeignDevicePlugin), "{:?}: {}", status.reason(), status.message);
        let has_no_plugin = async |node| {
            ensure!(s.label(node, keys::DEVICE_PLUGIN).await?.is_none(), "the operator's plugin is placed on {node}");
            Ok(())
        };
        has_no_plugin("auto-mode").await?;
        if has_slices {
            s.f.until_reason("sliced", Reason::ForeignDraDriver).await?;
            let status = s.f.gpu_nodes().get("sliced").await?.status.unwrap_or_default();
            ensure!(status.message.contains("DRA driver gpu.nvidia.com"), "{}", status.message);
            has_no_plugin("sliced").await?;
        }
        for slice in both.iter().filter(|_| has_slices) {
            slices.delete(&slice.name_any(), &DeleteParams::default()).await?;
        }
        s.end().await
    });
}

/// GKE's device plugin, as deployed by its add-on manager.
pub(super) fn addon() -> Result<DaemonSet> {
    plugin("nvidia-gpu-device-plugin", (GKE, "nvidia-h100-80gb"))
}

/// A third party's DRA driver on the nodes with a label.
fn dra_driver(name: &str, label: (&str, &str)) -> Result<DaemonSet> {
    let mut set = plugin(name, label)?;
    let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).context("no pod")?;
    let folder = json!([{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}]);
    pod.volumes = serde_json::from_value(folder)?;
    pod.containers[0].name = "gpus".into();
    pod.containers[0].image = Some("registry.example.com/nvidia/k8s-dra-driver-gpu:v25".into());
    Ok(set)
}

/// A third party's device plugin on the nodes with a label.
fn plugin(name: &str, label: (&str, &str)) -> Result<DaemonSet> {
    let labels = json!({"k8s-app": name});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {label.0: label.1},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": name,
                        "image": "registry.example.com/nvidia-gpu-device-plugin:1",
                        "volumeMounts": [{"name": "sockets", "mountPath": "/device-plugin"}],
                    }],
                    "volumes": [{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
                },
            },
        },
    }))?)
}
