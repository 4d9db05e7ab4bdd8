//! The objects and reasons that `explain` can be asked for, and the errors.

use std::io;

use gpu_operator_plan::catalogue::CatalogueError;
use thiserror::Error;

use super::reasons::Topic;
use crate::read::ReadError;

/// The number of similar names in an error.
const NAMES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Node(String),
    Pod { namespace: Option<String>, name: String },
    Reason(String),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("cannot explain {0:?}; write node NAME, pod [NAMESPACE/]NAME or reason REASON")]
    Form(String),
    #[error("there is no reason {name:?}; similar ones are {}", similar.join(", "))]
    Reason { name: String, similar: Vec<&'static str> },
}

impl Target {
    /// Parses the arguments of the command: a kind and a name, or both joined by a slash.
    pub fn parse(arguments: &[String]) -> Result<Self, TargetError> {
        let form = || TargetError::Form(arguments.join(" "));
        let (kind, name) = match arguments {
            [joined] => joined.split_once('/').ok_or_else(form)?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err(form()),
        };
        let (namespace, plain) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, name),
        };
        if plain.is_empty() || plain.contains('/') || namespace.is_some_and(str::is_empty) {
            return Err(form());
        }
        match (kind.to_ascii_lowercase().as_str(), namespace) {
            ("node" | "nodes" | "no" | "gpunode" | "gpunodes" | "gn", None) => Ok(Self::Node(plain.to_owned())),
            ("pod" | "pods" | "po", namespace) => {
                Ok(Self::Pod { namespace: namespace.map(str::to_owned), name: plain.to_owned() })
            }
            ("reason" | "reasons", None) => Ok(Self::Reason(plain.to_owned())),
            _ => Err(form()),
        }
    }
}

pub fn topic(name: &str) -> Result<Topic, TargetError> {
    Topic::named(name).ok_or_else(|| {
        let wanted = name.to_ascii_lowercase();
        let likeness = |known: &str| strsim::jaro_winkler(&wanted, &known.to_ascii_lowercase());
        let mut similar: Vec<&'static str> = Topic::all().map(Topic::name).collect();
        similar.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
        similar.truncate(NAMES);
        TargetError::Reason { name: name.to_owned(), similar }
    })
}

#[derive(Debug, Error)]
pub enum ExplainError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("there is no {what}; to list what exists: {list}")]
    NotFound {
        what: String,
        /// The command that lists the existing ones.
        list: String,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_kind_and_a_name() {
        let pod = |namespace: Option<&str>, name: &str| {
            Some(Target::Pod { namespace: namespace.map(str::to_owned), name: name.to_owned() })
        };
        for (arguments, expected) in [
            (vec!["node", "a"], Some(Target::Node("a".to_owned()))),
            (vec!["node/a"], Some(Target::Node("a".to_owned()))),
            (vec!["Node/a"], Some(Target::Node("a".to_owned()))),
            (vec!["pod", "a"], pod(None, "a")),
            (vec!["pod/a"], pod(None, "a")),
            (vec!["pod", "ml/a"], pod(Some("ml"), "a")),
            (vec!["pod/ml/a"], pod(Some("ml"), "a")),
            (vec!["reason/DriverDown"], Some(Target::Reason("DriverDown".to_owned()))),
            (vec!["node"], None),
            (vec!["node", ""], None),
            (vec!["node", "a/b"], None),
            (vec!["pod", "/a"], None),
            (vec!["pod", "a/b/c"], None),
            (vec!["service", "a"], None),
        ] {
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            assert_eq!(Target::parse(&arguments).ok(), expected, "{arguments:?}");
        }
    }

    #[test]
    fn an_unknown_reason_is_answered_with_similar_names() {
        assert_eq!(topic("driverinuse").map(Topic::name), Ok("DriverInUse"));
        assert_eq!(topic("CudaTooNew").map(Topic::name), Ok("CudaTooNew"));
        let error = topic("DriverUsed").expect_err("an error");
        assert!(matches!(&error, TargetError::Reason { similar, .. } if similar.contains(&"DriverInUse")), "{error}");
    }
}
