//! Updates of nodes whose first write was not answered. The API server may carry out such a write later, so until then the node may be
//! being updated although nothing shows it.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::NodeName;

use super::failure::{Class, Failure};
use crate::{output::write::Write, time::Uptime, world::World};

/// How long a write that was not answered may take: by default, the API server ends a request after a minute.
const LATEST: Duration = Duration::from_secs(75);

/// The nodes whose update may begin, with the time until which it may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unanswered {
    until: BTreeMap<NodeName, Uptime>,
}

impl Unanswered {
    /// Adds the nodes whose update may still begin to the world.
    pub fn report(&self, world: &mut World, now: Uptime) {
        let late = self.until.iter().filter(|(_, until)| now < **until);
        world.unanswered_updates = late.map(|(name, _)| name.clone()).collect();
    }

    /// Records a failed write.
    pub fn failed(&mut self, write: &Write, failure: &Failure, now: Uptime) {
        if write.begins_an_update() && failure.class == Class::Unreachable {
            self.until.insert(write.target.name.as_str().into(), now + LATEST);
        }
    }

    /// Forgets the nodes that this world, from which a plan was made, no longer has.
    pub fn begin(&mut self, world: &World) {
        self.until.retain(|name, _| world.unanswered_updates.contains(name));
    }

    /// Returns when the next of them can no longer be carried out.
    #[must_use]
    pub fn next(&self) -> Option<Uptime> {
        self.until.values().copied().min()
    }
}
