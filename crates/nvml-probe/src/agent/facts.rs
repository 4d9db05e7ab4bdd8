//! Collects the facts of the host for the report.

use std::io;

use gpu_host::{
    observe::{
        device_nodes::{self, HoldersError, holders},
        driver::{self, DriverError, Library},
        host_runtimes,
        loaded_runtimes::{self, LoadedRuntimeError, SOCKETS},
        os,
        pci::{Bus, PciError},
        pod_resources::{self, Assignment, PodResourcesError},
    },
    process::error_chain,
    root::HostRoot,
};
use gpu_operator_crd::report::{CONTAINER_ROOT, Holder, InstalledDriver, LoadedRuntime, WAITS_FILE};

use crate::{
    health::node::DriverStart,
    report::{build::Facts, gpu_node::Requests},
};

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
    requests: Requests,
) -> Result<Facts, FactError> {
    Ok(Facts {
        boot_id: start.boot_id,
        os: os::release(host).map_err(FactError::Os)?,
        machine: os::machine(host),
        bus,
        loaded: start.loaded,
        container_ran: driver::container_ran(host)?,
        config_digest: driver::config_digest(host),
        load_id: start.load_id,
        in_use: driver::in_use(host)?,
        holders: requests.holders.then(|| listed(host)).flatten(),
        installed: libraries.iter().map(|library| installed(host, library)).collect(),
        waits: host.read_if_present(WAITS_FILE).ok().flatten().filter(|text| !text.is_empty()),
        runtimes: host_runtimes::runtimes(host),
    })
}

/// Asks the node's container runtimes for the configuration that they have loaded. One that does not answer, because it is being
/// restarted for example, has the configuration of its last answer.
pub(super) async fn loaded_runtimes(host: &HostRoot, before: &[LoadedRuntime]) -> Vec<LoadedRuntime> {
    let mut loaded = Vec::new();
    for socket in SOCKETS {
        let last = || before.iter().find(|last| last.socket == socket).cloned();
        let warn = |error: &LoadedRuntimeError| {
            tracing::debug!(error = %error_chain(error), socket, "cannot ask the container runtime for its configuration");
        };
        loaded.extend(loaded_runtimes::ask(host, socket).await.inspect_err(warn).unwrap_or_else(|_| last()));
    }
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

/// Device nodes are checked only in a container's root: a host creates its own when they are first opened.
fn installed(host: &HostRoot, library: &Library) -> InstalledDriver {
    let missing_devices = if library.root == CONTAINER_ROOT {
        device_nodes::missing(host, &HostRoot::new("/"), CONTAINER_ROOT)
    } else {
        Vec::new()
    };
    InstalledDriver { missing_devices, ..library.into() }
}
