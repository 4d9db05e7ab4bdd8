//! Which device plugin registers a node's GPUs with kubelet.

use gpu_operator_common::{mig_layout::MigLayout, version::Version};
use gpu_operator_crd::{
    policy::{DevicePlugin, Image, Mig, MigMode, MigStrategy, Mps, PluginFlavor, Sharing},
    reason::Reason,
};
use serde::Serialize;

use crate::{
    desired::{driver::DriverChoice, mig_layout, toolkit::ToolkitChoice},
    note::Fault,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PluginChoice {
    Nvidia {
        sharing: Option<Sharing>,
        /// Determines the resource names of MIG devices.
        mig: MigStrategy,
        /// Applied before the plugin starts.
        #[serde(skip_serializing_if = "Option::is_none")]
        layout: Option<MigLayout>,
    },
    Gke {
        replicas: Option<u32>,
        /// The port for metrics of containers.
        metrics_port: Option<u16>,
    },
    /// A third-party device plugin.
    External,
    /// NVIDIA's DRA driver in place of a device plugin.
    Dra,
}

impl PluginChoice {
    /// Plugins beside Google's installers mount the driver's folder and need no toolkit.
    pub fn needs_toolkit(&self, driver: &DriverChoice) -> bool {
        match self {
            // The DRA driver's devices are CDI devices, whose hooks are the toolkit's.
            Self::Nvidia { .. } | Self::Dra => true,
            Self::Gke { .. } => false,
            Self::External => !driver.is_for_googles_plugin(),
        }
    }

    pub fn layout(&self) -> Option<&MigLayout> {
        match self {
            Self::Nvidia { layout, .. } => layout.as_ref(),
            Self::Gke { .. } | Self::External | Self::Dra => None,
        }
    }

    pub fn mps(&self) -> Option<&Mps> {
        match self {
            Self::Nvidia { sharing, .. } => sharing.as_ref()?.mps.as_ref(),
            Self::Gke { .. } | Self::External | Self::Dra => None,
        }
    }
}

/// The first driver that NVIDIA's device plugin supports according to its documentation.
const FIRST_DRIVER: (u32, u32) = (384, 81);

/// `is_external` is whether a third-party plugin serves the node; `loaded` is the version of the loaded driver, which counts if this
/// operator does not install the driver.
pub fn choose(
    plugin: &DevicePlugin,
    driver: &DriverChoice,
    loaded: Option<&str>,
    is_external: bool,
) -> Result<PluginChoice, Fault> {
    let by_driver = if driver.is_for_googles_plugin() { PluginFlavor::Google } else { PluginFlavor::Nvidia };
    match plugin.flavor.unwrap_or(by_driver) {
        _ if is_external => Ok(PluginChoice::External),
        PluginFlavor::External => Ok(PluginChoice::External),
        PluginFlavor::Nvidia => {
            works_with(if driver.is_managed() { driver.version() } else { loaded })?;
            Ok(nvidia(plugin))
        }
        PluginFlavor::Google if !driver.is_a_folder() => Err(unsupported(format!(
            "Google's device plugin cannot use the driver at {}. Set devicePlugin.flavor: Nvidia, or driver.source: CloudInstaller or RunFile",
            driver.root()
        ))),
        PluginFlavor::Google => gke(plugin),
    }
}

fn works_with(version: Option<&str>) -> Result<(), Fault> {
    let numbers =
        version.and_then(Version::leading).map(|version| (version.major(), version.minor().unwrap_or(u32::MAX)));
    match (numbers, version) {
        (Some(numbers), Some(version)) if numbers < FIRST_DRIVER => Err(unsupported(format!(
            "NVIDIA's device plugin requires driver {}.{} or later, but this node has {version}; install a later driver, or write driver.source: RunFile and devicePlugin.flavor: Google",
            FIRST_DRIVER.0, FIRST_DRIVER.1
        ))),
        _ => Ok(()),
    }
}

fn nvidia(plugin: &DevicePlugin) -> PluginChoice {
    let sharing = Some(without_defaults(plugin.sharing.clone())).filter(|sharing| *sharing != Sharing::default());
    let mig = plugin.mig.as_ref().and_then(|mig| mig.strategy).unwrap_or_default();
    let layout = plugin.mig.as_ref().and_then(mig_layout::layout);
    PluginChoice::Nvidia { sharing, mig, layout }
}

/// Drops defaults: writing them starts no update.
fn without_defaults(mut sharing: Sharing) -> Sharing {
    let slicing = sharing.time_slicing.iter_mut();
    let flags = slicing
        .flat_map(|slicing| [&mut slicing.rename_by_default, &mut slicing.fail_requests_greater_than_one])
        .chain(sharing.mps.iter_mut().map(|mps| &mut mps.rename_by_default));
    for flag in flags.filter(|flag| **flag == Some(false)) {
        *flag = None;
    }
    sharing
}

fn gke(plugin: &DevicePlugin) -> Result<PluginChoice, Fault> {
    let sharing = &plugin.sharing;
    // The flavor may follow from the node's driver.
    let uses_mig = |mig: &Mig| {
        mig.mode() != MigMode::Unmanaged || mig.strategy.is_some_and(|strategy| strategy != MigStrategy::None)
    };
    if plugin.mig.as_ref().is_some_and(uses_mig) {
        let message = "MIG requires NVIDIA's device plugin, but nodes with a driver from Google's installers use Google's; remove mig, or write devicePlugin.flavor: Nvidia";
        return Err(unsupported(message));
    }
    if sharing.mps.is_some() {
        let message = "Google's device plugin supports MPS only where GKE runs the control daemon; write sharing.timeSlicing instead of mps, or devicePlugin.flavor: Nvidia";
        return Err(unsupported(message));
    }
    let slicing = sharing.time_slicing.as_ref();
    if slicing
        .is_some_and(|slicing| slicing.rename_by_default.is_some() || slicing.fail_requests_greater_than_one.is_some())
    {
        let message = "Google's device plugin supports only timeSlicing.replicas; remove renameByDefault and failRequestsGreaterThanOne, or write devicePlugin.flavor: Nvidia";
        return Err(unsupported(message));
    }
    // The flavor may follow from the node's driver.
    let image = plugin.operand.image.as_ref().filter(|image| image.tag.is_none() && image.digest.is_none());
    if let Some(repository) = image.and_then(|image| image.repository.as_ref()) {
        return Err(unsupported(format!(
            "devicePlugin.image.repository {repository} has no tag or digest, and the default digest of Google's device plugin exists only in Google's repository; write devicePlugin.image.tag or devicePlugin.image.digest, or devicePlugin.flavor: Nvidia"
        )));
    }
    Ok(PluginChoice::Gke {
        replicas: slicing.map(|slicing| slicing.replicas),
        metrics_port: plugin.google.metrics_port,
    })
}

pub fn unsupported(message: impl Into<String>) -> Fault {
    Fault { reason: Reason::DevicePluginUnsupported, message: message.into() }
}

// The oldest images of NVIDIA's device plugin that support a setting, according to their release notes. Older ones do not know the
// setting, and crash or do not share GPUs.

/// The first release that supports CDI devices (`cdi-cri`) and MPS.
const FIRST_IMAGE: (u32, u32) = (0, 15);
/// The name of NVIDIA's image, whose tags are releases.
const IMAGE_NAME: &str = "k8s-device-plugin";

pub fn check_image(plugin: &DevicePlugin, choice: &PluginChoice, toolkit: &ToolkitChoice) -> Result<(), Fault> {
    let Some((tag, release)) = plugin.operand.image.as_ref().and_then(image_release) else {
        return Ok(());
    };
    if !matches!(choice, PluginChoice::Nvidia { .. }) || release >= FIRST_IMAGE {
        return Ok(());
    }
    let (major, minor) = FIRST_IMAGE;
    if choice.mps().is_some() {
        return Err(unsupported(format!(
            "devicePlugin.image.tag is {tag}, but NVIDIA's device plugin supports MPS from v{major}.{minor} on; write a later tag, or sharing.timeSlicing instead of mps"
        )));
    }
    if toolkit.is_by_cdi() {
        return Err(unsupported(format!(
            "devicePlugin.image.tag is {tag}, but NVIDIA's device plugin supports CDI devices, which this node's container runtime uses, from v{major}.{minor} on; write a later tag, or toolkit.injection: Runtime"
        )));
    }
    Ok(())
}

/// Returns the tag and its release. A digest has no release, nor has the tag of another image.
fn image_release(image: &Image) -> Option<(&str, (u32, u32))> {
    let is_nvidias = |repository: &String| repository.rsplit('/').next() == Some(IMAGE_NAME);
    let tag = image.tag.as_deref().filter(|_| image.repository.as_ref().is_none_or(is_nvidias))?;
    let version = Version::leading(tag)?;
    Some((tag, (version.major(), version.minor()?)))
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::policy::{MigStrategy, Sharing};

    use super::*;
    use crate::desired::{container_runtime::Kind, toolkit::RuntimeSetup};

    #[test]
    fn the_plugin_follows_the_policy_or_else_the_driver() {
        let host = DriverChoice::Preinstalled { root: "/".into() };
        let google = DriverChoice::Preinstalled { root: "/home/kubernetes/bin/nvidia".into() };
        for (written, driver, is_external, chosen) in [
            ("{}", &host, false, "Nvidia"),
            ("{}", &google, false, "Gke"),
            ("{flavor: Nvidia}", &google, false, "Nvidia"),
            ("{flavor: Google}", &google, false, "Gke"),
            ("{flavor: Google}", &host, false, "cannot use the driver at /."),
            ("{flavor: Google, sharing: {mps: {replicas: 2}}}", &google, false, "where GKE runs the control daemon"),
            (
                "{sharing: {timeSlicing: {replicas: 2, renameByDefault: true}}}",
                &google,
                false,
                "supports only timeSlicing.replicas",
            ),
            ("{mig: {strategy: Mixed}}", &google, false, "MIG requires NVIDIA's device plugin"),
            ("{mig: {mode: Disabled}}", &google, false, "MIG requires NVIDIA's device plugin"),
            ("{mig: {strategy: None, mode: Unmanaged}}", &google, false, "Gke"),
            (
                "{image: {repository: own/plugin}}",
                &google,
                false,
                "devicePlugin.image.repository own/plugin has no tag",
            ),
            ("{image: {repository: own/plugin, tag: v1}}", &google, false, "Gke"),
            ("{image: {repository: own/plugin}}", &host, false, "Nvidia"),
            ("{flavor: External}", &host, false, "External"),
            ("{}", &host, true, "External"),
            ("{flavor: Google}", &host, true, "External"),
            ("{mig: {strategy: Mixed}, sharing: {timeSlicing: {replicas: 2}}}", &host, false, "Mixed"),
            ("{mig: {strategy: Single}, sharing: {mps: {replicas: 2}}}", &host, false, "mps: Some"),
            (
                "{mig: {strategy: Mixed, layout: [{devices: [1], profiles: [{profile: 1g.10gb.me, count: 1}]}]}}",
                &host,
                false,
                "devices: {1: {\"1g.10gb+me\": 1}}",
            ),
            ("{mig: {mode: Disabled}}", &host, false, "layout: Some(MigLayout { devices: {}, others: {} })"),
            ("{mig: {strategy: Mixed}}", &host, false, "layout: None"),
            ("{}", &host, false, "sharing: None"),
        ] {
            let plugin: DevicePlugin = serde_yaml::from_str(written).unwrap();
            let result = match choose(&plugin, driver, None, is_external) {
                Ok(choice) => format!("{choice:?}"),
                Err(fault) => fault.message,
            };
            assert!(result.contains(chosen), "{written}: {result}");
        }
    }

    #[test]
    fn nvidias_plugin_is_not_installed_with_an_old_driver() {
        let host = DriverChoice::Preinstalled { root: "/".into() };
        let run_file = DriverChoice::RunFile {
            version: Some("375.26".into()),
            url: String::new(),
            sha256: String::new(),
            root: "/opt".into(),
        };
        for (written, driver, loaded, words) in [
            ("{}", &host, Some("375.26"), Some("requires driver 384.81 or later, but this node has 375.26")),
            ("{}", &host, Some("384.66"), Some("384.66")),
            ("{}", &host, Some("384.81"), None),
            ("{}", &host, Some("384.111"), None),
            ("{}", &host, Some("470.256.02"), None),
            ("{}", &host, None, None),
            ("{flavor: External}", &host, Some("375.26"), None),
            ("{flavor: Google}", &run_file, None, None),
            ("{}", &run_file, Some("470.256.02"), Some("375.26")),
        ] {
            let plugin: DevicePlugin = serde_yaml::from_str(written).unwrap();
            let fault = choose(&plugin, driver, loaded, false).err().map(|fault| fault.message).unwrap_or_default();
            assert_eq!(!fault.is_empty(), words.is_some(), "{written} on {loaded:?}: {fault}");
            assert!(fault.contains(words.unwrap_or_default()), "{fault}");
        }
    }

    fn runtime() -> ToolkitChoice {
        ToolkitChoice::Runtime(RuntimeSetup {
            kind: Kind::Containerd,
            config: None,
            drop_in: None,
            source: None,
            socket: String::new(),
            handler: "nvidia".into(),
            default: false,
            cdi: false,
        })
    }

    #[test]
    fn an_old_image_is_rejected_only_if_it_would_crash() {
        let (cdi, by_runtime) = (ToolkitChoice::Cdi, runtime());
        let nri = ToolkitChoice::Nri { socket: "/var/run/nri/nri.sock".into() };
        for (written, toolkit, words) in [
            ("{image: {tag: v0.13.0}}", &cdi, "tag is v0.13.0, but NVIDIA's device plugin supports CDI devices"),
            ("{image: {tag: 0.14.5-ubi8}}", &nri, "0.14.5-ubi8"),
            ("{image: {tag: v0.13.0}}", &by_runtime, ""),
            ("{image: {tag: v0.14.0}, sharing: {mps: {replicas: 2}}}", &by_runtime, "supports MPS from v0.15 on"),
            ("{image: {tag: v0.15.0}}", &cdi, ""),
            ("{image: {tag: v0.15.0-rc.2}}", &cdi, ""),
            ("{image: {tag: v1.0.0}}", &cdi, ""),
            ("{image: {tag: latest}}", &cdi, ""),
            ("{image: {repository: registry.example.com/nvidia/k8s-device-plugin, tag: v0.13.0}}", &cdi, "v0.13.0"),
            ("{image: {repository: registry.example.com/own-plugin, tag: v0.1.2}}", &cdi, ""),
            ("{image: {repository: registry.example.com/nvidia/k8s-device-plugin}}", &cdi, ""),
            ("{}", &cdi, ""),
        ] {
            let plugin: DevicePlugin = serde_yaml::from_str(written).unwrap();
            let sharing = Some(plugin.sharing.clone()).filter(|sharing| *sharing != Sharing::default());
            let choice = PluginChoice::Nvidia { sharing, mig: MigStrategy::None, layout: None };
            let message = check_image(&plugin, &choice, toolkit).err().map(|fault| fault.message).unwrap_or_default();
            assert_eq!(message.is_empty(), words.is_empty(), "{written}: {message}");
            assert!(message.contains(words), "{written}: {message}");
            assert_eq!(check_image(&plugin, &PluginChoice::External, toolkit), Ok(()), "{written}");
        }
    }
}
