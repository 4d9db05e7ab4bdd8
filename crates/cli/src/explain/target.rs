//! What `explain` is asked to explain.

use thiserror::Error;

use super::reasons::Topic;

/// The number of similar names in an error.
const NAMES: usize = 3;

/// What is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A node, by its name.
    Node(String),
    Pod {
        /// Its namespace, if it is given with the name.
        namespace: Option<String>,
        name: String,
    },
    /// A reason, by its name.
    Reason(String),
}

/// A reason why the arguments name nothing that can be explained.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("cannot explain {0:?}; write node NAME, pod [NAMESPACE/]NAME or reason REASON")]
    Form(String),
    #[error("there is no reason {name:?}; similar ones are {}", similar.join(", "))]
    Reason {
        name: String,
        /// The names that are most similar.
        similar: Vec<&'static str>,
    },
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

/// Returns the topic of a reason's name.
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
