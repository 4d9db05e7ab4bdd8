//! The container toolkit: `toolkit`, `cdi` and `operator.runtimeClass` become `toolkit`.

use gpu_operator_crd::policy::{Image, Injection, Toolkit};
use gpu_operator_plan::desired::images;
use k8s_openapi::api::core::v1::EnvVar;

use super::{
    driver::{image, operand},
    source::Source,
};

/// The name of NVIDIA's runtime in both operators.
const RUNTIME_CLASS: &str = "nvidia";
/// Where distributions have their container runtime. These paths are found by the distribution of a node.
const OF_DISTRIBUTIONS: [&str; 8] = [
    "/var/lib/rancher/",
    "/run/k3s/",
    "/etc/k0s/",
    "/run/k0s/",
    "/var/snap/microk8s/",
    "/etc/containerd/config.toml",
    "/run/containerd/containerd.sock",
    "/etc/containerd/conf.d/99-nvidia.toml",
];

pub fn toolkit(source: &mut Source) -> Toolkit {
    let uses_cdi = source.switch("cdi.enabled") != Some(false);
    let uses_nri = source.switch("cdi.nriPluginEnabled") == Some(true);
    if source.switch("toolkit.enabled") == Some(false) {
        source.take("toolkit");
        source.take("operator.runtimeClass");
        return Toolkit { injection: Some(Injection::None), ..Toolkit::default() };
    }
    let injection = match (uses_cdi, uses_nri) {
        (true, true) => Some(Injection::Nri),
        (false, _) => Some(Injection::Runtime),
        (true, false) => None,
    };
    let mut toolkit = Toolkit { injection, operand: operand(source, "toolkit"), ..Toolkit::default() };
    toolkit.operand.image = tagged(source, "toolkit", images::TOOLKIT.0);
    toolkit.install_dir = source.text("toolkit.installDir").filter(|folder| folder != "/usr/local/nvidia");
    let class = source.text("operator.runtimeClass");
    if let Some(class) = class.as_ref().filter(|_| injection != Some(Injection::Runtime)) {
        source.remark(
            &["operator.runtimeClass"],
            format!(
                "Where containers get GPUs by CDI, no runtime is configured, and pods with runtimeClassName: {class} start only on nodes that have it \
                 already. Remove runtimeClassName from pods, or write toolkit.injection: Runtime."
            ),
        );
    }
    toolkit.runtime_class = class;
    for variable in std::mem::take(&mut toolkit.operand.env) {
        if let Some(variable) = typed(variable, &mut toolkit, source) {
            toolkit.operand.env.push(variable);
        }
    }
    toolkit.runtime_class = toolkit.runtime_class.filter(|class| class != RUNTIME_CLASS);
    if toolkit.set_as_default == Some(true) && injection == Some(Injection::Nri) {
        toolkit.set_as_default = None;
        source.remark(&["toolkit.env"], "With the NRI plugin no runtime is configured, so none is the default.");
    }
    toolkit
}

/// Translates a variable that a policy has a field for, and returns any other.
fn typed(variable: EnvVar, toolkit: &mut Toolkit, source: &mut Source) -> Option<EnvVar> {
    let Some(value) = variable.value.clone() else { return Some(variable) };
    let paths = &mut toolkit.host_paths;
    let path = match variable.name.as_str() {
        "CONTAINERD_CONFIG" | "DOCKER_CONFIG" | "CRIO_CONFIG" | "RUNTIME_CONFIG" => &mut paths.config,
        "RUNTIME_DROP_IN_CONFIG" => &mut paths.drop_in,
        "CONTAINERD_SOCKET" | "DOCKER_SOCKET" | "RUNTIME_SOCKET" => &mut paths.socket,
        "NRI_SOCKET" => &mut paths.nri_socket,
        "CONTAINERD_RUNTIME_CLASS" => {
            toolkit.runtime_class = Some(value);
            return None;
        }
        "CONTAINERD_SET_AS_DEFAULT"
        | "DOCKER_SET_AS_DEFAULT"
        | "CRIO_SET_AS_DEFAULT"
        | "NVIDIA_RUNTIME_SET_AS_DEFAULT" => {
            toolkit.set_as_default = Some(value == "true" || value == "1");
            return None;
        }
        "RUNTIME_CONFIG_SOURCE" => {
            let text = "RUNTIME_CONFIG_SOURCE is not needed: the configuration of a runtime is read from its files, and never from a command.";
            source.remark(&["toolkit.env"], text);
            return None;
        }
        _ => return Some(variable),
    };
    if OF_DISTRIBUTIONS.iter().any(|known| value.starts_with(known)) {
        let text = format!(
            "{} is not needed: {value} is found on nodes that have it. For other paths, write toolkit.hostPaths.",
            variable.name
        );
        source.remark(&["toolkit.env"], text);
    } else {
        *path = Some(value);
    }
    None
}

/// Takes an image with its tag or digest.
pub fn tagged(source: &mut Source, component: &str, path: &str) -> Option<Image> {
    let mut image = image(source, component, path);
    let version = source.text(&format!("{component}.version"));
    (image.digest, image.tag) = match version {
        Some(digest) if digest.starts_with("sha256:") => (Some(digest), None),
        tag => (None, tag),
    };
    (image != Image::default()).then_some(image)
}
