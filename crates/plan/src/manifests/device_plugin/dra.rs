//! NVIDIA's DRA driver for GPUs, without its part for compute domains. (Environment and mounts are those of its chart, 2026-08; the
//! probe injects the library of a host's driver, as for the device plugin.)

use gpu_operator_crd::report::CDI_SPECS;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, SecurityContext};

use crate::{
    container_names::DRA_DRIVER,
    desired::stages::toolkit_install_dir,
    manifests::{
        pod::{
            self, HostNamespaces, Mode, PodInput, PodParts, driver_gate, driver_gate_volumes, env, host_path,
            kubelet_root, mount, operand_container,
        },
        toolkit,
    },
};

/// The account with which it reads claims and writes the slices of its own node. The chart creates it.
pub const ACCOUNT: &str = "nodestack-dra-driver";
const PROGRAM: &str = "gpu-kubelet-plugin";
/// The port of its gRPC health service.
const HEALTH_PORT: &str = "51516";

pub fn pod(input: &PodInput<'_>) -> PodParts {
    let root = input.key.driver.root();
    let kubelet = kubelet_root(input);
    let (registry, plugins) = (format!("{kubelet}/plugins_registry"), format!("{kubelet}/plugins"));
    let environment = vec![
        of_pod("NODE_NAME", "spec.nodeName"),
        of_pod("NAMESPACE", "metadata.namespace"),
        env("NVIDIA_DRIVER_ROOT", root),
        env("IMAGE_NAME", &input.spec.image),
        env("NVIDIA_CDI_HOOK_PATH", &format!("{}/nvidia-cdi-hook", toolkit_install_dir(input.key))),
        env("CDI_ROOT", CDI_SPECS),
        env("KUBELET_REGISTRAR_DIRECTORY_PATH", &registry),
        env("KUBELET_PLUGINS_DIRECTORY_PATH", &plugins),
        env("HEALTHCHECK_PORT", HEALTH_PORT),
        // Runtimes that inject by environment must not change this container.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    let mounts = vec![
        mount("plugins-registry", &registry, Mode::Writable),
        mount("plugins", &plugins, Mode::Share),
        mount("cdi", CDI_SPECS, Mode::Writable),
        mount("driver-root", pod::DRIVER_ROOT, Mode::Follow),
    ];
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        host_path("plugins-registry", &registry, Some("DirectoryOrCreate")),
        host_path("plugins", &plugins, Some("DirectoryOrCreate")),
        host_path("cdi", CDI_SPECS, Some("DirectoryOrCreate")),
        host_path("driver-root", root, Some("DirectoryOrCreate")),
    ]);
    let mut init = vec![driver_gate(input)];
    if let Some((gate, of_gate)) = toolkit::gate(input) {
        init.push(gate);
        volumes.extend(of_gate);
    }
    let main = Container {
        command: Some(vec![PROGRAM.to_owned()]),
        // Privileged: NVML opens the GPUs' device nodes, and its mounts must be visible on the host.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..operand_container(input, DRA_DRIVER, environment, vec!["-v".to_owned(), "4".to_owned()])
    };
    PodParts { init, main, volumes, host: HostNamespaces::None, grace_seconds: 30 }
}

fn of_pod(name: &str, field: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: field.to_owned(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}
