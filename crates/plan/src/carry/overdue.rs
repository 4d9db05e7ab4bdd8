//! Statuses of policies that passes do not come to. They are the last writes of a pass, and a pass ends after some seconds: while a
//! large fleet is installed, no pass would come to them for minutes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    output::{
        body::Target,
        plan::Steps,
        write::{Step, Write},
    },
    time::Uptime,
};

/// The time after which the status of a policy is written before those of its nodes: it shows what has been observed, although
/// the nodes' own statuses do not yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// Since when passes have wanted to write the statuses of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Overdue(BTreeMap<Target, Uptime>);

impl Overdue {
    /// Moves overdue statuses to an earlier step of a plan: after the finalizers, on which all else depends, and the taints, for the
    /// end of which pods may be waiting.
    pub fn begin(&mut self, steps: &mut Steps, now: Uptime) {
        let is_policy_status = |write: &Write| write.step() == Step::PolicyStatuses;
        let wanted = steps.iter().flatten().filter(|write| is_policy_status(write));
        let wanted = wanted.map(|write| (write.target.clone(), *self.0.get(&write.target).unwrap_or(&now)));
        self.0 = wanted.collect();
        let is_overdue = |write: &Arc<Write>| {
            let since = self.0.get(&write.target).filter(|_| is_policy_status(write));
            since.is_some_and(|since| now.saturating_sub(*since) >= PATIENCE)
        };
        let overdue: Vec<_> =
            steps.iter_mut().flat_map(|step| step.extract_if(.., |write| is_overdue(write))).collect();
        if overdue.is_empty() {
            return;
        }
        steps.retain(|step| !step.is_empty());
        let is_first = |step: &Vec<Arc<Write>>| step.first().is_some_and(|write| write.step() <= Step::Taints);
        let first = steps.iter().take_while(|step| is_first(step)).count();
        steps.insert(first, overdue);
    }

    /// Records that a write has succeeded.
    pub fn written(&mut self, write: &Write) {
        if write.step() == Step::PolicyStatuses {
            self.0.remove(&write.target);
        }
    }
}
