//! Image references: NVIDIA's by default; every part can be overridden.

use gpu_operator_crd::policy::{Image, Images};

pub const REGISTRY: &str = "nvcr.io";
/// The tag is `<version>-<operating system>`.
pub const DRIVER: &str = "nvidia/driver";
/// Preloaded on GKE's nodes, and in no registry.
pub const GKE_COS: &str = "cos-nvidia-installer:fixed";
/// Preloaded as well.
pub const GKE_UBUNTU: &str = "gke-nvidia-installer:fixed";
/// The tests run this version, built from its Go module.
pub const TOOLKIT: (&str, &str) = ("nvidia/k8s/container-toolkit", "v1.20.2");
pub const DEVICE_PLUGIN: (&str, &str) = ("nvidia/k8s-device-plugin", "v0.19.3");

/// Returns `reference`, or the user's repository with the user's digest or tag.
pub fn preloaded(custom: Option<&Image>, reference: &str) -> String {
    let Some((image, repository)) = custom.and_then(|image| Some((image, image.repository.as_deref()?))) else {
        return reference.to_owned();
    };
    let tag = reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    joined(repository, Some(image), tag)
}

/// Returns `None` unless the user sets a repository, and a tag or digest.
pub fn own(custom: Option<&Image>) -> Option<String> {
    let image = custom?;
    let version = image.digest.as_deref().or(image.tag.as_deref())?;
    Some(joined(image.repository.as_deref()?, custom, version))
}

/// The tag is the sample's name and its CUDA version.
pub const SAMPLES: &str = "nvidia/k8s/cuda-sample";
/// As in the manifest in its sources (container-engine-accelerators 992db81, cmd/nvidia_gpu/device-plugin.yaml; unverified that it can be
/// pulled from outside GKE).
pub const GKE_DEVICE_PLUGIN: Upstream<'static> = Upstream {
    host: "gcr.io",
    path: "gke-release/nvidia-gpu-device-plugin",
    version: "sha256:6b25281cd0fa3ca55f3e837a18be4a14b44952105568f466530dd85bcebde62f",
};
/// NVIDIA's DRA driver, as in the values of its chart.
pub const DRA_DRIVER: Upstream<'static> =
    Upstream { host: "registry.k8s.io", path: "dra-driver-nvidia/dra-driver-nvidia-gpu", version: "v0.4.1" };

/// Returns `path` on NVIDIA's registry or the policy's mirror, or the user's repository; with the user's digest or tag, else `tag`.
pub fn reference(images: &Images, custom: Option<&Image>, path: &str, tag: &str) -> String {
    reference_of(images, custom, Upstream { host: REGISTRY, path, version: tag })
}

#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    pub host: &'a str,
    pub path: &'a str,
    pub version: &'a str,
}

/// As [`reference`], for any registry.
pub fn reference_of(images: &Images, custom: Option<&Image>, upstream: Upstream<'_>) -> String {
    let Upstream { host, path, version } = upstream;
    let registry = if images.registry.is_empty() { host } else { images.registry.as_str() };
    let repository = custom.and_then(|image| image.repository.clone()).unwrap_or_else(|| format!("{registry}/{path}"));
    joined(&repository, custom, version)
}

/// Whether a reference always denotes the same image: by a digest, or preloaded. A registry can move a tag.
pub fn is_fixed(reference: &str) -> bool {
    reference.contains("@sha256:") || [GKE_COS, GKE_UBUNTU].contains(&reference)
}

fn joined(repository: &str, custom: Option<&Image>, version: &str) -> String {
    let digest = custom.and_then(|image| image.digest.as_deref());
    let version = digest.or(custom.and_then(|image| image.tag.as_deref())).unwrap_or(version);
    let separator = if version.starts_with("sha256:") { '@' } else { ':' };
    format!("{repository}{separator}{version}")
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

    #[test]
    fn only_a_digest_or_a_preloaded_image_is_fixed() {
        for (reference, expected) in [
            ("nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", false),
            ("registry.example.com:5000/driver", false),
            ("own/gke-nvidia-installer:fixed", false),
            ("nvcr.io/nvidia/driver@sha256:ab", true),
            ("nvcr.io/nvidia/driver:595.91.07@sha256:ab", true),
            (GKE_COS, true),
            (GKE_UBUNTU, true),
        ] {
            assert_eq!(is_fixed(reference), expected, "{reference}");
        }
    }

    #[test]
    fn a_mirror_applies_to_all_but_preloaded_images() {
        let mirror = Images { registry: "mirror.example.com".into(), ..Images::default() };
        let upstream = Upstream { host: "gcr.io", path: "a/b", version: "sha256:cd" };
        assert_eq!(reference_of(&Images::default(), None, upstream), "gcr.io/a/b@sha256:cd");
        assert_eq!(reference_of(&mirror, None, upstream), "mirror.example.com/a/b@sha256:cd");
        let own = Image { repository: Some("own/b".into()), tag: Some("3".into()), digest: None };
        assert_eq!(reference_of(&mirror, Some(&own), upstream), "own/b:3");
        assert_eq!(preloaded(None, GKE_COS), "cos-nvidia-installer:fixed");
        assert_eq!(preloaded(Some(&own), GKE_COS), "own/b:3");
    }
}
