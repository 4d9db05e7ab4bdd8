//! Where NVIDIA's runtime has to be entered into the container runtime's configuration: NVIDIA's installer enters it and
//! restarts nothing, and steps of ours before and after it keep what was there, restart the runtime only if that is
//! needed, and take out again what was entered when the pod goes.

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
        pod::{HostNamespaces, Mode, PodInput, PodParts, host_path, mount, own_container, unprivileged},
        toolkit::installer::{PID_DIR, install_volume, installer, own_pid_volume},
    },
};

/// What the configuration was before: outlives a reboot.
const STATE: &str = "/var/lib/gpu-operator/runtime";
/// What the runtime has loaded: does not outlive a reboot, which loads it anew.
pub const LOADED: &str = "/run/gpu-operator/runtime";
/// Where the folder of the runtime's socket is found: the runtime makes the socket anew when it starts, which a mount of
/// the socket itself would not follow.
const SOCKET_DIR: &str = "/run/runtime-host";

/// The toolkit's pod.
pub fn pod(input: &PodInput<'_>, setup: &RuntimeSetup) -> PodParts {
    let folders: Vec<_> = folders(setup).enumerate().map(|(index, path)| (format!("config-{index}"), path)).collect();
    let files = || folders.iter().map(|(name, path)| mount(name, path, Mode::Writable));
    let state = || [mount("state", STATE, Mode::Writable), mount("loaded", LOADED, Mode::Writable)];
    let socket = || mount("socket", SOCKET_DIR, Mode::Writable);
    let ours = |name: &str, step: &str, mounts: Vec<_>, privileged: bool| {
        let args = own_args(input.key, setup, step);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Container {
            security_context: Some(if privileged { privileged_root() } else { root() }),
            ..own_container(input.settings, name, &args, mounts)
        }
    };
    let snapshot = ours("keep-configuration", "snapshot", files().chain(state()).collect(), false);
    let mut install = installer(input, installer_args(setup));
    install.volume_mounts.get_or_insert_default().extend(files());
    let apply = ours(RESTART_RUNTIME, "apply", files().chain(state()).chain([socket()]).collect(), true);
    // Only a runtime that runs every pod has to be restarted when it goes.
    let socket_too = setup.default.then(socket);
    let mut main = ours("toolkit", "keep", files().chain(state()).chain(socket_too).collect(), setup.default);
    // Kubelet runs this when the pod is deleted, and not when a container crashes, its node shuts down or loses power: what
    // is entered stays over a reboot.
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
        // The runtime is known by its process, which is signalled; without this its number is not that of the host.
        host: HostNamespaces::Pid,
        // Where it is the default, the runtime is restarted and waited for.
        grace_seconds: if setup.default { 180 } else { 30 },
    }
}

/// The folders of the host that hold the files, those below others left out.
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
    // A main configuration that is not to be touched is none that anybody reads.
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
        // The runtime's own program cannot be asked from inside a container.
        let source = setup.source.as_ref().map_or_else(|| "file".to_owned(), |source| format!("file={source}"));
        args.push(format!("--config-source={source}"));
    }
    args
}

/// The arguments of a step of ours.
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

/// Root, because the files are root's; nothing else.
fn root() -> SecurityContext {
    SecurityContext { run_as_user: Some(0), ..unprivileged() }
}

/// Privileged: AppArmor and `SELinux` keep any other container from signalling a process of the host.
fn privileged_root() -> SecurityContext {
    SecurityContext { privileged: Some(true), run_as_user: Some(0), ..SecurityContext::default() }
}
