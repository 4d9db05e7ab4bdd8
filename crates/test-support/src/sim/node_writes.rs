//! The effects of the operator's writes of Nodes.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, keys};
use gpu_operator_plan::{
    output::body::LabelWrite,
    revision,
    world::{OwnConditions, OwnTaint, TaintWrite},
};

use super::{
    Sim,
    api::{Answer, missing},
};

impl Sim {
    pub(super) fn apply_presence(&mut self, name: &NodeName, is_present: bool) -> Answer {
        // What the operator has seen of the probe is stored.
        if self.nodes.contains_key(name) {
            self.write_report(name);
        }
        let node = self.nodes.get_mut(name).ok_or_else(|| missing(name))?;
        let value = Interned::from(if is_present { "true" } else { "false" });
        let before = node.labels.insert(keys::PRESENT.into(), value.clone());
        node.labelled_present = Some(self.now.into());
        Ok(before != Some(value))
    }

    pub(super) fn apply_conditions(&mut self, name: &NodeName, conditions: &OwnConditions) -> Answer {
        let node = self.nodes.get_mut(name).ok_or_else(|| missing(name))?;
        let before = std::mem::replace(&mut node.own_conditions, conditions.clone());
        Ok(before != node.own_conditions)
    }

    pub(super) fn apply_taints(&mut self, name: &NodeName, write: &TaintWrite) -> Answer {
        let node = self.nodes.get_mut(name).ok_or_else(|| missing(name))?;
        let before = node.clone();
        let write = write.clone().on(&node.uid, &node.boot_id);
        node.taints.retain(|taint| !write.removes(taint, before.own_taint.as_ref()));
        if let Some(OwnTaint { wanted, .. }) = &write.own {
            let is_twice = wanted.as_ref().is_some_and(|wanted| node.taints.iter().any(|taint| wanted.same(taint)));
            assert!(!is_twice, "422: {wanted:?}");
            node.taints.extend(wanted.clone());
            node.own_taint.clone_from(wanted);
        }
        Ok(before != *node)
    }

    /// Server-side apply of a node's labels: a label that is no longer applied is removed unless another manager owns
    /// it as well, and a label that another manager has set to another value is a conflict unless the write is forced.
    pub(super) fn apply_labels(&mut self, name: &NodeName, write: &LabelWrite) -> Answer {
        let node = self.nodes.get_mut(name).filter(|node| node.uid == write.uid);
        let node = node.ok_or_else(|| "409: another Node of this name, or none".to_owned())?;
        if revision::labelled_revisions(node) != write.seen {
            return Err(format!("409: the labels of {name} have changed"));
        }
        let is_taken = |(key, value): &(&String, &String)| {
            let owned = node.owned_labels.contains(key.as_str());
            !owned && !write.force && node.labels.get(key.as_str()).is_some_and(|present| *present != value.as_str())
        };
        if let Some((key, _)) = write.labels.iter().find(is_taken) {
            return Err(format!("409: label {key} of {name}"));
        }
        let before = node.clone();
        let users = self.user_labels.entry(name.clone()).or_default();
        for key in std::mem::take(&mut node.owned_labels) {
            if !users.contains_key(&key) {
                node.labels.remove(&key);
            }
        }
        for (key, value) in &write.labels {
            if users.get(key.as_str()).is_some_and(|third_party| third_party != value) {
                assert!(key.starts_with(keys::PREFIX), "label {key} of {name} is taken from another manager");
                users.remove(key.as_str());
            }
            node.labels.insert(key.into(), value.into());
            node.owned_labels.insert(key.into());
        }
        Ok(before != *node)
    }
}
