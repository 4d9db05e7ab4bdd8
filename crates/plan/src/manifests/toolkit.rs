//! The pods of the toolkit's stage: NVIDIA's installer runs once, or answers as NRI plugin, or its runtime is added to the container
//! runtime's configuration.

use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::{Container, ExecAction, Lifecycle, LifecycleHandler, SecurityContext, Volume};

use crate::{
    container_names::{INSTALL_TOOLKIT, RESTART_AT_END, RESTART_RUNTIME},
    desired::{
        container_runtime::Kind,
        key::VariantKey,
        stages::{toolkit_install_dir, toolkit_parent},
        toolkit::{RuntimeSetup, ToolkitChoice},
    },
    manifests::pod::{
        HostNamespaces, Mode, PodInput, PodParts, driver_gate, driver_gate_volumes, empty_dir, env, host_path, mount,
        operand_container, own_container, privileged_root, unprivileged,
    },
};

pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => None,
        ToolkitChoice::Cdi => Some(cdi_pod(input)),
        ToolkitChoice::Nri { socket } => Some(nri_pod(input, socket)),
        ToolkitChoice::Runtime(setup) => Some(configured_pod(input, setup)),
    }
}

/// Returns the gate of the stages after the toolkit, and its volumes.
pub fn gate(input: &PodInput<'_>) -> Option<(Container, Vec<Volume>)> {
    let mut args = ["wait", "toolkit", "--host-root=/host"].map(str::to_owned).to_vec();
    args.push(format!("--install-dir={}", toolkit_install_dir(input.key)));
    let parent = toolkit_parent(input.key);
    let mut volumes = vec![host_path("toolkit", parent, Some("DirectoryOrCreate"))];
    let mut mounts = vec![mount("toolkit", &format!("/host{parent}"), Mode::ReadOnly)];
    let mut look = |name: &str, path: &str| {
        volumes.push(host_path(name, path, Some("DirectoryOrCreate")));
        mounts.push(mount(name, &format!("/host{path}"), Mode::ReadOnly));
    };
    match &input.key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => return None,
        ToolkitChoice::Cdi => {}
        ToolkitChoice::Nri { .. } => {
            look("toolkit-pid", PID_DIR);
            args.push(format!("--pid-file={PID_DIR}/toolkit.pid"));
        }
        ToolkitChoice::Runtime(setup) => {
            for (index, folder) in config_folders(setup).enumerate() {
                look(&format!("runtime-{index}"), folder);
            }
            look("runtime-loaded", LOADED);
            args.extend(setup.files().map(|file| format!("--runtime-config={file}")));
            args.push(format!("--loaded={LOADED}"));
        }
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Some((own_container(input.settings, "wait-for-toolkit", &args, mounts), volumes))
}

// NVIDIA's installer adds NVIDIA's runtime to the container runtime's configuration and restarts nothing. Steps of this operator save the
// previous configuration, restart the runtime only if necessary, and remove the additions when the pod is deleted.

/// The saved configuration, kept across reboots.
const STATE: &str = "/var/lib/gpu-operator/runtime";
/// What the runtime has loaded: not kept across reboots, because the runtime then loads it again.
pub const LOADED: &str = "/run/gpu-operator/runtime";
/// In containers. The runtime recreates the socket when it starts, which a mount of the socket itself would hide.
const RUNTIME_SOCKET_DIR: &str = "/run/runtime-host";

fn configured_pod(input: &PodInput<'_>, setup: &RuntimeSetup) -> PodParts {
    let folders: Vec<_> =
        config_folders(setup).enumerate().map(|(index, path)| (format!("config-{index}"), path)).collect();
    let files = || folders.iter().map(|(name, path)| mount(name, path, Mode::Writable));
    let state = || [mount("state", STATE, Mode::Writable), mount("loaded", LOADED, Mode::Writable)];
    let socket = || mount("socket", RUNTIME_SOCKET_DIR, Mode::Writable);
    let own_step = |name: &str, step: &str, mounts: Vec<_>, privileged: bool| {
        let args = step_args(input.key, setup, step);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Container {
            // Privileged: AppArmor and `SELinux` prevent other containers from signalling a process of the host.
            security_context: Some(if privileged { privileged_root() } else { root_context() }),
            ..own_container(input.settings, name, &args, mounts)
        }
    };
    // Docker is asked for its release first: with some flags it would not start with the installer's file.
    let asks = (setup.kind == Kind::Docker).then(socket);
    let snapshot = own_step("keep-configuration", "snapshot", files().chain(state()).chain(asks).collect(), false);
    let mut install = installer(input, installer_args(setup));
    install.volume_mounts.get_or_insert_default().extend(files());
    let apply = own_step(RESTART_RUNTIME, "apply", files().chain(state()).chain([socket()]).collect(), true);
    // Only if NVIDIA's runtime is the default must the container runtime be restarted at the end.
    let socket_too = setup.default.then(socket);
    let mut main = own_step("toolkit", "keep", files().chain(state()).chain(socket_too).collect(), setup.default);
    // Kubelet runs this when the pod is deleted, but not when a container crashes or the node shuts down or loses
    // power: the additions are kept across reboots.
    let mut revert = vec!["/usr/bin/entrypoint".to_owned()];
    revert.extend(step_args(input.key, setup, "revert"));
    main.lifecycle = Some(Lifecycle {
        pre_stop: Some(LifecycleHandler {
            exec: Some(ExecAction { command: Some(revert) }),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    });
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([install_volume(input), own_pid_volume()]);
    volumes.extend(folders.iter().map(|(name, path)| host_path(name, path, Some("DirectoryOrCreate"))));
    volumes.extend([
        host_path("state", STATE, Some("DirectoryOrCreate")),
        host_path("loaded", LOADED, Some("DirectoryOrCreate")),
        socket_volume(setup),
    ]);
    PodParts {
        init: vec![driver_gate(input), snapshot, install, apply],
        main,
        volumes,
        // The steps signal the runtime's process, whose ID is that of the host only in the host's process namespace. NVIDIA's
        // installer needs no process of the host, but shares the namespace: it is chosen per pod, a process cannot enter that of its
        // ancestors later, and the steps must run in this order at every start, before and after the installer.
        host: HostNamespaces::Pid,
        // If NVIDIA's runtime is the default, the container runtime is restarted before the pod ends.
        grace_seconds: if setup.default { 180 } else { 30 },
    }
}

/// Without subfolders of others.
fn config_folders(setup: &RuntimeSetup) -> impl Iterator<Item = &str> {
    let folder = |path| str::rsplit_once(path, '/').map_or("/", |(folder, _)| folder);
    let all = move || setup.files().chain(setup.source.as_deref()).map(folder);
    let mut folders: Vec<&str> = all()
        .filter(|one| !all().any(|other| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    folders.into_iter()
}

fn socket_volume(setup: &RuntimeSetup) -> Volume {
    let folder = setup.socket.rsplit_once('/').map_or("/", |(folder, _)| folder);
    host_path("socket", folder, Some("Directory"))
}

fn installer_args(setup: &RuntimeSetup) -> Vec<String> {
    // If the main configuration must not be changed, the installer gets a file that is never read.
    let config = setup.config.clone().unwrap_or_else(|| format!("{PID_DIR}/unread.toml"));
    let mut args = vec![
        "--no-daemon".to_owned(),
        "--restart-mode=none".to_owned(),
        format!("--runtime={}", setup.kind.as_str()),
        format!("--config={config}"),
        format!("--nvidia-runtime-name={}", setup.handler),
        format!("--set-as-default={}", setup.default),
    ];
    if let Some(drop_in) = &setup.drop_in {
        args.push(format!("--drop-in-config={drop_in}"));
    }
    if setup.cdi {
        args.push("--enable-cdi-in-runtime=true".to_owned());
    }
    if setup.kind != Kind::Docker {
        // The runtime's own program cannot be called from a container.
        let source = setup.source.as_ref().map_or_else(|| "file".to_owned(), |source| format!("file={source}"));
        args.push(format!("--config-source={source}"));
    }
    args
}

fn step_args(key: &VariantKey, setup: &RuntimeSetup, step: &str) -> Vec<String> {
    let name = setup.socket.rsplit_once('/').map_or(setup.socket.as_str(), |(_, name)| name);
    let mut args = vec![
        "runtime".to_owned(),
        step.to_owned(),
        format!("--kind={}", setup.kind.as_str()),
        format!("--socket={RUNTIME_SOCKET_DIR}/{name}"),
        format!("--handler={}", setup.handler),
        format!("--install-dir={}", toolkit_install_dir(key)),
        format!("--state={STATE}"),
        format!("--loaded={LOADED}"),
    ];
    args.extend(setup.config.iter().map(|path| format!("--config={path}")));
    args.extend(setup.drop_in.iter().map(|path| format!("--drop-in={path}")));
    if setup.default {
        args.push(RESTART_AT_END.to_owned());
    }
    args
}

/// Root owns the files.
fn root_context() -> SecurityContext {
    SecurityContext { run_as_user: Some(0), ..unprivileged() }
}

/// The pod stays after the installer has ended, to show that the toolkit is ready.
fn cdi_pod(input: &PodInput<'_>) -> PodParts {
    let installer = installer(input, vec!["--no-daemon".to_owned(), "--no-runtime-config".to_owned()]);
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([install_volume(input), own_pid_volume()]);
    PodParts {
        init: vec![driver_gate(input), installer],
        main: own_container(input.settings, keys::TOOLKIT.trim_start_matches(keys::PREFIX), &["hold"], vec![]),
        volumes,
        host: HostNamespaces::None,
        grace_seconds: 5,
    }
}

/// In the container; a folder for the same reason as [`RUNTIME_SOCKET_DIR`].
const NRI_SOCKET_DIR: &str = "/run/nri-host";

fn nri_pod(input: &PodInput<'_>, socket: &str) -> PodParts {
    let (folder, name) = socket.rsplit_once('/').unwrap_or(("", socket));
    let args = [
        "--enable-nri-plugin".to_owned(),
        format!("--nri-namespace={}", input.settings.namespace),
        format!("--nri-socket={NRI_SOCKET_DIR}/{name}"),
    ];
    let installer = installer(input, args.into());
    let mut mounts = installer.volume_mounts.unwrap_or_default();
    mounts.push(mount("nri-socket", NRI_SOCKET_DIR, Mode::Writable));
    let main = Container { name: "toolkit".to_owned(), volume_mounts: Some(mounts), ..installer };
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        install_volume(input),
        // A folder of the host, because the device plugin's gate checks that the NRI plugin runs.
        host_path("pid-file", PID_DIR, Some("DirectoryOrCreate")),
        // Not created if missing: then NRI is disabled in the runtime, and the pod's Event names the missing folder.
        host_path("nri-socket", folder, Some("Directory")),
    ]);
    PodParts { init: vec![driver_gate(input)], main, volumes, host: HostNamespaces::None, grace_seconds: 30 }
}

/// Where the installer stores its process ID.
const PID_DIR: &str = "/run/nvidia/toolkit";

fn installer(input: &PodInput<'_>, mut args: Vec<String>) -> Container {
    args.extend(input.key.toolkit_folder.iter().map(|folder| format!("--toolkit-install-dir={folder}")));
    Container {
        // Root without privileges, because it writes to folders that root owns.
        security_context: Some(SecurityContext { run_as_user: Some(0), ..unprivileged() }),
        volume_mounts: Some(vec![
            mount("install", toolkit_parent(input.key), Mode::Writable),
            mount("pid-file", PID_DIR, Mode::Writable),
        ]),
        ..operand_container(
            input,
            INSTALL_TOOLKIT,
            vec![env("NVIDIA_DRIVER_ROOT", input.key.driver.root())],
            // Arguments, not environment: an installer that is too old for them fails with a message.
            args,
        )
    }
}

fn install_volume(input: &PodInput<'_>) -> Volume {
    host_path("install", toolkit_parent(input.key), Some("DirectoryOrCreate"))
}

/// For an installer that ends: no gate reads its process ID.
fn own_pid_volume() -> Volume {
    empty_dir("pid-file")
}
