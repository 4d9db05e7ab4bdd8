//! Taints of nodes. This operator recognizes its own by the annotation [`keys::OWN_TAINT`], written together with the taint, or by the
//! default key.

use std::{collections::BTreeMap, fmt};

use gpu_operator_crd::{keys, policy::UnhealthyTaint};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaintFact {
    pub key: String,
    pub value: String,
    pub effect: String,
}

impl TaintFact {
    /// Returns whether it keeps pods away: its effect is `NoSchedule` or `NoExecute`.
    pub fn keeps_pods_away(&self) -> bool {
        self.effect != "PreferNoSchedule"
    }

    /// Whether key and effect are the same: a node has only one such taint.
    pub fn same(&self, other: &Self) -> bool {
        (&self.key, &self.effect) == (&other.key, &other.effect)
    }

    /// Whether it belongs to this operator, given the taint that the Node's annotation names.
    pub fn is_own(&self, recorded: Option<&Self>) -> bool {
        self.key == keys::UNHEALTHY_TAINT || recorded.is_some_and(|recorded| self.same(recorded))
    }

    /// Whether its key is that of a startup taint. Policies may name another one.
    pub fn is_startup(&self) -> bool {
        self.key == keys::STARTUP_TAINT || self.key.starts_with(keys::AUTOSCALER_STARTUP_PREFIX)
    }

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

/// Returns the taint that the annotation of a Node names. An invalid annotation names one that no node has, so that it is replaced.
pub fn recorded(annotations: &BTreeMap<String, String>) -> Option<TaintFact> {
    let record = annotations.get(keys::OWN_TAINT)?;
    let (key, effect) = record.split_once(':').unwrap_or((record, ""));
    Some(TaintFact { key: key.to_owned(), value: String::new(), effect: effect.to_owned() })
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaintWrite {
    pub own: Option<OwnTaint>,
    /// The startup taints that are removed. None is ever added.
    pub lifted: Option<Lift>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lift {
    pub key: String,
    /// The UID of the Node, which may have been deleted and created again.
    #[serde(skip)]
    pub uid: String,
    /// The boot on which the Node was found ready; it may have been rebooted since.
    #[serde(skip)]
    pub boot_id: Box<str>,
}

/// The change of this operator's own taint: that of unhealthy GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnTaint {
    pub wanted: Option<TaintFact>,
    /// The taint that this replaces, if the Node records it.
    pub replaced: Option<TaintFact>,
}

impl TaintWrite {
    /// Drops what was decided for a Node with another uid or boot.
    pub fn on(mut self, uid: &str, boot_id: &str) -> Self {
        self.lifted.take_if(|lift| (&*lift.uid, &*lift.boot_id) != (uid, boot_id));
        self
    }

    pub fn removes(&self, taint: &TaintFact, recorded: Option<&TaintFact>) -> bool {
        let is_own = self.own.as_ref().is_some_and(|own| {
            let recorded = recorded.filter(|recorded| Some(*recorded) == own.replaced.as_ref());
            taint.is_own(recorded)
        });
        let is_lifted = self.lifted.as_ref().is_some_and(|lift| lift.key == taint.key && !taint.is_own(recorded));
        is_own || is_lifted
    }

    /// Returns a Node's taints after the write.
    pub fn applied_to(&self, taints: &[Taint], recorded: Option<&TaintFact>) -> Vec<Taint> {
        let others = taints.iter().filter(|taint| !self.removes(&TaintFact::from(*taint), recorded));
        let own = self.own.as_ref().and_then(|own| own.wanted.as_ref());
        let own = own.map(|own| Taint { key: own.key.clone(), effect: own.effect.clone(), ..Taint::default() });
        others.cloned().chain(own).collect()
    }
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
            let own = Some(OwnTaint { wanted: own, replaced: recorded.clone() });
            let write = TaintWrite { own, lifted: None };
            let taints = write.applied_to(&present, recorded.as_ref());
            let taints: Vec<_> = taints.iter().map(|taint| TaintFact::from(taint).to_string()).collect();
            assert_eq!(taints.join(" "), expected, "{record:?}");
        }
    }
    #[test]
    fn startup_taints_are_removed_whatever_their_effect_and_value() {
        let taint = |key: &str, effect: &str, value: Option<&str>| Taint {
            key: key.into(),
            effect: effect.into(),
            value: value.map(Into::into),
            ..Taint::default()
        };
        let present = [
            taint("a/x", "NoExecute", None),
            taint("a/x", "NoSchedule", Some("value")),
            taint("a/y", "NoSchedule", None),
            taint(keys::UNHEALTHY_TAINT, "NoSchedule", None),
        ];
        let recorded = TaintFact::from(&present[1]);
        let all = "a/y:NoSchedule gpu.nodestack.dev/unhealthy:NoSchedule";
        for (lifted, recorded, expected) in [
            ("a/x", None, all.to_owned()),
            // That of unhealthy GPUs is not a startup taint, whatever its key.
            ("a/x", Some(&recorded), format!("a/x=value:NoSchedule {all}")),
            (keys::UNHEALTHY_TAINT, None, format!("a/x:NoExecute a/x=value:NoSchedule {all}")),
        ] {
            let lift = Lift { key: lifted.into(), uid: "u".into(), boot_id: "b".into() };
            let write = TaintWrite { own: None, lifted: Some(lift) };
            for (uid, boot_id) in [("v", "b"), ("u", "c")] {
                assert_eq!(write.clone().on(uid, boot_id).applied_to(&present, recorded), present, "{uid} {boot_id}");
            }
            let taints = write.on("u", "b").applied_to(&present, recorded);
            let taints: Vec<_> = taints.iter().map(|taint| TaintFact::from(taint).to_string()).collect();
            assert_eq!(taints.join(" "), expected, "{lifted}");
        }
    }
}
