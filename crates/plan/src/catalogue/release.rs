//! Recommended driver versions and branches, the models that they support, and the tags of NVIDIA's images.

use gpu_operator_common::version::Version;
use thiserror::Error;

use crate::catalogue::{
    model::{Accelerator, BranchRange, Release, parsed},
    modules,
    table::Catalogue,
};

impl Release {
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
        os: String,
        /// The operating systems that the version has images for.
        published: Vec<String>,
        /// Recommended versions that support the GPUs and have an image for this operating system.
        elsewhere: Vec<String>,
    },
    #[error(
        "the node's operating system, ID {os_id:?} and VERSION_ID {version_id:?}, matches no driver image; write driver.image with a tag of your own"
    )]
    Unnamed { os_id: String, version_id: String },
}

fn other_versions(versions: &[String]) -> String {
    if versions.is_empty() {
        return String::new();
    }
    format!("write driver.version: {}, ", versions.join(" or "))
}

impl Catalogue {
    /// Returns all versions, oldest first.
    pub fn releases(&self) -> impl Iterator<Item = &Release> {
        self.releases.iter()
    }

    /// Returns the recommended versions that support all the models, newest first.
    fn recommended(&self, models: &[&Accelerator]) -> impl Iterator<Item = &Release> {
        self.releases.iter().rev().filter(|release| release.is_default && supports_all(models, release))
    }

    /// Returns the newest recommended version that supports all the models and has an image for the operating system.
    pub fn default_driver_for(&self, models: &[&Accelerator], os_id: &str, version_id: &str) -> Option<&Release> {
        let names = OsNames::of(os_id, version_id)?;
        self.default_driver(models).ok()?;
        self.with_image(models, &names).next()
    }

    /// Returns the operating system's part of a driver image's tag, such as `ubuntu22.04`. A version that the catalogue lacks is treated
    /// like the newest earlier version of its branch or, if there is none, like the oldest. For an unknown branch, the name is not checked.
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

    /// Newest first.
    fn with_image(&self, models: &[&Accelerator], names: &OsNames) -> impl Iterator<Item = &Release> {
        self.recommended(models).filter(|release| release.tag_for(names).is_some())
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

/// A reason why a driver version does not support a model. The message contains what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverUnsupported {
    #[error("{version:?} is not a driver version; write a full version such as {suggestion}")]
    NotAVersion { version: String, suggestion: String },
    #[error("{model} is supported up to branch {last}; use a version such as {suggestion}")]
    TooNew { model: String, last: u16, suggestion: String },
    #[error("{model} is supported from {first} on; use a version such as {suggestion}")]
    TooOld {
        model: String,
        /// `branch 525`, or `version 570.133.20`.
        first: String,
        suggestion: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLimit {
    pub model: String,
    pub driver: BranchRange,
}

/// A reason why no driver can be recommended for a node. The message lists the models and their limits, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoCommonDriver {
    #[error("no driver supports all GPUs of the node, {}: move some of them to another node", listed(.models))]
    Disjoint { models: Vec<ModelLimit> },
    #[error(
        "no recommended driver supports all GPUs of the node, {}: set driver.version to a version that supports each of them",
        listed(.models)
    )]
    NotRecommended { models: Vec<ModelLimit> },
    #[error(transparent)]
    Modules(modules::FlavourUnsupported),
}

fn listed(models: &[ModelLimit]) -> String {
    let limits: Vec<_> = models.iter().map(|m| format!("{} {}", m.model, m.driver)).collect();
    limits.join(", ")
}

impl Catalogue {
    /// Without models, returns the newest recommended version.
    pub fn default_driver(&self, models: &[&Accelerator]) -> Result<&Release, NoCommonDriver> {
        if let (Some(one), Some(other)) = modules::exclusive(models) {
            let (proprietary_only, open_only) = (one.title(), other.title());
            return Err(NoCommonDriver::Modules(modules::FlavourUnsupported::Mixed { proprietary_only, open_only }));
        }
        self.recommended(models).next().ok_or_else(|| {
            let limits = models.iter().map(|m| ModelLimit { model: m.title(), driver: m.driver.clone() }).collect();
            let first = models.iter().filter_map(|m| m.driver.first).max().unwrap_or_default();
            let last = models.iter().filter_map(|m| m.driver.last).min().unwrap_or(u16::MAX);
            if first > last {
                NoCommonDriver::Disjoint { models: limits }
            } else {
                NoCommonDriver::NotRecommended { models: limits }
            }
        })
    }

    /// `version` is `580.173.02`, or a branch such as `580`.
    pub fn supports(&self, accelerator: &Accelerator, version: &str) -> Result<(), DriverUnsupported> {
        let BranchRange { first, first_version, last } = &accelerator.driver;
        let model = || accelerator.title();
        let suggestion = || match self.default_driver(&[accelerator]) {
            Ok(release) => release.version.clone(),
            // No version is recommended for it: suggest the nearest branch.
            Err(_) => last.or(*first).map(|b| b.to_string()).unwrap_or_default(),
        };
        match parsed(version).map(|version| fit(accelerator, &version)) {
            Some(Fit::Supported) => Ok(()),
            Some(Fit::TooNew(last)) => {
                Err(DriverUnsupported::TooNew { model: model(), last, suggestion: suggestion() })
            }
            Some(Fit::TooOld(first)) => {
                let first = first_version.as_ref().map_or(format!("branch {first}"), |v| format!("version {v}"));
                Err(DriverUnsupported::TooOld { model: model(), first, suggestion: suggestion() })
            }
            None => Err(DriverUnsupported::NotAVersion { version: version.to_owned(), suggestion: suggestion() }),
        }
    }
}

pub(super) fn supports_all(models: &[&Accelerator], release: &Release) -> bool {
    models.iter().all(|model| fit(model, &release.numbers) == Fit::Supported)
}

#[derive(PartialEq, Eq)]
enum Fit {
    Supported,
    TooNew(u16),
    TooOld(u16),
}

/// A branch alone stands for its newest version.
fn fit(accelerator: &Accelerator, version: &Version) -> Fit {
    let branch = version.major();
    let BranchRange { first, first_version, last } = &accelerator.driver;
    if let Some(last) = *last
        && branch > u32::from(last)
    {
        return Fit::TooNew(last);
    }
    if let Some(first) = *first {
        let earlier = |v: &String| version.parts() > 1 && parsed(v).is_some_and(|least| *version < least);
        if branch < u32::from(first) || first_version.as_ref().is_some_and(earlier) {
            return Fit::TooOld(first);
        }
    }
    Fit::Supported
}
