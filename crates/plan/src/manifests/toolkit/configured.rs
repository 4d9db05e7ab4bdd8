//! The toolkit for runtimes that must be configured: NVIDIA's installer adds NVIDIA's runtime to the container
//! runtime's configuration and restarts nothing. Steps of this operator before and after it save the previous
//! configuration, restart the runtime only if necessary, and remove the additions when the pod is deleted.

use k8s_openapi::api::core::v1::{Container, ExecAction, Lifecycle, LifecycleHandler, SecurityContext, Volume};

use crate::{
    container_names::{RESTART_AT_END, RESTART_RUNTIME},
    desired::{
        container_runtime::Kind,
        key::VariantKey,
        toolkit::{choice::RuntimeSetup, install_dir},
    },
    manifests::{
        gates::{driver_gate, driver_gate_volumes},
        pod::{
            HostNamespaces, Mode, PodInput, PodParts, host_path, mount, own_container, privileged_root, unprivileged,
        },
        toolkit::installer::{PID_DIR, install_volume, installer, own_pid_volume},
    },
};

/// The folder of the saved configuration, which is kept across reboots.
const STATE: &str = "/var/lib/gpu-operator/runtime";
/// The folder with the state that the runtime has loaded, which is not kept across reboots because the runtime then
/// loads it again.
pub const LOADED: &str = "/run/gpu-operator/runtime";
/// The folder of the runtime's socket in containers. The runtime recreates the socket when it starts, which would not
/// be visible through a mount of the socket itself.
const SOCKET_DIR: &str = "/run/runtime-host";

/// Returns the toolkit's pod.
pub fn pod(input: &PodInput<'_>, setup: &RuntimeSetup) -> PodParts {
    let folders: Vec<_> = folders(setup).enumerate().map(|(index, path)| (format!("config-{index}"), path)).collect();
    let files = || folders.iter().map(|(name, path)| mount(name, path, Mode::Writable));
    let state = || [mount("state", STATE, Mode::Writable), mount("loaded", LOADED, Mode::Writable)];
    let socket = || mount("socket", SOCKET_DIR, Mode::Writable);
    let own_step = |name: &str, step: &str, mounts: Vec<_>, privileged: bool| {
        let args = own_args(input.key, setup, step);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Container {
            // Privileged: AppArmor and `SELinux` prevent other containers from signalling a process of the host.
            security_context: Some(if privileged { privileged_root() } else { root() }),
            ..own_container(input.settings, name, &args, mounts)
        }
    };
    let snapshot = own_step("keep-configuration", "snapshot", files().chain(state()).collect(), false);
    let mut install = installer(input, installer_args(setup));
    install.volume_mounts.get_or_insert_default().extend(files());
    let apply = own_step(RESTART_RUNTIME, "apply", files().chain(state()).chain([socket()]).collect(), true);
    // Only if NVIDIA's runtime is the default must the container runtime be restarted at the end.
    let socket_too = setup.default.then(socket);
    let mut main = own_step("toolkit", "keep", files().chain(state()).chain(socket_too).collect(), setup.default);
    // Kubelet runs this when the pod is deleted, but not when a container crashes or the node shuts down or loses
    // power: the additions are kept across reboots.
    let mut revert = vec!["/usr/bin/entrypoint".to_owned()];
    revert.extend(own_args(input.key, setup, "revert"));
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

/// Returns the folders of the host that contain the files, without subfolders of others.
pub fn folders(setup: &RuntimeSetup) -> impl Iterator<Item = &str> {
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

/// Returns the arguments of one of this operator's steps.
fn own_args(key: &VariantKey, setup: &RuntimeSetup, step: &str) -> Vec<String> {
    let name = setup.socket.rsplit_once('/').map_or(setup.socket.as_str(), |(_, name)| name);
    let mut args = vec![
        "runtime".to_owned(),
        step.to_owned(),
        format!("--kind={}", setup.kind.as_str()),
        format!("--socket={SOCKET_DIR}/{name}"),
        format!("--handler={}", setup.handler),
        format!("--install-dir={}", install_dir(key)),
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

/// Returns a context with root, because root owns the files, and no privileges.
fn root() -> SecurityContext {
    SecurityContext { run_as_user: Some(0), ..unprivileged() }
}
