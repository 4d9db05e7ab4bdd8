//! Taints of nodes, and how this operator recognizes its own one: by the annotation [`keys::OWN_TAINT`], which is written together
//! with the taint, or by the default key.

use std::{collections::BTreeMap, fmt};

use gpu_operator_crd::{keys, policy::UnhealthyTaint};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde::Serialize;

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaintFact {
    /// Its key.
    pub key: String,
    /// Its value; empty where it has none.
    pub value: String,
    /// Its effect.
    pub effect: String,
}

impl TaintFact {
    /// Returns whether it keeps pods away: its effect is `NoSchedule` or `NoExecute`.
    #[must_use]
    pub fn keeps_pods_away(&self) -> bool {
        self.effect != "PreferNoSchedule"
    }

    /// Returns whether both have the same key and effect, of which a node has only one taint.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        (&self.key, &self.effect) == (&other.key, &other.effect)
    }

    /// Returns whether it belongs to this operator, given the taint that the Node's annotation names.
    #[must_use]
    pub fn is_own(&self, recorded: Option<&Self>) -> bool {
        self.key == keys::UNHEALTHY_TAINT || recorded.is_some_and(|recorded| self.same(recorded))
    }

    /// Returns whether a toleration tolerates it.
    #[must_use]
    pub fn tolerated_by(&self, toleration: &Toleration) -> bool {
        let same = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        let exists = toleration.operator.as_deref() == Some("Exists");
        same(&toleration.effect.clone().filter(|effect| !effect.is_empty()), &self.effect)
            && match toleration.key.as_deref().filter(|key| !key.is_empty()) {
                Some(key) => {
                    key == self.key && (exists || toleration.value.as_deref().unwrap_or_default() == self.value)
                }
                None => exists,
            }
    }
}

impl From<&Taint> for TaintFact {
    fn from(taint: &Taint) -> Self {
        let Taint { key, value, effect, .. } = taint;
        Self { key: key.clone(), value: value.clone().unwrap_or_default(), effect: effect.clone() }
    }
}

impl From<&UnhealthyTaint> for TaintFact {
    fn from(taint: &UnhealthyTaint) -> Self {
        let effect: &str = taint.effect.unwrap_or_default().into();
        Self { key: taint.key().to_owned(), value: String::new(), effect: effect.to_owned() }
    }
}

impl fmt::Display for TaintFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

/// Returns the taints of a Node, except Kubernetes' own.
pub fn lasting(taints: &[Taint]) -> impl Iterator<Item = TaintFact> {
    taints.iter().filter(|taint| !taint.key.starts_with("node.kubernetes.io/")).map(TaintFact::from)
}

/// Returns the taint that the annotations of a Node name as this operator's own. An invalid annotation names one that no node
/// has, so that it is replaced.
#[must_use]
pub fn recorded(annotations: &BTreeMap<String, String>) -> Option<TaintFact> {
    let record = annotations.get(keys::OWN_TAINT)?;
    let (key, effect) = record.split_once(':').unwrap_or((record, ""));
    Some(TaintFact { key: key.to_owned(), value: String::new(), effect: effect.to_owned() })
}

/// Returns the taints of a Node after this operator's own, which is recorded, has been replaced by another one or removed.
#[must_use]
pub fn with_own(taints: &[Taint], recorded: Option<&TaintFact>, own: Option<&TaintFact>) -> Vec<Taint> {
    let others = taints.iter().filter(|taint| !TaintFact::from(*taint).is_own(recorded));
    let own = own.map(|own| Taint { key: own.key.clone(), effect: own.effect.clone(), ..Taint::default() });
    others.cloned().chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_recorded_and_the_default_taint_are_replaced() {
        let taint = |key: &str, effect: &str| Taint { key: key.into(), effect: effect.into(), ..Taint::default() };
        let default = taint(keys::UNHEALTHY_TAINT, "NoSchedule");
        let [old, others] = ["NoExecute", "NoSchedule"].map(|effect| taint("a/x", effect));
        for (record, present, own, expected) in [
            (None, vec![&old, &default], None, "a/x:NoExecute"),
            (Some("a/x:NoExecute"), vec![&old, &others], None, "a/x:NoSchedule"),
            (Some("a/x:NoExecute"), vec![&old, &default], Some("b/y"), "b/y:NoSchedule"),
            (Some("a/x"), vec![&old, &others], Some("b/y"), "a/x:NoExecute a/x:NoSchedule b/y:NoSchedule"),
            (Some("a/x:NoExecute"), vec![], None, ""),
        ] {
            let annotations = record.map(|record| (keys::OWN_TAINT.to_owned(), record.to_owned()));
            let recorded = recorded(&annotations.into_iter().collect());
            let present: Vec<Taint> = present.into_iter().cloned().collect();
            let own = own.map(|key| TaintFact::from(&UnhealthyTaint { key: Some(key.into()), effect: None }));
            let taints = with_own(&present, recorded.as_ref(), own.as_ref());
            let taints: Vec<_> = taints.iter().map(|taint| TaintFact::from(taint).to_string()).collect();
            assert_eq!(taints.join(" "), expected, "{record:?}");
        }
    }
}
