//! The waves of a pool's rollout: canary nodes first, and all others once the canary nodes have worked for long enough.

use std::time::Duration;

use gpu_operator_crd::policy::Canary;
use k8s_openapi::jiff::Timestamp;

use super::goal::Goals;
use crate::{assess::Assessment, int_or_percent, time::later};

/// The state of the waves of a pool.
#[derive(Clone, Debug, Default)]
pub struct Waves {
    /// The number of canary nodes that are missing.
    missing: u32,
    /// Whether one of them is not done.
    is_underway: bool,
    /// Until when they have to work, once all of them are done.
    soaks_until: Option<Timestamp>,
}

/// Whether the update of another node may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is a canary node.
    Canary,
    Rest,
    /// The canary nodes are being updated.
    Underway,
    /// The canary nodes have to work until this time.
    Soaking(Timestamp),
}

impl Waves {
    /// Returns the state of the waves to these settings, which have this hash.
    pub fn of(
        canary: Option<&Canary>,
        members: &[Assessment<'_>],
        goals: &Goals,
        revision: &str,
        now: Timestamp,
    ) -> Self {
        let Some(canary) = canary.filter(|_| !goals.rolled_back) else { return Self::default() };
        let moved = members.iter().filter_map(|assessed| Some((&assessed.member, goals.moved(&assessed.member)?)));
        let moved: Vec<_> = moved.filter(|(_, moved)| moved.revision == revision).collect();
        if moved.iter().any(|(_, moved)| !moved.canary) {
            return Self::default();
        }
        let all = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let begun = u32::try_from(moved.len()).unwrap_or(u32::MAX);
        let soak = canary.soak.map_or(Duration::ZERO, Into::into);
        let is_underway = moved.iter().any(|(member, moved)| moved.at.is_none() || member.rollout().is_some());
        let ended = moved.iter().filter_map(|(_, moved)| Some(moved.at.as_ref()?.0)).max();
        Self {
            missing: int_or_percent::of(&canary.nodes, all).max(1).saturating_sub(begun),
            is_underway,
            soaks_until: ended.map(|ended| later(ended, soak)).filter(|until| now < *until),
        }
    }

    /// Returns whether the update of another node may begin.
    pub fn next(&self) -> Next {
        match self {
            Self { missing: 1.., .. } => Next::Canary,
            Self { is_underway: true, .. } => Next::Underway,
            Self { soaks_until: Some(until), .. } => Next::Soaking(*until),
            Self { .. } => Next::Rest,
        }
    }

    /// Counts a canary node whose update begins.
    pub fn begin(&mut self) {
        if self.missing > 0 {
            self.missing -= 1;
            self.is_underway = true;
        }
    }
}
