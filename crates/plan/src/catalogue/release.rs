//! Driver versions that are recommended, and what NVIDIA's images of them are called.

use thiserror::Error;

use super::{
    branch::supports_all,
    model::{Accelerator, Release},
    table::Catalogue,
    version::{branch_of, parsed},
};

impl Release {
    /// Returns the operating system's part of this release's tag for a node, if there is an image for it.
    fn tag_for(&self, names: &OsNames) -> Option<&str> {
        self.os.iter().find(|os| **os == names.short || **os == names.full).map(String::as_str)
    }
}

/// Why there is no driver image for an operating system. The text lists the images that there are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoImageForOs {
    /// NVIDIA built none of this version for this operating system, as far as is known.
    #[error(
        "driver {version} has no known image for {os}, only for {}; {}write driver.image with an image of your own, write source: RunFile, or install the driver on the host",
        .published.join(", "),
        other_versions(.elsewhere)
    )]
    NotPublished {
        /// The version.
        version: String,
        /// The operating system.
        os: String,
        /// The operating systems that the version has images for.
        published: Vec<String>,
        /// Recommended versions that support the GPUs and have an image for this operating system.
        elsewhere: Vec<String>,
    },
    /// The node does not name its operating system, or not in words that a tag can carry.
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
    /// The versions that are recommended, oldest first.
    pub fn releases(&self) -> impl Iterator<Item = &Release> {
        self.releases.iter()
    }

    /// Returns the newest recommended version that supports every one of the models and has an image for an operating
    /// system, by `ID` and `VERSION_ID` of its os-release; none where no version has both.
    #[must_use]
    pub fn default_driver_for(&self, models: &[&Accelerator], os_id: &str, version_id: &str) -> Option<&Release> {
        let names = OsNames::of(os_id, version_id)?;
        self.default_driver(models).ok()?;
        self.with_image(models, &names).next()
    }

    /// Returns the operating system's part of a driver image's tag, such as `ubuntu22.04`, from `ID` and `VERSION_ID` of
    /// the node's os-release. A version that the catalogue lacks is taken for one like the newest before it of its
    /// branch, or else like the oldest. For a branch that the catalogue lacks, the name is built without a judgement
    /// whether an image exists.
    ///
    /// # Errors
    /// Where the version has no image for this operating system, or the words name none: with the versions that have one
    /// and support all the models.
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

    /// Returns the release by which a version's images are judged.
    fn release_like(&self, version: &str) -> Option<&Release> {
        let branch = branch_of(version)?;
        let of_branch = || self.releases.iter().filter(|release| release.branch == branch);
        let before = of_branch().rfind(|release| parsed(&release.version) <= parsed(version));
        before.or_else(|| of_branch().next())
    }
}

/// How tags name an operating system: by the major version where that is how NVIDIA names images today (its
/// documentation), and in full, as older images of Red Hat's systems are named.
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
