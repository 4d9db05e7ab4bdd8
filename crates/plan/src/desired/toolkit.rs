//! What is installed for a node's container runtime so that containers can use the driver: the least disruptive option that works. NVIDIA's
//! installer copies its binaries, including the CDI hook, to the host.

use std::borrow::Cow;

use gpu_operator_crd::{
    policy::{ContainerRuntime, Distribution, Injection, Toolkit},
    reason::Reason,
    report::{CONTAINER_ROOT, GKE_ROOT, HOST_ROOT, HostRuntime, Report, TOOLKIT_FOLDERS},
};
use serde::Serialize;

use crate::{
    desired::{
        container_runtime::{self, Kind, Runtime},
        driver::DriverChoice,
    },
    note::Fault,
    world::NodeFacts,
};

pub(super) const FOLDER: &str = TOOLKIT_FOLDERS[0];

/// Returns a folder other than the default: the policy's, that of Google's driver installers if it has the driver, or the one that the probe
/// has found to be writable and executable.
pub fn toolkit_folder(toolkit: &Toolkit, driver: &DriverChoice, report: &Report) -> Option<String> {
    let beside_driver = || Some(GKE_ROOT).filter(|root| *root == driver.root());
    let reported = || TOOLKIT_FOLDERS.into_iter().find(|known| report.toolkit_folder.as_deref() == Some(known));
    let own = toolkit.install_dir.clone().or_else(|| beside_driver().or_else(reported).map(str::to_owned));
    own.filter(|folder| folder != FOLDER)
}

pub fn kubelet_root(toolkit: &Toolkit, node: &NodeFacts) -> Option<&'static str> {
    container_runtime::kubelet_root(container_runtime::distribution_of(toolkit.distribution, node))
}

/// The default name of NVIDIA's runtime, and the prefix of its other names on hosts.
const HANDLER: &str = "nvidia";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ToolkitChoice {
    /// Nothing: the device plugin needs no toolkit, or the host has one.
    None,
    /// Nothing: NVIDIA's runtime is already in the container runtime's configuration on the host.
    Host(HostRuntime),
    /// The runtime supports CDI devices: NVIDIA's hooks are installed and nothing is configured.
    Cdi,
    /// As [`Self::Cdi`], and NVIDIA's NRI plugin runs.
    Nri {
        /// The host's socket for NRI plugins.
        socket: String,
    },
    /// NVIDIA's runtime is added to the container runtime's configuration.
    Runtime(RuntimeSetup),
}

impl ToolkitChoice {
    /// Whether containers get GPUs by CDI, so that the device plugin answers with CDI devices.
    pub fn is_by_cdi(&self) -> bool {
        match self {
            Self::Cdi | Self::Nri { .. } => true,
            Self::Runtime(setup) => setup.cdi,
            Self::Host(_) | Self::None => false,
        }
    }

    pub fn setup(&self) -> Option<&RuntimeSetup> {
        match self {
            Self::Runtime(setup) => Some(setup),
            Self::None | Self::Host(_) | Self::Cdi | Self::Nri { .. } => None,
        }
    }

    /// Returns the part that belongs to a revision: nothing of the host's own runtime is changed.
    pub fn revision(&self) -> Cow<'_, Self> {
        match self {
            Self::Host(_) => Cow::Owned(Self::Host(HostRuntime::default())),
            other => Cow::Borrowed(other),
        }
    }

    /// Returns the name of NVIDIA's runtime in the configuration, the handler of its RuntimeClass.
    pub fn handler(&self) -> Option<&str> {
        match self {
            Self::Host(runtime) => Some(&runtime.handler),
            Self::Runtime(setup) => Some(&setup.handler),
            Self::None | Self::Cdi | Self::Nri { .. } => None,
        }
    }

    /// Returns the RuntimeClass of NVIDIA's runtime, if it needs one and can have one.
    pub fn class(&self) -> Option<&str> {
        match self {
            Self::Host(runtime) => Some(runtime.handler.as_str()).filter(|handler| is_class_of_host(handler)),
            Self::Runtime(setup) => Some(setup.handler.as_str()).filter(|handler| is_class_name(handler)),
            Self::None | Self::Cdi | Self::Nri { .. } => None,
        }
    }

    /// Returns the RuntimeClass that pods must name: GPUs come only by NVIDIA's runtime, and it is not the default.
    pub fn class_to_name(&self) -> Option<&str> {
        let runs_plain_pods = match self {
            Self::Host(runtime) => runtime.default,
            Self::Runtime(setup) => setup.default || setup.cdi,
            Self::None | Self::Cdi | Self::Nri { .. } => true,
        };
        self.handler().filter(|_| !runs_plain_pods)
    }
}

/// How a container runtime is configured. All paths are on the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RuntimeSetup {
    pub kind: Kind,
    /// `None` if the drop-in is loaded without an entry in the main configuration.
    pub config: Option<String>,
    /// `None` for the main configuration.
    pub drop_in: Option<String>,
    /// The file with the present configuration, if it is not the main one.
    pub source: Option<String>,
    pub socket: String,
    /// The name of NVIDIA's runtime and of its RuntimeClass.
    pub handler: String,
    /// Whether it is the default, which also runs pods without a RuntimeClass.
    pub default: bool,
    /// Whether the container runtime has CDI enabled, so that GPUs come by CDI and not by NVIDIA's runtime.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cdi: bool,
}

impl RuntimeSetup {
    pub fn files(&self) -> impl Iterator<Item = &str> {
        [&self.config, &self.drop_in].into_iter().flatten().map(String::as_str)
    }
}

/// What is known of a node's container runtime beside its version.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnHost<'a> {
    /// Whether the host's configuration disables CDI.
    pub disables_cdi: bool,
    /// The main configuration file that the runtime was started with, if its command line names one.
    pub config: Option<&'a str>,
    /// NVIDIA's runtimes that are configured on the host: one of them is used unless the policy requires another setup.
    pub runtimes: &'a [HostRuntime],
}

pub fn choose(toolkit: &Toolkit, node: &NodeFacts, host: OnHost<'_>) -> Result<ToolkitChoice, Fault> {
    let runtime = Runtime::of(&node.runtime);
    if let Some(wanted) = toolkit.runtime.and_then(named)
        && runtime.kind.is_some_and(|kind| kind != wanted)
    {
        return Err(fault(format!(
            "toolkit.runtime requires {wanted}, but the node runs {runtime}; remove toolkit.runtime, or write Auto"
        )));
    }
    // Only a configured runtime can be the default.
    let implied = if toolkit.set_as_default == Some(true) { Injection::Runtime } else { Injection::Auto };
    let injection = toolkit.injection.filter(|injection| *injection != Injection::Auto).unwrap_or(implied);
    match injection {
        Injection::Auto | Injection::Cdi if runtime.takes_cdi() && !host.disables_cdi => Ok(ToolkitChoice::Cdi),
        Injection::Auto | Injection::Cdi | Injection::Runtime => configured(toolkit, injection, &runtime, node, host),
        Injection::None => Ok(ToolkitChoice::None),
        Injection::Nri if runtime.takes_nri() => {
            let socket =
                toolkit.host_paths.nri_socket.clone().unwrap_or_else(|| container_runtime::NRI_SOCKET.to_owned());
            Ok(ToolkitChoice::Nri { socket })
        }
        Injection::Nri => Err(fault(format!(
            "the node's container runtime, {runtime}, does not support NRI plugins; write toolkit.injection: Auto, or run the node with containerd 2.1 or later, or CRI-O 1.34 or later"
        ))),
    }
}

/// For runtimes without CDI devices or with CDI disabled, or policies that require NVIDIA's runtime: pods without a RuntimeClass get their GPUs, if the policy
/// permits it.
fn configured(
    toolkit: &Toolkit,
    injection: Injection,
    runtime: &Runtime,
    node: &NodeFacts,
    host: OnHost<'_>,
) -> Result<ToolkitChoice, Fault> {
    let kind = runtime.kind.or(toolkit.runtime.and_then(named)).ok_or_else(|| {
        fault(format!(
            "the node's container runtime, {runtime}, cannot be configured by this operator; write toolkit.injection: CDI"
        ))
    })?;
    let is_rewritten = writes_its_own(toolkit, kind, node);
    let setup = setup(toolkit, kind, node, host.config, toolkit.set_as_default.unwrap_or(!is_rewritten));
    if let Some(host) = of_host(toolkit, &setup, host.runtimes) {
        return Ok(host);
    }
    // The drop-in that enables CDI has no effect if the file that imports it is rewritten.
    if injection != Injection::Runtime && runtime.has_cdi() && !is_rewritten {
        return Ok(ToolkitChoice::Runtime(RuntimeSetup { cdi: true, default: false, ..setup }));
    }
    if injection == Injection::Cdi {
        return Err(fault(format!(
            "CDI cannot be enabled in the node's container runtime, {runtime}; write toolkit.injection: Runtime or Auto, or run the node with containerd 2.0 or later (1.7 or later if it is not managed by k3s or RKE2), or CRI-O"
        )));
    }
    if setup.default && is_rewritten {
        return Err(fault(
            "toolkit.setAsDefault has no effect on k3s and RKE2, which rewrite containerd's configuration at every start; remove setAsDefault, and start k3s with --default-runtime=nvidia, or set runtimeClassName in pods"
                .to_owned(),
        ));
    }
    Ok(ToolkitChoice::Runtime(setup))
}

/// Whether a distribution rewrites the configuration, and the policy sets no other file.
fn writes_its_own(toolkit: &Toolkit, kind: Kind, node: &NodeFacts) -> bool {
    let own = &toolkit.host_paths;
    kind == Kind::Containerd
        && matches!(
            container_runtime::distribution_of(toolkit.distribution, node),
            Distribution::K3s | Distribution::Rke2
        )
        && own.config.is_none()
        && own.drop_in.is_none()
}

/// Returns NVIDIA's runtime in the file to which this operator would add its own, unless the policy sets a field of the runtime. It must be
/// the default if this operator's would be: pods without a RuntimeClass would get no GPU.
fn of_host(toolkit: &Toolkit, own: &RuntimeSetup, host_runtimes: &[HostRuntime]) -> Option<ToolkitChoice> {
    let Toolkit { injection, runtime_class, set_as_default, .. } = toolkit;
    if injection.is_some_and(|injection| injection != Injection::Auto) || runtime_class.is_some() {
        return None;
    }
    let fits = |runtime: &&HostRuntime| {
        own.config.as_ref() == Some(&runtime.file)
            && set_as_default.is_none_or(|default| default == runtime.default)
            && (runtime.default || !own.default && is_class_of_host(&runtime.handler))
    };
    let found =
        host_runtimes.iter().filter(fits).max_by_key(|runtime| (runtime.default, runtime.handler == HANDLER))?;
    Some(ToolkitChoice::Host(found.clone()))
}

/// A node's probe reports the name, and no node may have RuntimeClasses created in other programs' names.
fn is_class_of_host(handler: &str) -> bool {
    handler.starts_with(HANDLER) && is_class_name(handler)
}

/// A name has only lower-case letters, digits and `-`.
fn is_class_name(handler: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !handler.is_empty() && handler.len() <= 63 && handler.chars().all(is_part) && handler.trim_matches('-') == handler
}

fn setup(toolkit: &Toolkit, kind: Kind, node: &NodeFacts, started_with: Option<&str>, default: bool) -> RuntimeSetup {
    let first = Runtime::of(&node.runtime).is_first_containerd();
    let files =
        container_runtime::runtime_files(kind, first, container_runtime::distribution_of(toolkit.distribution, node));
    let (config, drop_in) = files.started_with(started_with);
    let own = &toolkit.host_paths;
    RuntimeSetup {
        kind,
        // The source applies only to the distribution's own file.
        source: files.source.filter(|_| own.config.is_none()).map(str::to_owned),
        config: own.config.clone().or(config),
        drop_in: own.drop_in.clone().or(drop_in).filter(|_| kind != Kind::Docker),
        socket: own.socket.clone().unwrap_or_else(|| files.socket.to_owned()),
        handler: toolkit.runtime_class.clone().unwrap_or_else(|| HANDLER.to_owned()),
        default,
        cdi: false,
    }
}

fn named(runtime: ContainerRuntime) -> Option<Kind> {
    match runtime {
        ContainerRuntime::Auto => None,
        ContainerRuntime::Containerd => Some(Kind::Containerd),
        ContainerRuntime::Docker => Some(Kind::Docker),
        ContainerRuntime::CriO => Some(Kind::CriO),
    }
}

fn fault(message: String) -> Fault {
    Fault { reason: Reason::RuntimeUnsupported, message }
}

// Drivers in a plain folder of the host, such as those of Google's installers, have their device nodes in the host's `/dev`, but
// NVIDIA's runtime looks for them below the folder (nvidia-container-toolkit v1.20.1, `internal/runtime/runtime.go`). So containers
// get their GPUs by CDI specifications, which the device plugin writes with both roots.

/// Whether it is not a root file system with its own `/dev`.
fn is_folder(root: &str) -> bool {
    root != CONTAINER_ROOT && root != HOST_ROOT
}

pub fn check_folder_driver(choice: &ToolkitChoice, root: &str) -> Result<(), Fault> {
    match choice {
        ToolkitChoice::Runtime(RuntimeSetup { cdi: false, kind, .. }) if is_folder(root) => {
            let message = format!(
                "NVIDIA's runtime, by which {kind} would give containers their GPUs, looks for device nodes in the driver's folder, {root}, which has none; remove toolkit.injection and toolkit.setAsDefault and run the node with containerd 1.7 or later, or CRI-O, or write devicePlugin: {{flavor: Google}}"
            );
            Err(Fault { reason: Reason::RuntimeUnsupported, message })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
