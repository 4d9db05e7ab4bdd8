//! Driver branches: the recommended version, and whether a version supports a model.

use gpu_operator_common::version::Version;
use thiserror::Error;

use super::{
    model::{Accelerator, BranchRange, Release},
    modules,
    table::Catalogue,
    version::parsed,
};

/// A reason why a driver version does not support a model. The message contains what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverUnsupported {
    #[error("{version:?} is not a driver version; write a full version such as {suggestion}")]
    NotAVersion {
        /// The text.
        version: String,
        /// A version that supports the model.
        suggestion: String,
    },
    #[error("{model} is supported up to branch {last}; use a version such as {suggestion}")]
    TooNew {
        /// Name and architecture of the model.
        model: String,
        /// The last branch that supports it.
        last: u16,
        /// A version that does.
        suggestion: String,
    },
    #[error("{model} is supported from {first} on; use a version such as {suggestion}")]
    TooOld {
        /// Name and architecture of the model.
        model: String,
        /// `branch 525`, or `version 570.133.20`.
        first: String,
        /// A version that supports it.
        suggestion: String,
    },
}

/// A model and the driver branches that support it, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLimit {
    /// Name and architecture of the model.
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
    /// Returns the newest recommended version that supports all models of a node. Without models, returns the newest version.
    pub fn default_driver(&self, models: &[&Accelerator]) -> Result<&Release, NoCommonDriver> {
        if let (Some(one), Some(other)) = modules::exclusive(models) {
            let (proprietary_only, open_only) = (one.title(), other.title());
            return Err(NoCommonDriver::Modules(modules::FlavourUnsupported::Mixed { proprietary_only, open_only }));
        }
        self.releases.iter().rev().find(|release| supports_all(models, release)).ok_or_else(|| {
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

    /// Checks whether a driver of `version` (`580.173.02`, or a branch such as `580`) supports the model.
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

/// Whether a version supports a model.
#[derive(PartialEq, Eq)]
enum Fit {
    Supported,
    /// The last branch that supports it.
    TooNew(u16),
    /// The first branch that supports it.
    TooOld(u16),
}

/// Returns whether a version supports a model. A branch alone stands for its newest version.
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
