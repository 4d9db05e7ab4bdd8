//! The device plugin's service, without a driver.

use standin_plugin::{
    Gpu, HandOver, Offer,
    api::{AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, PreferredAllocationRequest},
    serve,
};
use tokio::{sync::watch, task::JoinHandle};
use tonic::Code;

use super::kubelet::{Kubelet, next, watch as watch_devices};

/// The plugin, serving two GPUs, and the kubelet's folder.
struct Plugin {
    folder: tempfile::TempDir,
    gpus: watch::Sender<Vec<Gpu>>,
    task: JoinHandle<()>,
}

impl Plugin {
    fn start() -> Self {
        Self::offering(Offer::default())
    }

    fn offering(offer: Offer) -> Self {
        let gpu = |uuid: &str, minor| Gpu { uuid: uuid.into(), minor, profile: None, healthy: true };
        let folder = tempfile::tempdir().unwrap();
        let (gpus, list) = watch::channel(vec![gpu("GPU-a", 0), gpu("GPU-b", 1)]);
        let kubelet = folder.path().join("kubelet.sock");
        let task = tokio::spawn(async move { serve(&kubelet, &offer, &list).await.unwrap() });
        Self { folder, gpus, task }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn every_change_of_health_is_reported_to_the_kubelet() {
    let plugin = Plugin::start();
    let (registration, mut client) = Kubelet::start(plugin.folder.path()).plugin().await;
    assert_eq!((registration.version.as_str(), registration.resource_name.as_str()), ("v1beta1", "nvidia.com/gpu"));
    let mut lists = watch_devices(&mut client).await;
    assert_eq!(next(&mut lists).await, ["GPU-a Healthy", "GPU-b Healthy"]);
    plugin.gpus.send_modify(|gpus| gpus[1].healthy = false);
    assert_eq!(next(&mut lists).await, ["GPU-a Healthy", "GPU-b Unhealthy"]);
}

#[tokio::test]
async fn an_allocation_has_cdi_devices_and_unknown_gpus_are_rejected() {
    let plugin = Plugin::start();
    let (_, mut client) = Kubelet::start(plugin.folder.path()).plugin().await;
    let request = |uuid: &str| AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { device_ids: vec![uuid.into()] }],
    };
    let answer = client.allocate(request("GPU-b")).await.unwrap().into_inner();
    let devices: Vec<&str> =
        answer.container_responses[0].cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(devices, ["k8s.device-plugin.nvidia.com/gpu=GPU-b"]);
    assert_eq!(client.allocate(request("GPU-c")).await.unwrap_err().code(), Code::InvalidArgument);

    let preference = ContainerPreferredAllocationRequest {
        available_device_ids: vec!["GPU-a".into(), "GPU-b".into()],
        must_include_device_ids: vec!["GPU-b".into()],
        allocation_size: 1,
    };
    let request = PreferredAllocationRequest { container_requests: vec![preference] };
    let answer = client.get_preferred_allocation(request).await.unwrap().into_inner();
    assert_eq!(answer.container_responses[0].device_ids, ["GPU-b"]);
}

#[tokio::test]
async fn a_shared_gpu_is_several_devices_and_may_be_a_variable() {
    let hand_over = HandOver::Environment;
    let plugin = Plugin::offering(Offer { replicas: 2, renamed: true, hand_over, ..Offer::default() });
    let (registration, mut client) = Kubelet::start(plugin.folder.path()).plugin().await;
    assert_eq!(registration.resource_name, "nvidia.com/gpu.shared");
    let mut lists = watch_devices(&mut client).await;
    let all = ["GPU-a::0 Healthy", "GPU-a::1 Healthy", "GPU-b::0 Healthy", "GPU-b::1 Healthy"];
    assert_eq!(next(&mut lists).await, all);
    let device_ids = vec!["GPU-b::1".into(), "GPU-b::0".into()];
    let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids }] };
    let answer = client.allocate(request).await.unwrap().into_inner();
    let container = &answer.container_responses[0];
    assert_eq!(container.envs["NVIDIA_VISIBLE_DEVICES"], "GPU-b");
    assert!(container.cdi_devices.is_empty());
}

#[tokio::test]
async fn googles_plugin_passes_device_nodes_and_the_drivers_folder() {
    let hand_over = HandOver::Mounts { host: "/home/driver".into(), container: "/usr/local/nvidia".into() };
    let plugin = Plugin::offering(Offer { hand_over, ..Offer::default() });
    let (_, mut client) = Kubelet::start(plugin.folder.path()).plugin().await;
    let device_ids = vec!["GPU-b".into()];
    let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids }] };
    let answer = client.allocate(request).await.unwrap().into_inner();
    let container = &answer.container_responses[0];
    let nodes: Vec<&str> = container.devices.iter().map(|device| device.host_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]);
    assert_eq!((container.mounts[0].host_path.as_str(), container.mounts[0].read_only), ("/home/driver", true));
}

#[tokio::test]
async fn the_plugin_registers_again_with_a_restarted_kubelet() {
    let plugin = Plugin::start();
    let mut first = Kubelet::start(plugin.folder.path());
    first.plugin().await;
    drop(first);
    let (_, mut client) = Kubelet::start(plugin.folder.path()).plugin().await;
    let mut lists = watch_devices(&mut client).await;
    assert_eq!(next(&mut lists).await.len(), 2);
}
