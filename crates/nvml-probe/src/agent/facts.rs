//! Collects the facts of the host for the report.

use std::io;

use gpu_host::{
    observe::{
        cdi,
        containerd::{self, SOCKETS},
        device_nodes::{self, HoldersError, holders},
        driver::{self, DriverError, Library},
        host_runtimes,
        loaded_runtimes::{self, DOCKER_SOCKET, LoadedRuntimeError},
        os,
        pci::{Bus, PciError},
        pod_resources::{self, Assignment, PodResourcesError},
        processes, selinux, toolkit_folder,
    },
    process::error_chain,
    root::HostRoot,
};
use gpu_operator_crd::report::{CONTAINER_ROOT, Holder, InstalledDriver, LoadedRuntime, WAITS_FILE};

use crate::{
    health::node::DriverStart,
    report::{build::Facts, gpu_node::Requests},
};

/// NVIDIA's service for `NVSwitches`, by the name of its process.
const FABRIC_MANAGER: &str = "nv-fabricmanager";

/// A fact that could not be read. Nothing is reported in that case: what is missing in a report counts as absent.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    #[error(transparent)]
    Pci(#[from] PciError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("cannot read the host's os-release")]
    Os(#[source] io::Error),
    #[error("cannot read the kernel's boot id")]
    Boot(#[source] io::Error),
}

pub(super) fn driver_start(host: &HostRoot) -> Result<DriverStart, FactError> {
    Ok(DriverStart {
        boot_id: os::boot_id(host).map_err(FactError::Boot)?,
        loaded: driver::loaded(host)?,
        load_id: driver::load_id(host)?,
    })
}

/// Collects the remaining facts. The module's use is read last, after the NVML child has started or ended; earlier, it
/// would change from one report to the next.
pub(super) fn collect(
    host: &HostRoot,
    start: DriverStart,
    libraries: &[Library],
    bus: Bus,
    load_errors: &[String],
    requests: Requests,
) -> Result<Facts, FactError> {
    let loaded = start.loaded.clone();
    Ok(Facts {
        boot_id: start.boot_id,
        os: os::release(host).map_err(FactError::Os)?,
        machine: os::machine(host),
        loaded: start.loaded,
        container_ran: driver::container_ran(host)?,
        config_digest: driver::config_digest(host),
        load_id: start.load_id,
        in_use: driver::in_use(host)?,
        holders: requests.holders.then(|| listed(host)).flatten(),
        fabric_manager: fabric_manager(host, &bus),
        installed: libraries.iter().map(|library| installed(host, library, loaded.as_deref())).collect(),
        waits: host.read_if_present(WAITS_FILE).ok().flatten().filter(|text| !text.is_empty()),
        load_errors: load_errors.to_vec(),
        toolkit_folder: toolkit_folder(host),
        runtimes: host_runtimes::runtimes(host),
        bus,
    })
}

/// Returns the directory for the toolkit, or `None` if none is suitable or the host's mounts cannot be read.
fn toolkit_folder(host: &HostRoot) -> Option<&'static str> {
    let warn = |error: &io::Error| tracing::debug!(%error, "cannot read the host's mounts");
    toolkit_folder::choose(host).inspect_err(warn).ok().flatten()
}

/// Returns whether SELinux is enabled, or `None` if its policy cannot be read.
pub(super) fn selinux(host: &HostRoot) -> Option<bool> {
    selinux::is_enabled(host).inspect_err(|error| tracing::warn!(%error, "cannot read SELinux's policy")).ok()
}

/// Asks the node's container runtimes for the configuration that they have loaded. One that does not answer, because it is being
/// restarted for example, has the configuration of its last answer.
pub(super) async fn loaded_runtimes(host: &HostRoot, before: &[LoadedRuntime]) -> Vec<LoadedRuntime> {
    let answered = |answer: Result<Option<LoadedRuntime>, LoadedRuntimeError>, socket: &str| {
        let warn = |error: &LoadedRuntimeError| {
            tracing::debug!(error = %error_chain(error), socket, "cannot ask the container runtime for its configuration");
        };
        answer.inspect_err(warn).unwrap_or_else(|_| before.iter().find(|last| last.socket == socket).cloned())
    };
    let started = containerd::started(host);
    let mut loaded = Vec::new();
    for socket in SOCKETS {
        let answer = answered(loaded_runtimes::ask(host, socket).await, socket);
        let config = started.iter().find(|started| started.socket == socket).map(|started| started.config.clone());
        loaded.extend(answer.map(|answer| LoadedRuntime { config: config.or(answer.config), ..answer }));
    }
    loaded.extend(answered(loaded_runtimes::ask_docker(host).await, DOCKER_SOCKET));
    loaded.extend(loaded_runtimes::of_crio(host));
    loaded
}

/// Returns the programs that hold the GPUs, or `None` if they are not known: the guard of the driver's container protects them in any
/// case.
fn listed(host: &HostRoot) -> Option<Vec<Holder>> {
    let warn = |error: &HoldersError| {
        tracing::warn!(error = %error_chain(error), "cannot list the programs that hold the GPUs");
    };
    holders(host).inspect_err(warn).ok()
}

/// Returns the devices that kubelet has assigned to containers, or `None` if it does not serve them.
pub(super) async fn assignments(
    host: &HostRoot,
    kubelet_root: Option<&str>,
) -> Result<Option<Vec<Assignment>>, PodResourcesError> {
    match pod_resources::socket(host, kubelet_root)? {
        Some(socket) => pod_resources::list(socket).await.map(Some),
        None => Ok(None),
    }
}

/// Returns whether a fabric manager runs on a machine that may need one.
fn fabric_manager(host: &HostRoot, bus: &Bus) -> Option<bool> {
    let warn = |error: &io::Error| tracing::warn!(%error, "cannot list the host's processes");
    (!bus.bridges.is_empty()).then(|| processes::runs(host, FABRIC_MANAGER).inspect_err(warn).ok()).flatten()
}

/// The nodes of a container are in its root. All other drivers use the host's, which NVIDIA's runtime and programs of the host create,
/// but no container that gets its devices by CDI.
fn installed(host: &HostRoot, library: &Library, loaded: Option<&str>) -> InstalledDriver {
    let own = HostRoot::new("/");
    if library.root == CONTAINER_ROOT {
        let missing_devices = device_nodes::missing(host, &own, CONTAINER_ROOT);
        return InstalledDriver { missing_devices, ..library.into() };
    }
    if loaded != Some(&library.version) {
        return library.into();
    }
    InstalledDriver {
        missing_devices: device_nodes::missing(host, &own, ""),
        unlisted_devices: cdi::unlisted(host),
        ..library.into()
    }
}
