//! NVIDIA's device plugin, which answers with CDI devices, or with environment variables for NVIDIA's runtime.

use gpu_operator_common::mig_layout::MigLayout;
use gpu_operator_crd::{
    policy::{DeviceIdStrategy, MigStrategy, PluginFlags, Sharing},
    report::HOST_ROOT,
};
use k8s_openapi::api::core::v1::{Container, EnvVar, SecurityContext};

use crate::{
    desired::toolkit::{choice::ToolkitChoice, install_dir},
    manifests::{
        device_plugin::{
            config::{self, SOCKETS},
            mig, mps,
        },
        gates::{driver_gate, driver_gate_volumes},
        pod::{HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container},
        toolkit, unpacked,
    },
};

/// Where CDI specifications are looked for by every runtime that knows CDI.
const CDI: &str = "/var/run/cdi";
/// The image's program.
const PROGRAM: &str = "nvidia-device-plugin";

/// The plugin's pod.
pub fn pod(
    input: &PodInput<'_>,
    sharing: Option<&Sharing>,
    mig: MigStrategy,
    layout: Option<&MigLayout>,
    flags: PluginFlags,
) -> PodParts {
    let root = input.key.driver.root();
    let mut environment = vec![
        env("DEVICE_LIST_STRATEGY", strategy(&input.key.toolkit)),
        env("NVIDIA_DRIVER_ROOT", root),
        env("NVIDIA_DEV_ROOT", input.key.driver.dev_root()),
        env("DRIVER_ROOT_CTR_PATH", unpacked::DRIVER_ROOT),
        env("NVIDIA_CDI_HOOK_PATH", &format!("{}/nvidia-cdi-hook", install_dir(input.key))),
        // Runtimes that inject by environment must not change this container.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    if mig != MigStrategy::None {
        environment.extend([env("MIG_STRATEGY", mig.as_str()), env("NVIDIA_MIG_MONITOR_DEVICES", "all")]);
    }
    environment.extend(variables(flags));
    let mut mounts = vec![
        mount("sockets", SOCKETS, Mode::Writable),
        mount("driver-root", unpacked::DRIVER_ROOT, Mode::Follow),
        mount("cdi", CDI, Mode::Writable),
    ];
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        host_path("sockets", SOCKETS, None),
        host_path("driver-root", root, Some("DirectoryOrCreate")),
        host_path("cdi", CDI, Some("DirectoryOrCreate")),
    ]);
    let mut init = vec![driver_gate(input)];
    if let Some((gate, of_gate)) = toolkit::gate(input) {
        init.push(gate);
        volumes.extend(of_gate);
    }
    if let Some(layout) = layout {
        init.push(mig::container(input, layout));
        volumes.extend(mig::volumes(input));
    }
    if let Some(sharing) = sharing {
        init.push(config::writer(input.settings, config::NVIDIA_FILE, &config::nvidia(sharing, mig)));
        environment.push(env("CONFIG_FILE", &format!("/etc/nvidia-device-plugin/{}", config::NVIDIA_FILE)));
        mounts.push(mount(config::VOLUME, "/etc/nvidia-device-plugin", Mode::ReadOnly));
        volumes.push(config::volume());
    }
    let by_mps = sharing.is_some_and(|sharing| sharing.mps.is_some());
    if by_mps {
        init.push(mps::gate(input.settings));
        environment.push(env("MPS_ROOT", mps::ROOT));
        mounts.extend(mps::mounts(Mode::Follow));
        volumes.extend(mps::volumes());
    }
    let command = command(root, by_mps);
    if command.is_some() {
        init.push(unpacked::init(input.settings));
        mounts.push(unpacked::mounted());
        volumes.push(unpacked::volume());
    }
    let main = Container {
        command,
        // Privileged: NVML opens the GPUs' device nodes.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..operand_container(input, "device-plugin", environment, vec![])
    };
    PodParts {
        init,
        main,
        volumes,
        host: if layout.is_some() { HostNamespaces::Pid } else { HostNamespaces::None },
        grace_seconds: 30,
    }
}

/// Returns the command of the container, if it is not the image's own. The plugin checks the daemons of MPS with the driver's own
/// program. It finds NVML only in the folders of most packages (k8s-device-plugin v0.19.3, `cmd/nvidia-device-plugin/root.go`), and
/// resolves links in its own root: a host may have its driver elsewhere, as appliances do, or behind links, as Debian does.
fn command(driver_root: &str, by_mps: bool) -> Option<Vec<String>> {
    let options: &[&str] = if by_mps { &["--mps"] } else { &[] };
    (by_mps || driver_root == HOST_ROOT).then(|| unpacked::injected(options, PROGRAM))
}

/// Returns the environment variables of the flags.
fn variables(flags: PluginFlags) -> impl Iterator<Item = EnvVar> {
    let PluginFlags { fail_on_init_error, pass_device_specs, device_id_strategy } = flags;
    let switch = |on: Option<bool>| on.map(|on| if on { "true" } else { "false" });
    let variables = [
        ("FAIL_ON_INIT_ERROR", switch(fail_on_init_error)),
        ("PASS_DEVICE_SPECS", switch(pass_device_specs)),
        ("DEVICE_ID_STRATEGY", device_id_strategy.map(DeviceIdStrategy::as_str)),
    ];
    variables.into_iter().filter_map(|(name, value)| Some(env(name, value?)))
}

/// Returns how the plugin answers kubelet. Its own pod needs no RuntimeClass in either case: it mounts the driver's
/// root and the device nodes, and a pod with a RuntimeClass could not wait until the runtime exists.
fn strategy(toolkit: &ToolkitChoice) -> &'static str {
    // NVIDIA's runtime, of this operator or of the host, reads the environment.
    if toolkit.is_by_cdi() { "cdi-cri" } else { "envvar" }
}
