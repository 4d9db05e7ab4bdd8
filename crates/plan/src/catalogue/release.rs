//! Recommended driver versions, and the tags of NVIDIA's images of them.

use thiserror::Error;

use super::{
    branch::supports_all,
    model::{Accelerator, Release},
    table::Catalogue,
    version::parsed,
};

impl Release {
    /// Returns the operating system's part of this release's tag for a node, if there is an image for it.
    fn tag_for(&self, names: &OsNames) -> Option<&str> {
        self.os.iter().find(|os| **os == names.short || **os == names.full).map(String::as_str)
    }
}

/// A reason why there is no driver image for an operating system. The message lists the existing images.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoImageForOs {
    #[error(
        "driver {version} has no known image for {os}, only for {}; {}write driver.image with an image of your own, write source: RunFile, or install the driver on the host",
        .published.join(", "),
        other_versions(.elsewhere)
    )]
    NotPublished {
        version: String,
        /// The operating system.
        os: String,
        /// The operating systems that the version has images for.
        published: Vec<String>,
        /// Recommended versions that support the GPUs and have an image for this operating system.
        elsewhere: Vec<String>,
    },
    #[error(
        "the node's operating system, ID {os_id:?} and VERSION_ID {version_id:?}, matches no driver image; write driver.image with a tag of your own"
    )]
    Unnamed {
        /// `ID` of os-release.
        os_id: String,
        /// `VERSION_ID` of os-release.
        version_id: String,
    },
}

fn other_versions(versions: &[String]) -> String {
    if versions.is_empty() {
        return String::new();
    }
    format!("write driver.version: {}, ", versions.join(" or "))
}

impl Catalogue {
    /// Returns the recommended versions, oldest first.
    pub fn releases(&self) -> impl Iterator<Item = &Release> {
        self.releases.iter()
    }

    /// Returns the newest recommended version that supports every one of the models and has an image for an operating
    /// system, by `ID` and `VERSION_ID` of its os-release, or `None` if no version meets both.
    pub fn default_driver_for(&self, models: &[&Accelerator], os_id: &str, version_id: &str) -> Option<&Release> {
        let names = OsNames::of(os_id, version_id)?;
        self.default_driver(models).ok()?;
        self.with_image(models, &names).next()
    }

    /// Returns the operating system's part of a driver image's tag, such as `ubuntu22.04`, from `ID` and `VERSION_ID` of
    /// the node's os-release. A version that the catalogue does not have is treated like the newest earlier version of its
    /// branch or, if there is none, like the oldest. For a branch that the catalogue does not have, the name is returned without
    /// checking whether an image exists.
    pub fn driver_image_os(
        &self,
        models: &[&Accelerator],
        version: &str,
        os_id: &str,
        version_id: &str,
    ) -> Result<String, NoImageForOs> {
        let unnamed = || NoImageForOs::Unnamed { os_id: os_id.to_owned(), version_id: version_id.to_owned() };
        let names = OsNames::of(os_id, version_id).ok_or_else(unnamed)?;
        let Some(release) = self.release_like(version) else {
            return Ok(names.short);
        };
        if let Some(os) = release.tag_for(&names) {
            return Ok(os.to_owned());
        }
        Err(NoImageForOs::NotPublished {
            version: version.to_owned(),
            published: release.os.clone(),
            elsewhere: self.with_image(models, &names).map(|release| release.version.clone()).collect(),
            os: names.full,
        })
    }

    /// Returns the versions that support all the models and have an image for an operating system, newest first.
    fn with_image(&self, models: &[&Accelerator], names: &OsNames) -> impl Iterator<Item = &Release> {
        self.releases.iter().rev().filter(|r| r.tag_for(names).is_some() && supports_all(models, r))
    }

    /// Returns the release whose images stand for those of a version.
    fn release_like(&self, version: &str) -> Option<&Release> {
        let version = parsed(version)?;
        let of_branch = || self.releases.iter().filter(|release| release.numbers.major() == version.major());
        let before = of_branch().rfind(|release| release.numbers <= version);
        before.or_else(|| of_branch().next())
    }
}

/// The names of an operating system in tags: with the major version, if NVIDIA names current images so (its documentation), and
/// with the full version, as in tags of older images for Red Hat's systems.
struct OsNames {
    short: String,
    full: String,
}

impl OsNames {
    fn of(os_id: &str, version_id: &str) -> Option<Self> {
        let short = match os_id {
            "rhel" | "rocky" | "ol" => version_id.split('.').next()?,
            _ => version_id,
        };
        let word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let fits = word(os_id) && word(version_id) && os_id.len() + version_id.len() <= 64;
        fits.then(|| Self { short: format!("{os_id}{short}"), full: format!("{os_id}{version_id}") })
    }
}
