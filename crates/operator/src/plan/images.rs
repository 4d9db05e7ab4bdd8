//! Image references: NVIDIA's by default, overridable part by part.

use gpu_operator_crd::policy::{Image, Images};

/// Registry host of NVIDIA's images.
pub const REGISTRY: &str = "nvcr.io";
/// NVIDIA's driver container; its tag is `<version>-<operating system>`.
pub const DRIVER: &str = "nvidia/driver";
/// NVIDIA's container toolkit and its tag (chart defaults of NVIDIA's operator v26.7).
pub const TOOLKIT: (&str, &str) = ("nvidia/k8s/container-toolkit", "v1.20.0");
/// NVIDIA's device plugin and its tag (likewise).
pub const DEVICE_PLUGIN: (&str, &str) = ("nvidia/k8s-device-plugin", "v0.20.0");

/// Google's device plugin: registry, path and digest (unverified; of its sources' own manifest).
pub const GKE_DEVICE_PLUGIN: (&str, &str, &str) = (
    "gcr.io",
    "gke-release/nvidia-gpu-device-plugin",
    "sha256:d6cb575b0d8a436066a0d3a783bbaf84697e0d5a68857edfe5fd5d1183133c7d",
);

/// The reference of an operand's image: `path` on NVIDIA's registry or the policy's mirror of it, unless the user
/// names a repository; the user's digest or tag, else `tag`.
#[must_use]
pub fn reference(images: &Images, custom: Option<&Image>, path: &str, tag: &str) -> String {
    reference_on(images, custom, REGISTRY, path, tag)
}

/// The same on another registry than NVIDIA's. What is a digest is written as one.
#[must_use]
pub fn reference_on(images: &Images, custom: Option<&Image>, registry: &str, path: &str, tag: &str) -> String {
    let registry = if images.registry.is_empty() { registry } else { images.registry.as_str() };
    let repository = custom.and_then(|image| image.repository.clone()).unwrap_or_else(|| format!("{registry}/{path}"));
    if let Some(digest) = custom.and_then(|image| image.digest.as_deref()) {
        return format!("{repository}@{digest}");
    }
    let tag = custom.and_then(|image| image.tag.as_deref()).unwrap_or(tag);
    let mark = if tag.starts_with("sha256:") { '@' } else { ':' };
    format!("{repository}{mark}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_reference_can_be_overridden() {
        let mirror = Images { registry: "mirror.example.com:5000/nv".into(), ..Images::default() };
        let image = |repository: Option<&str>, tag: Option<&str>, digest: Option<&str>| Image {
            repository: repository.map(Into::into),
            tag: tag.map(Into::into),
            digest: digest.map(Into::into),
        };
        let digest = "sha256:ab";
        for (images, custom, expected) in [
            (Images::default(), None, "nvcr.io/nvidia/driver:1-x"),
            (mirror.clone(), None, "mirror.example.com:5000/nv/nvidia/driver:1-x"),
            (mirror.clone(), Some(image(Some("own/driver"), None, None)), "own/driver:1-x"),
            (mirror.clone(), Some(image(None, Some("2"), None)), "mirror.example.com:5000/nv/nvidia/driver:2"),
            (mirror, Some(image(None, None, Some(digest))), "mirror.example.com:5000/nv/nvidia/driver@sha256:ab"),
        ] {
            assert_eq!(reference(&images, custom.as_ref(), DRIVER, "1-x"), expected);
        }
    }
}
