//! Google's device plugin, which mounts the driver's folder into containers and needs no container toolkit. (Flags,
//! mounts and port are those of its sources; the image's name is unverified.)

use k8s_openapi::api::core::v1::{Container, ContainerPort, SecurityContext};

use crate::manifests::{
    device_plugin::config::{self, SOCKETS},
    pod::{
        HostNamespaces, Mode, PodInput, PodParts, driver_gate, driver_gate_volumes, env, host_path, kubelet_root,
        mount, operand_container,
    },
};

/// The driver's folder in containers and in the plugin.
pub const DRIVER_IN_CONTAINER: &str = "/usr/local/nvidia";
/// Kubelet's API that reports which container has which device. The path is fixed in the plugin; on the host it is in kubelet's root
/// directory.
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources";
const FILE: &str = "gpu_config.json";

pub fn pod(input: &PodInput<'_>, replicas: Option<u32>, metrics_port: Option<u16>) -> PodParts {
    let root = input.key.driver.root();
    let mut args = vec![
        "-logtostderr".to_owned(),
        format!("--host-path={root}"),
        format!("--container-path={DRIVER_IN_CONTAINER}"),
        "--plugin-directory=/device-plugin".to_owned(),
    ];
    if let Some(port) = metrics_port {
        args.extend(["--enable-container-gpu-metrics".to_owned(), format!("--gpu-metrics-port={port}")]);
    }
    let mut mounts = vec![
        mount("sockets", "/device-plugin", Mode::Writable),
        mount("dev", "/dev", Mode::Writable),
        mount("driver-root", DRIVER_IN_CONTAINER, Mode::ReadOnly),
        mount("pod-resources", POD_RESOURCES, Mode::ReadOnly),
        mount("proc", "/proc", Mode::ReadOnly),
    ];
    let pod_resources = format!("{}/pod-resources", kubelet_root(input));
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        host_path("sockets", SOCKETS, None),
        host_path("dev", "/dev", None),
        host_path("driver-root", root, Some("DirectoryOrCreate")),
        host_path("pod-resources", &pod_resources, Some("DirectoryOrCreate")),
        host_path("proc", "/proc", None),
    ]);
    let mut init = vec![driver_gate(input)];
    if let Some(replicas) = replicas {
        init.push(config::writer(input.settings, FILE, &config::gke(replicas)));
        args.push(format!("--gpu-config=/etc/nvidia/{FILE}"));
        mounts.push(mount(config::VOLUME, "/etc/nvidia", Mode::ReadOnly));
        volumes.push(config::volume());
    }
    let environment = vec![env("LD_LIBRARY_PATH", &format!("{DRIVER_IN_CONTAINER}/lib64"))];
    let main = Container {
        command: Some(vec!["/usr/bin/nvidia-gpu-device-plugin".to_owned()]),
        ports: metrics_port.map(|port| {
            vec![ContainerPort {
                name: Some("metrics".to_owned()),
                container_port: port.into(),
                ..ContainerPort::default()
            }]
        }),
        // Privileged: NVML opens the GPUs' device nodes.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..operand_container(input, "device-plugin", environment, args)
    };
    PodParts { init, main, volumes, host: HostNamespaces::None, grace_seconds: 30 }
}
