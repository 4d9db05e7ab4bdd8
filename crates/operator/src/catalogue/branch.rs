//! Driver branches: which one to recommend, whether a version fits a model, and what its image is called.

use thiserror::Error;

use super::{Accelerator, BranchRange, Catalogue, modules};

/// A driver branch that we recommend a version of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The branch: the first number of its versions.
    pub number: u16,
    /// The version that is recommended, such as `580.173.02`.
    pub version: String,
    /// The operating systems that NVIDIA publishes its image for, as its tags name them, such as `ubuntu22.04`.
    pub os: Vec<String>,
    /// What of all this is unverified. Absent: nothing.
    pub believed: Option<String>,
}

/// Why a driver version does not fit a model. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverUnsupported {
    /// The text is no driver version.
    #[error("{version:?} is not a driver version; write a full version such as {suggestion}")]
    NotAVersion {
        /// The text.
        version: String,
        /// A version that fits the model.
        suggestion: String,
    },
    /// The driver no longer supports the model.
    #[error("{model} is supported up to branch {last}; write a version such as {suggestion}")]
    TooNew {
        /// Name and architecture of the model.
        model: String,
        /// The last branch that supports it.
        last: u16,
        /// A version that does.
        suggestion: String,
    },
    /// The driver does not support the model yet.
    #[error("{model} is supported from {first} on; write a version such as {suggestion}")]
    TooOld {
        /// Name and architecture of the model.
        model: String,
        /// `branch 525`, or `version 570.133.20`.
        first: String,
        /// A version that supports it.
        suggestion: String,
    },
}

/// A model and the driver branches that support it, as an error names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLimit {
    /// Name and architecture of the model.
    pub model: String,
    /// The branches.
    pub driver: BranchRange,
}

/// Why no driver can be recommended for a node. The text names the models and their limits, and says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoCommonDriver {
    /// No branch supports all the models.
    #[error("no driver supports all GPUs of the node, {}: move some of them to another node", listed(.models))]
    Disjoint {
        /// The models.
        models: Vec<ModelLimit>,
    },
    /// Some branch supports all the models, but none that we recommend a version of.
    #[error(
        "no recommended driver supports all GPUs of the node, {}: write driver.version, with a version that each of them allows",
        listed(.models)
    )]
    NotRecommended {
        /// The models.
        models: Vec<ModelLimit>,
    },
    /// One model needs the proprietary kernel modules and another the open ones.
    #[error(transparent)]
    Modules(modules::FlavourUnsupported),
}

fn listed(models: &[ModelLimit]) -> String {
    let limits: Vec<_> = models.iter().map(|m| format!("{} {}", m.model, m.driver)).collect();
    limits.join(", ")
}

/// Why there is no driver image for an operating system. The text says what there is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoImageForOs {
    /// NVIDIA publishes none of this branch for this operating system, as far as is known.
    #[error(
        "drivers of branch {branch} have no known image for {os}, only for {}; {}write driver.image with an image of your own, or install the driver on the host",
        .published.join(", "),
        other_branches(.elsewhere)
    )]
    NotPublished {
        /// The branch.
        branch: u16,
        /// The operating system, as a tag would name it.
        os: String,
        /// The operating systems that the branch has images for.
        published: Vec<String>,
        /// Recommended versions of other branches that have an image for this operating system.
        elsewhere: Vec<String>,
    },
    /// The node does not say what operating system it runs, or not in words that a tag can carry.
    #[error(
        "the node's operating system reads {os_id:?}, version {version_id:?}, which names no driver image; write driver.image with a tag of your own"
    )]
    Unnamed {
        /// `ID` of os-release.
        os_id: String,
        /// `VERSION_ID` of os-release.
        version_id: String,
    },
}

fn other_branches(versions: &[String]) -> String {
    if versions.is_empty() {
        return String::new();
    }
    format!("write driver.version: {} if the GPU supports it, ", versions.join(" or "))
}

/// The branch of a driver version: 580 of `580.173.02`, and of `580` itself. Absent where the text is no version.
#[must_use]
pub fn branch_of(version: &str) -> Option<u16> {
    parsed(version)?.first().copied()
}

/// The numbers of a version of one to three parts, the first of which has three digits.
fn parsed(version: &str) -> Option<Vec<u16>> {
    let parts: Vec<_> = version.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if parts.len() > 3 || parts.first()?.len() != 3 || !parts.iter().all(digits) {
        return None;
    }
    parts.into_iter().map(|part| part.parse().ok()).collect()
}

impl Catalogue {
    /// The branches that we recommend a version of, oldest first.
    pub fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.branches.iter()
    }

    /// The recommended branch of this number.
    #[must_use]
    pub fn branch(&self, number: u16) -> Option<&Branch> {
        self.branches.iter().find(|b| b.number == number)
    }

    /// The newest recommended branch that supports every one of the models, which are those of one node; with no models
    /// at all, the newest there is.
    ///
    /// # Errors
    /// Where there is no such branch, or the models need different kernel modules.
    pub fn default_driver(&self, models: &[&Accelerator]) -> Result<&Branch, NoCommonDriver> {
        if let (Some(one), Some(other)) = modules::exclusive(models) {
            let (proprietary_only, open_only) = (one.title(), other.title());
            return Err(NoCommonDriver::Modules(modules::FlavourUnsupported::Mixed { proprietary_only, open_only }));
        }
        let fits = |b: &&Branch| models.iter().all(|m| fit(m, &b.version) == Some(Fit::Supported));
        self.branches.iter().rev().find(fits).ok_or_else(|| {
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

    /// The newest recommended branch that supports every one of the models and has an image for an operating system, by
    /// `ID` and `VERSION_ID` of its os-release. None where no branch has both.
    #[must_use]
    pub fn default_driver_for(&self, models: &[&Accelerator], os_id: &str, version_id: &str) -> Option<&Branch> {
        let os = os_tag(os_id, version_id)?;
        let fits = |b: &&Branch| models.iter().all(|m| fit(m, &b.version) == Some(Fit::Supported));
        let newest = self.default_driver(models).ok()?.number;
        self.branches.iter().rev().filter(|b| b.number <= newest && b.os.contains(&os)).find(fits)
    }

    /// Whether a driver of `version` (`580.173.02`, or a branch such as `580`) supports the model.
    ///
    /// # Errors
    /// Where it does not, or is no version: what to write instead.
    pub fn supports(&self, accelerator: &Accelerator, version: &str) -> Result<(), DriverUnsupported> {
        let model = accelerator.title();
        let BranchRange { first, first_version, last } = &accelerator.driver;
        let suggestion = || match self.default_driver(&[accelerator]) {
            Ok(branch) => branch.version.clone(),
            // Nothing is recommended for it: the nearest branch says at least where to look.
            Err(_) => last.or(*first).map(|b| b.to_string()).unwrap_or_default(),
        };
        match fit(accelerator, version) {
            Some(Fit::Supported) => Ok(()),
            Some(Fit::TooNew(last)) => Err(DriverUnsupported::TooNew { model, last, suggestion: suggestion() }),
            Some(Fit::TooOld(first)) => {
                let first = first_version.as_ref().map_or(format!("branch {first}"), |v| format!("version {v}"));
                Err(DriverUnsupported::TooOld { model, first, suggestion: suggestion() })
            }
            None => Err(DriverUnsupported::NotAVersion { version: version.to_owned(), suggestion: suggestion() }),
        }
    }

    /// The operating system's part of a driver image's tag, such as `ubuntu22.04`, from `ID` and `VERSION_ID` of the
    /// node's os-release. RHEL and Rocky are named by their major version alone (NVIDIA documentation). For a branch that
    /// is not in the catalogue the name is built without judging whether an image exists.
    ///
    /// # Errors
    /// Where a branch of the catalogue has no image for this operating system, or the words name none.
    pub fn driver_image_os(&self, branch: u16, os_id: &str, version_id: &str) -> Result<String, NoImageForOs> {
        let unnamed = || NoImageForOs::Unnamed { os_id: os_id.to_owned(), version_id: version_id.to_owned() };
        let os = os_tag(os_id, version_id).ok_or_else(unnamed)?;
        let Some(branch) = self.branch(branch) else {
            return Ok(os);
        };
        if branch.os.contains(&os) {
            return Ok(os);
        }
        let elsewhere = self.branches.iter().rev().filter(|b| b.os.contains(&os)).map(|b| b.version.clone()).collect();
        Err(NoImageForOs::NotPublished { branch: branch.number, os, published: branch.os.clone(), elsewhere })
    }
}

/// How a version stands to a model.
#[derive(PartialEq, Eq)]
enum Fit {
    Supported,
    /// The last branch that supports it.
    TooNew(u16),
    /// The first branch that supports it.
    TooOld(u16),
}

/// Absent where the text is no version. A branch alone stands for its newest version.
fn fit(accelerator: &Accelerator, version: &str) -> Option<Fit> {
    let numbers = parsed(version)?;
    let branch = *numbers.first()?;
    let BranchRange { first, first_version, last } = &accelerator.driver;
    if let Some(last) = last
        && branch > *last
    {
        return Some(Fit::TooNew(*last));
    }
    if let Some(first) = first {
        let earlier = |v: &String| numbers.len() > 1 && parsed(v).is_some_and(|least| numbers < least);
        if branch < *first || first_version.as_ref().is_some_and(earlier) {
            return Some(Fit::TooOld(*first));
        }
    }
    Some(Fit::Supported)
}

fn os_tag(os_id: &str, version_id: &str) -> Option<String> {
    let version = match os_id {
        "rhel" | "rocky" => version_id.split('.').next()?,
        _ => version_id,
    };
    let word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    (word(os_id) && word(version) && os_id.len() + version.len() <= 64).then(|| format!("{os_id}{version}"))
}
