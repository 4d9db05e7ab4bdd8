//! What is installed for a node's container runtime, so that containers can use the driver: the least disruptive option
//! that works.

use std::borrow::Cow;

use gpu_operator_crd::{
    policy::{ContainerRuntime, Distribution, Injection, Toolkit},
    reason::Reason,
    report::HostRuntime,
};
use serde::Serialize;

use crate::{
    desired::{
        container_runtime::{Kind, Runtime},
        distribution,
        fault::Fault,
    },
    world::NodeFacts,
};

/// The default name of NVIDIA's runtime.
const HANDLER: &str = "nvidia";

/// What is installed for a node's container runtime.
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
    /// Returns whether the container runtime gives containers their GPUs by CDI, so that the device plugin answers with
    /// CDI devices.
    #[must_use]
    pub fn is_by_cdi(&self) -> bool {
        match self {
            Self::Cdi | Self::Nri { .. } => true,
            Self::Runtime(setup) => setup.cdi,
            Self::Host(_) | Self::None => false,
        }
    }

    /// Returns how NVIDIA's runtime is added to the container runtime's configuration, if it is.
    #[must_use]
    pub fn setup(&self) -> Option<&RuntimeSetup> {
        match self {
            Self::Runtime(setup) => Some(setup),
            Self::None | Self::Host(_) | Self::Cdi | Self::Nri { .. } => None,
        }
    }

    /// Returns the part of the choice that belongs to a revision: this operator changes nothing of the host's own
    /// runtime.
    #[must_use]
    pub fn revision(&self) -> Cow<'_, Self> {
        match self {
            Self::Host(_) => Cow::Owned(Self::Host(HostRuntime::default())),
            other => Cow::Borrowed(other),
        }
    }

    /// Returns the name of NVIDIA's runtime in the container runtime's configuration, which is the handler of its
    /// RuntimeClass.
    #[must_use]
    pub fn handler(&self) -> Option<&str> {
        match self {
            Self::Host(runtime) => Some(&runtime.handler),
            Self::Runtime(setup) => Some(&setup.handler),
            Self::None | Self::Cdi | Self::Nri { .. } => None,
        }
    }

    /// Returns the RuntimeClass that pods must name, if containers get GPUs only by NVIDIA's runtime and it is not the
    /// default.
    #[must_use]
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
    /// The container runtime.
    pub kind: Kind,
    /// Its main configuration; `None` if the drop-in is loaded without an entry there.
    pub config: Option<String>,
    /// The file to which NVIDIA's runtime is added; `None` for the main configuration.
    pub drop_in: Option<String>,
    /// The file from which its present configuration is read, if that is not the main one.
    pub source: Option<String>,
    /// The socket that it listens on.
    pub socket: String,
    /// The name of NVIDIA's runtime and of its RuntimeClass.
    pub handler: String,
    /// Whether it is the default, which also runs pods without a RuntimeClass.
    pub default: bool,
    /// Whether CDI is enabled in the container runtime, so that containers get GPUs by CDI and not by NVIDIA's runtime.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cdi: bool,
}

impl RuntimeSetup {
    /// Returns the files that are changed.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        [&self.config, &self.drop_in].into_iter().flatten().map(String::as_str)
    }
}

/// Chooses what is installed for a node's container runtime. `host_runtimes` are NVIDIA's runtimes that are configured
/// on the host and left unchanged: one of them is used unless the policy requires another setup.
///
/// # Errors
/// Returns a [`Fault`] if the node cannot have what the policy requires.
pub fn choose(toolkit: &Toolkit, node: &NodeFacts, host_runtimes: &[HostRuntime]) -> Result<ToolkitChoice, Fault> {
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
        Injection::Auto | Injection::Cdi if runtime.takes_cdi() => Ok(ToolkitChoice::Cdi),
        Injection::Auto | Injection::Cdi | Injection::Runtime => {
            configured(toolkit, injection, &runtime, node, host_runtimes)
        }
        Injection::None => Ok(ToolkitChoice::None),
        Injection::Nri if runtime.takes_nri() => {
            let socket = toolkit.host_paths.nri_socket.clone().unwrap_or_else(|| distribution::NRI_SOCKET.to_owned());
            Ok(ToolkitChoice::Nri { socket })
        }
        Injection::Nri => Err(fault(format!(
            "the node's container runtime, {runtime}, does not support NRI plugins; write toolkit.injection: Auto, or run the node with containerd 2.1 or later, or CRI-O 1.34 or later"
        ))),
    }
}

/// Chooses how a runtime is configured that does not support CDI devices by itself, or whose policy requires NVIDIA's
/// runtime: so that pods without a RuntimeClass get their GPUs, if the policy permits it.
fn configured(
    toolkit: &Toolkit,
    injection: Injection,
    runtime: &Runtime,
    node: &NodeFacts,
    host_runtimes: &[HostRuntime],
) -> Result<ToolkitChoice, Fault> {
    let kind = runtime.kind.or(toolkit.runtime.and_then(named)).ok_or_else(|| {
        fault(format!(
            "the node's container runtime, {runtime}, cannot be configured by this operator; write toolkit.injection: CDI"
        ))
    })?;
    let is_rewritten = writes_its_own(toolkit, kind, node);
    let setup = setup(toolkit, kind, node, toolkit.set_as_default.unwrap_or(!is_rewritten));
    if let Some(host) = of_host(toolkit, &setup, host_runtimes) {
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

/// Returns whether a distribution rewrites its runtime's configuration, and the policy sets no other file.
fn writes_its_own(toolkit: &Toolkit, kind: Kind, node: &NodeFacts) -> bool {
    let own = &toolkit.host_paths;
    kind == Kind::Containerd
        && matches!(distribution::of(toolkit.distribution, node), Distribution::K3s | Distribution::Rke2)
        && own.config.is_none()
        && own.drop_in.is_none()
}

/// Returns NVIDIA's runtime in the file to which this operator would add its own, unless the policy sets one of the
/// runtime's fields. One that is not the default is not enough if this operator's would be: pods without a RuntimeClass
/// would get no GPU.
fn of_host(toolkit: &Toolkit, own: &RuntimeSetup, host_runtimes: &[HostRuntime]) -> Option<ToolkitChoice> {
    let Toolkit { injection, runtime_class, set_as_default, .. } = toolkit;
    if injection.is_some_and(|injection| injection != Injection::Auto) || runtime_class.is_some() {
        return None;
    }
    let fits = |runtime: &&HostRuntime| {
        own.config.as_ref() == Some(&runtime.file)
            && set_as_default.is_none_or(|default| default == runtime.default)
            && (runtime.default || !own.default && is_class_name(&runtime.handler))
    };
    let found =
        host_runtimes.iter().filter(fits).max_by_key(|runtime| (runtime.default, runtime.handler == HANDLER))?;
    Some(ToolkitChoice::Host(found.clone()))
}

/// Returns whether a RuntimeClass can name this runtime: only lower-case letters, digits and `-`.
#[must_use]
pub fn is_class_name(handler: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !handler.is_empty() && handler.len() <= 63 && handler.chars().all(is_part) && handler.trim_matches('-') == handler
}

fn setup(toolkit: &Toolkit, kind: Kind, node: &NodeFacts, default: bool) -> RuntimeSetup {
    let first = Runtime::of(&node.runtime).is_first_containerd();
    let files = distribution::files(kind, first, distribution::of(toolkit.distribution, node));
    let own = &toolkit.host_paths;
    let or = |own: &Option<String>, known: Option<&str>| own.clone().or_else(|| known.map(str::to_owned));
    RuntimeSetup {
        kind,
        // The source applies only to the distribution's own file.
        source: files.source.filter(|_| own.config.is_none()).map(str::to_owned),
        config: or(&own.config, files.config),
        drop_in: or(&own.drop_in, files.drop_in).filter(|_| kind != Kind::Docker),
        socket: own.socket.clone().unwrap_or_else(|| files.socket.to_owned()),
        handler: toolkit.runtime_class.clone().unwrap_or_else(|| HANDLER.to_owned()),
        default,
        cdi: false,
    }
}

/// Returns the kind that a policy sets.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(toolkit: &str, runtime: &str, kubelet: &str) -> Result<ToolkitChoice, String> {
        let toolkit: Toolkit = serde_yaml::from_str(toolkit).unwrap();
        let node = NodeFacts { runtime: runtime.into(), kubelet: kubelet.into(), ..NodeFacts::default() };
        choose(&toolkit, &node, &[]).map_err(|fault| fault.message)
    }

    #[test]
    fn the_hosts_runtime_is_used_unless_the_policy_requires_another() {
        let (docker, containerd) = ("/etc/docker/daemon.json", "/etc/containerd/config.toml");
        let on_host =
            |file: &str, handler: &str, default| HostRuntime { file: file.into(), handler: handler.into(), default };
        for (toolkit, runtime, on_host, expected) in [
            (
                "{}",
                "docker://27.0.3",
                on_host(docker, "nvidia", true),
                r#"Host(HostRuntime { file: "/etc/docker/daemon.json", handler: "nvidia", default: true"#,
            ),
            (
                "{}",
                "docker://27.0.3",
                on_host(docker, "gpu", false),
                r#"Runtime(RuntimeSetup { kind: Docker, config: Some("/etc/docker/daemon.json"), drop_in: None, source: None, socket: "/var/run/docker.sock", handler: "nvidia", default: true"#,
            ),
            (
                "{setAsDefault: false}",
                "docker://27.0.3",
                on_host(docker, "gpu", false),
                r#"Host(HostRuntime { file: "/etc/docker/daemon.json", handler: "gpu""#,
            ),
            ("{setAsDefault: true}", "docker://27.0.3", on_host(docker, "nvidia", true), "Host"),
            // No RuntimeClass can name it.
            ("{setAsDefault: false}", "docker://27.0.3", on_host(docker, "nvidia_x", false), "Runtime"),
            ("{}", "docker://27.0.3", on_host(docker, "nvidia_x", true), "Host"),
            // The file is of another runtime than kubelet's.
            ("{}", "containerd://1.7.27", on_host(docker, "nvidia", true), "Runtime"),
            ("{}", "containerd://2.1.4", on_host(containerd, "nvidia", true), "Cdi"),
            ("{}", "containerd://1.7.27", on_host(containerd, "nvidia", true), "Host"),
            ("{}", "containerd://1.7.27", on_host(containerd, "nvidia", false), "Runtime"),
            // The policy requires this operator's runtime.
            ("{injection: Runtime}", "docker://27.0.3", on_host(docker, "nvidia", true), "Runtime"),
            ("{setAsDefault: true}", "docker://27.0.3", on_host(docker, "nvidia", false), "Runtime"),
            ("{setAsDefault: false}", "docker://27.0.3", on_host(docker, "nvidia", true), "Runtime"),
            ("{runtimeClass: gpu}", "docker://27.0.3", on_host(docker, "nvidia", false), "Runtime"),
            ("{injection: None}", "docker://27.0.3", on_host(docker, "nvidia", false), "None"),
        ] {
            let toolkit_wanted: Toolkit = serde_yaml::from_str(toolkit).unwrap();
            let node = NodeFacts { runtime: runtime.into(), ..NodeFacts::default() };
            let choice = format!("{:?}", choose(&toolkit_wanted, &node, &[on_host]).unwrap());
            assert!(choice.starts_with(expected), "{toolkit} on {runtime}: {choice}");
        }
    }

    /// Returns how pods get GPUs: what they must name, and what is changed on the node.
    fn words(choice: &ToolkitChoice) -> String {
        let how = match choice {
            ToolkitChoice::Runtime(setup) if setup.cdi => "CDI enabled",
            ToolkitChoice::Runtime(setup) if setup.default => "Runtime as default",
            ToolkitChoice::Runtime(_) => "Runtime",
            ToolkitChoice::Cdi => "CDI",
            ToolkitChoice::Nri { .. } => "NRI",
            ToolkitChoice::Host(_) => "Host",
            ToolkitChoice::None => "None",
        };
        choice.class_to_name().map_or_else(|| how.to_owned(), |class| format!("{how}, class {class}"))
    }

    #[test]
    fn the_least_disruptive_option_with_which_plain_pods_work_is_chosen() {
        let (kubeadm, k3s) = ("v1.34.0", "v1.34.0+k3s1");
        for (toolkit, runtime, kubelet, expected) in [
            ("{}", "containerd://2.0.0", kubeadm, "CDI"),
            ("{}", "containerd://2.1.4-k3s1", k3s, "CDI"),
            ("{}", "cri-o://1.34.1", kubeadm, "CDI"),
            ("{}", "of-tomorrow://1.0", kubeadm, "CDI"),
            ("{}", "containerd://1.7.0", kubeadm, "CDI enabled"),
            ("{injection: CDI}", "containerd://1.7.27", kubeadm, "CDI enabled"),
            ("{setAsDefault: false}", "containerd://1.7.27", kubeadm, "CDI enabled"),
            ("{}", "containerd://1.6.9~ds1", kubeadm, "Runtime as default"),
            ("{setAsDefault: false}", "containerd://1.6.9~ds1", kubeadm, "Runtime, class nvidia"),
            ("{}", "docker://27.0.3", kubeadm, "Runtime as default"),
            ("{setAsDefault: false}", "docker://27.0.3", kubeadm, "Runtime, class nvidia"),
            ("{runtime: Docker, runtimeClass: gpu}", "docker://27.0.3", kubeadm, "Runtime as default"),
            ("{injection: Runtime}", "containerd://1.7.27", kubeadm, "Runtime as default"),
            ("{injection: Runtime, setAsDefault: false}", "containerd://1.7.27", kubeadm, "Runtime, class nvidia"),
            ("{injection: Runtime}", "containerd://2.1.4", kubeadm, "Runtime as default"),
            ("{setAsDefault: true}", "containerd://2.1.4", kubeadm, "Runtime as default"),
            ("{setAsDefault: false}", "containerd://2.1.4", kubeadm, "CDI"),
            ("{injection: NRI}", "containerd://2.1.0", kubeadm, "NRI"),
            ("{injection: NRI}", "cri-o://1.34.0", kubeadm, "NRI"),
            ("{injection: None}", "containerd://1.7.27", kubeadm, "None"),
            ("{injection: None}", "containerd://2.1.4", kubeadm, "None"),
            // k3s does not load the drop-in that would enable CDI, and has a default of its own.
            ("{}", "containerd://1.7.27-k3s1", k3s, "Runtime, class nvidia"),
            ("{injection: Runtime}", "containerd://2.1.4-k3s1", k3s, "Runtime, class nvidia"),
            ("{hostPaths: {dropIn: /etc/k3s/nvidia.toml}}", "containerd://1.7.27-k3s1", k3s, "CDI enabled"),
        ] {
            assert_eq!(
                words(&chosen(toolkit, runtime, kubelet).unwrap()),
                expected,
                "{toolkit} on {runtime} {kubelet}"
            );
        }
    }

    #[test]
    fn unsupported_settings_are_rejected_with_what_to_write_instead() {
        for (toolkit, runtime, words) in [
            ("{injection: CDI}", "containerd://1.6.9~ds1", "write toolkit.injection: Runtime or Auto"),
            ("{injection: CDI}", "docker://27.0.3", "write toolkit.injection: Runtime or Auto"),
            ("{injection: NRI}", "containerd://2.0.5", "containerd 2.1 or later"),
            ("{injection: NRI}", "cri-o://1.33.9", "CRI-O 1.34 or later"),
            ("{injection: NRI}", "docker://27.0.3", "does not support NRI plugins"),
            ("{injection: Runtime}", "of-tomorrow://1.0", "write toolkit.injection: CDI"),
            ("{runtime: Docker}", "containerd://1.7.27", "requires Docker, but the node runs containerd 1.7.27"),
        ] {
            let error = chosen(toolkit, runtime, "v1.34.0").unwrap_err();
            assert!(error.contains(words), "{toolkit} on {runtime}: {error}");
        }
        let error = chosen("{injection: CDI}", "containerd://1.7.27-k3s1", "v1.34.1+k3s1").unwrap_err();
        assert!(error.contains("containerd 2.0 or later"), "{error}");
        let k3s = |toolkit: &str| chosen(toolkit, "containerd://2.1.4-k3s1", "v1.34.1+k3s1");
        assert!(k3s("{setAsDefault: true}").unwrap_err().contains("--default-runtime=nvidia"));
        let of_host = HostRuntime {
            file: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml".into(),
            handler: "nvidia".into(),
            default: true,
        };
        let toolkit = serde_yaml::from_str("{setAsDefault: true}").unwrap();
        let mut node = NodeFacts { kubelet: "v1.34.1+k3s1".into(), ..NodeFacts::default() };
        node.runtime = "containerd://2.1.4-k3s1".into();
        assert_eq!(choose(&toolkit, &node, std::slice::from_ref(&of_host)), Ok(ToolkitChoice::Host(of_host)));
        assert!(k3s("{setAsDefault: true, hostPaths: {dropIn: /etc/k3s/nvidia.toml}}").is_ok());
    }

    #[test]
    fn paths_are_the_distributions_unless_the_policy_sets_them() {
        let toolkit = "{injection: Runtime, runtimeClass: gpu, hostPaths: {config: /a/b.toml}}";
        let ToolkitChoice::Runtime(setup) = chosen(toolkit, "containerd://1.7.27", "v1.31.2+rke2r1").unwrap() else {
            panic!("Runtime")
        };
        assert_eq!(setup.config.as_deref(), Some("/a/b.toml"));
        assert_eq!(setup.socket, "/run/k3s/containerd/containerd.sock");
        assert_eq!(setup.handler, "gpu");
    }

    #[test]
    fn k3s_imports_a_folder_for_each_version_of_the_configuration() {
        for (runtime, folder) in
            [("containerd://1.7.27-k3s1", "config.toml.d"), ("containerd://2.1.4-k3s1", "config-v3.toml.d")]
        {
            let ToolkitChoice::Runtime(setup) = chosen("{injection: Runtime}", runtime, "v1.34.1+k3s1").unwrap() else {
                panic!("Runtime")
            };
            let expected = format!("/var/lib/rancher/k3s/agent/etc/containerd/{folder}/99-nvidia.toml");
            assert_eq!(setup.drop_in, Some(expected));
        }
    }
}
