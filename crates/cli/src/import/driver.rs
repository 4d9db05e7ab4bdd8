//! The driver of a `ClusterPolicy` or an `NVIDIADriver`: `driver` in a policy.

use gpu_operator_crd::policy::{
    ConfigMapFiles, Driver, DriverConfigMaps, DriverContainer, DriverSource, Image, KernelModule, Operand, Preinstalled,
};
use gpu_operator_plan::{catalogue::Catalogue, desired::images};
use k8s_openapi::api::core::v1::EnvVar;

use super::{objects::ConfigMaps, source::Source};

/// The files that NVIDIA's driver container reads.
const MODULE_FILES: [&str; 4] = ["nvidia.conf", "nvidia-uvm.conf", "nvidia-modeset.conf", "nvidia-peermem.conf"];

pub fn driver(source: &mut Source, config_maps: &ConfigMaps, catalogue: &Catalogue) -> Driver {
    let mut image = image(source, "driver", images::DRIVER);
    let precompiled = source.switch("driver.usePrecompiled").filter(|&is_used| is_used);
    let version = version(source, &mut image, catalogue);
    let mut operand = operand(source, "driver");
    if source.switch("driver.rdma.enabled") == Some(true) {
        let name = "GPU_DIRECT_RDMA_ENABLED";
        operand.env.retain(|variable| variable.name != name);
        operand.env.push(EnvVar { name: name.to_owned(), value: Some("true".to_owned()), value_from: None });
    }
    operand.image = Some(image).filter(|image| *image != Image::default());
    let container =
        DriverContainer { kernel_module: kernel_module(source), precompiled, config_maps: files(source, config_maps) };
    Driver { version, container, operand, ..Driver::default() }
}

/// Returns the driver of nodes on which NVIDIA's operator installs none.
pub fn of_hosts(install_dir: Option<String>) -> Driver {
    Driver { source: Some(DriverSource::Preinstalled), preinstalled: Preinstalled { install_dir }, ..Driver::default() }
}

/// Takes the directory of the host's drivers, if it is not NVIDIA's default.
pub fn folder_of_hosts(source: &mut Source) -> Option<String> {
    source.text("hostPaths.driverInstallDir").filter(|folder| folder != "/" && folder != "/run/nvidia/driver")
}

/// Takes environment and resources.
pub fn operand(source: &mut Source, component: &str) -> Operand {
    let env = source.typed(&format!("{component}.env")).unwrap_or_default();
    Operand { env, resources: source.typed(&format!("{component}.resources")), ..Operand::default() }
}

/// Takes the repository, if it is not NVIDIA's own, whose path in its registry is `path`.
pub fn image(source: &mut Source, component: &str, path: &str) -> Image {
    let own = format!("{}/{path}", images::REGISTRY);
    let (registry, name) = own.rsplit_once('/').unwrap_or(("", &own));
    let registry = source.text(&format!("{component}.repository")).unwrap_or_else(|| registry.to_owned());
    let name = source.text(&format!("{component}.image")).unwrap_or_else(|| name.to_owned());
    let repository = format!("{}/{name}", registry.trim_end_matches('/'));
    Image { repository: Some(repository).filter(|repository| *repository != own), ..Image::default() }
}

fn kernel_module(source: &mut Source) -> Option<KernelModule> {
    let module = match source.text("driver.kernelModuleType")?.as_str() {
        "auto" => return None,
        "open" => KernelModule::Open,
        "proprietary" => KernelModule::Proprietary,
        other => {
            let text = format!(
                "{other} is no type of kernel modules: write driver.container.kernelModule, Open or Proprietary."
            );
            source.remark(&["driver.kernelModuleType"], text);
            return None;
        }
    };
    Some(module)
}

fn version(source: &mut Source, image: &mut Image, catalogue: &Catalogue) -> Option<String> {
    const PATH: &[&str] = &["driver.version"];
    let Some(written) = source.text("driver.version") else {
        source.remark(PATH, "Not set: the operator would choose the version. Write the one that the nodes have to driver.version, as in their label nvidia.com/cuda.driver-version.full.");
        return None;
    };
    if written.starts_with("sha256:") {
        image.digest = Some(written);
        source.remark(PATH, "It is a digest: add driver.version, as nvidia-smi prints it. The API server rejects the policy without it.");
        return None;
    }
    let (number, suffix) =
        written.split_once('-').map_or((written.as_str(), None), |(number, suffix)| (number, Some(suffix)));
    if let Some(suffix) = suffix {
        let text = format!(
            "The tag of the image is version and system, without -{suffix}. For another tag, write driver.image.tag."
        );
        source.remark(PATH, text);
    }
    if is_version(number) {
        return Some(number.to_owned());
    }
    let branch = format!("{number}.");
    let of_branch = catalogue.releases().filter(|release| release.version.starts_with(&branch)).last();
    let text = match of_branch {
        Some(release) => format!(
            "{number} is a branch: the policy has its version {}. Another one of the branch can be written.",
            release.version
        ),
        None => format!(
            "{written} is no full version: write driver.version, such as \"580.173.02\", or the operator chooses one."
        ),
    };
    source.remark(PATH, text);
    of_branch.map(|release| release.version.clone())
}

/// Returns whether it is a full version, such as 580.173.02.
fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |part: &&str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.iter().all(is_number) && parts[0].len() == 3 && (2..=3).contains(&parts.len())
}

fn files(source: &mut Source, config_maps: &ConfigMaps) -> DriverConfigMaps {
    let mut of = |paths: [&str; 2], member: &str| {
        let found = paths.into_iter().find_map(|path| Some((path, source.text(path)?)));
        let (path, name) = found?;
        let Some(data) = config_maps.get(&name) else {
            let text = format!(
                "ConfigMap {name} was not read, and a policy lists its keys: write driver.container.configMaps.{member}: {{name: {name}, keys: […]}}."
            );
            source.remark(&[path], text);
            return None;
        };
        let is_read = |key: &&String| member != "kernelModules" || MODULE_FILES.contains(&key.as_str());
        let (keys, ignored): (Vec<_>, Vec<_>) = data.keys().partition(is_read);
        if !ignored.is_empty() {
            let text = format!(
                "The driver's container ignores keys of ConfigMap {name}: only {} are read.",
                MODULE_FILES.join(", ")
            );
            source.remark(&[path], text);
        }
        let keys: Vec<String> = keys.into_iter().cloned().collect();
        (!keys.is_empty()).then_some(ConfigMapFiles { name, keys })
    };
    DriverConfigMaps {
        kernel_modules: of(["driver.kernelModuleConfig.name"; 2], "kernelModules"),
        repositories: of(["driver.repoConfig.configMapName", "driver.repoConfig.name"], "repositories"),
        certificates: of(["driver.certConfig.name"; 2], "certificates"),
    }
}
