//! The oldest images of NVIDIA's device plugin that support a setting, according to their release notes. An older one
//! does not know the setting, and crashes or does not share GPUs.

use gpu_operator_common::version::Version;
use gpu_operator_crd::policy::{DevicePlugin, Image};

use crate::desired::{
    device_plugin::choice::{PluginChoice, unsupported},
    fault::Fault,
    toolkit::choice::ToolkitChoice,
};

/// The first release that supports CDI devices (`cdi-cri`), and the first that supports MPS.
const FIRST: (u32, u32) = (0, 15);
/// The last part of the name of NVIDIA's image, whose tags are releases.
const NAME: &str = "k8s-device-plugin";

/// Checks that an image whose tag is a release is not too old for the node.
pub fn check(plugin: &DevicePlugin, choice: &PluginChoice, toolkit: &ToolkitChoice) -> Result<(), Fault> {
    let Some((tag, release)) = plugin.operand.image.as_ref().and_then(release) else {
        return Ok(());
    };
    if !matches!(choice, PluginChoice::Nvidia { .. }) || release >= FIRST {
        return Ok(());
    }
    let (major, minor) = FIRST;
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

/// Returns the tag of an image of NVIDIA's plugin, and its release. A digest has no release, nor has the tag of an
/// image with another name.
fn release(image: &Image) -> Option<(&str, (u32, u32))> {
    let is_nvidias = |repository: &String| repository.rsplit('/').next() == Some(NAME);
    let tag = image.tag.as_deref().filter(|_| image.repository.as_ref().is_none_or(is_nvidias))?;
    let version = Version::leading(tag)?;
    Some((tag, (version.major(), version.minor()?)))
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::policy::{MigStrategy, PluginFlags, Sharing};

    use super::*;
    use crate::desired::{container_runtime::Kind, toolkit::RuntimeSetup};

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
            let choice =
                PluginChoice::Nvidia { sharing, mig: MigStrategy::None, layout: None, flags: PluginFlags::default() };
            let message = check(&plugin, &choice, toolkit).err().map(|fault| fault.message).unwrap_or_default();
            assert_eq!(message.is_empty(), words.is_empty(), "{written}: {message}");
            assert!(message.contains(words), "{written}: {message}");
            assert_eq!(check(&plugin, &PluginChoice::External, toolkit), Ok(()), "{written}");
        }
    }
}
