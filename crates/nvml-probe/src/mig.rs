//! MIG: what has to be done to a GPU so that it is divided as it should be. Pure: the divisions that there are and those
//! on offer are given, with the clients that hold them.
//!
//! A GPU is a row of memory slices; a profile may begin at certain of them and takes some, by NVML's list of possible
//! placements. Instances that fit the layout already stay where they are, as long as the others can be placed beside them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// How often each profile is wanted, by its name, such as `1g.10gb`. Empty: MIG is to be off.
pub type Layout = BTreeMap<String, u32>;

/// Where an instance lies, in memory slices.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The first of its slices.
    pub start: u32,
    /// How many they are.
    pub size: u32,
}

impl Placement {
    fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

/// A process that holds a GPU or an instance of one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuClient {
    /// Its number on the host.
    pub pid: u32,
    /// Its name, as far as it is known.
    pub name: String,
}

/// An instance that is there.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// NVML's number of it.
    pub id: u32,
    /// Its profile's name.
    pub profile: String,
    /// Where it lies.
    pub placement: Placement,
    /// Who uses it.
    pub clients: Vec<GpuClient>,
}

/// A profile that the GPU offers.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub profile: String,
    /// Where it may lie on an empty GPU.
    pub placements: Vec<Placement>,
}

/// A GPU as NVML shows it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// Whether MIG is on.
    pub enabled: bool,
    /// Whether it will be on after the next reset: where that differs, nothing else can be done before it.
    pub pending: bool,
    /// The instances that there are.
    pub instances: Vec<Instance>,
    /// Who uses the GPU as a whole.
    pub clients: Vec<GpuClient>,
}

/// A GPU that has MIG.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Divisible {
    /// How it is divided.
    pub now: Divided,
    /// What it may be divided into.
    pub offers: Vec<Offer>,
}

/// One thing to do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Destroy the instance of this number, with its compute instances.
    Destroy(u32),
    /// Turn MIG on or off. Some GPUs need a reset before it is so.
    SetMode(bool),
    /// Make an instance, and one compute instance that takes all of it.
    Create {
        /// Of this profile.
        profile: String,
        /// Here.
        placement: Placement,
    },
}

/// Why nothing can be done at present.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The GPU has no such profile.
    #[error("the GPU has no profile {profile}; it has {}", offered.join(", "))]
    UnknownProfile {
        /// The one that is wanted.
        profile: String,
        /// Those that there are.
        offered: Vec<String>,
    },
    /// No placement has room for all of it.
    #[error("the GPU has no room for all of these profiles at once")]
    DoesNotFit,
    /// Somebody uses what would have to go.
    #[error("in use by {}", named(.0))]
    Blocked(Vec<GpuClient>),
    /// The mode was changed, and the GPU has not been reset since.
    #[error("the mode of MIG changes with the next reset of the GPU or reboot of the node")]
    ResetNeeded,
}

fn named(clients: &[GpuClient]) -> String {
    clients.iter().map(|client| format!("{} ({})", client.name, client.pid)).collect::<Vec<_>>().join(", ")
}

/// What has to be done so that the GPU is divided as it should be: nothing where it is.
///
/// A change of the mode comes alone, after what stands in its way: what becomes of it only the next look tells.
///
/// # Errors
/// An [`Obstacle`] where that cannot be, or not now.
pub fn steps(wanted: &Layout, now: &Divided, offers: &[Offer]) -> Result<Vec<Step>, Obstacle> {
    let wanted: Layout =
        wanted.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count)).collect();
    let on = !wanted.is_empty();
    if now.pending != now.enabled && now.pending == on {
        return Err(Obstacle::ResetNeeded);
    }
    if now.enabled != on || now.pending != on {
        free(now.instances.iter().flat_map(|instance| &instance.clients).chain(&now.clients))?;
        let destroyed = now.instances.iter().map(|instance| Step::Destroy(instance.id));
        return Ok(destroyed.chain([Step::SetMode(on)]).collect());
    }
    divide(&wanted, now, offers)
}

/// The same once the mode is as it should be.
fn divide(wanted: &Layout, now: &Divided, offers: &[Offer]) -> Result<Vec<Step>, Obstacle> {
    let mut missing = wanted.clone();
    let mut fitting = BTreeSet::new();
    // Those in use first: it is they that had better stay.
    let mut instances: Vec<&Instance> = now.instances.iter().collect();
    instances.sort_by_key(|instance| (instance.clients.is_empty(), instance.placement));
    for instance in &instances {
        if let Some(left) = missing.get_mut(&instance.profile).filter(|left| **left > 0) {
            *left -= 1;
            fitting.insert(instance.id);
        }
    }
    let in_use = instances.iter().filter(|instance| fitting.contains(&instance.id) && !instance.clients.is_empty());
    let in_use: BTreeSet<u32> = in_use.map(|instance| instance.id).collect();
    // All that fit stay; else those in use alone; else, to name who is in the way, none.
    for kept in [&fitting, &in_use, &BTreeSet::new()] {
        let stay: Vec<_> = instances.iter().filter(|instance| kept.contains(&instance.id)).collect();
        let mut missing = wanted.clone();
        for instance in &stay {
            missing.entry(instance.profile.clone()).and_modify(|left| *left -= 1);
        }
        let taken: Vec<Placement> = stay.iter().map(|instance| instance.placement).collect();
        if let Some(created) = place(&missing, taken, offers)? {
            let go: Vec<_> = instances.iter().filter(|instance| !kept.contains(&instance.id)).collect();
            free(go.iter().flat_map(|instance| &instance.clients))?;
            let destroyed = go.into_iter().map(|instance| Step::Destroy(instance.id));
            let created = created.into_iter().map(|(profile, placement)| Step::Create { profile, placement });
            return Ok(destroyed.chain(created).collect());
        }
    }
    Err(Obstacle::DoesNotFit)
}

/// Places for all that is missing beside what is taken, if there are any.
fn place(
    missing: &Layout,
    taken: Vec<Placement>,
    offers: &[Offer],
) -> Result<Option<Vec<(String, Placement)>>, Obstacle> {
    let mut open = Vec::new();
    for (profile, count) in missing.iter().filter(|(_, count)| **count > 0) {
        let Some(offer) = offers.iter().find(|offer| offer.profile == *profile) else {
            let offered = offers.iter().map(|offer| offer.profile.clone()).collect();
            return Err(Obstacle::UnknownProfile { profile: profile.clone(), offered });
        };
        if usize::try_from(*count).map_or(true, |count| count > offer.placements.len()) {
            return Ok(None);
        }
        open.extend((0..*count).map(|_| offer));
    }
    // What can lie in the fewest places first, and the same beside the same.
    open.sort_by_key(|offer| (offer.placements.len(), &offer.profile));
    let (mut taken, mut placed) = (taken, Vec::new());
    let fits = fill(&open, &mut taken, &mut placed);
    Ok(fits.then(|| open.iter().map(|offer| offer.profile.clone()).zip(placed).collect()))
}

/// Tries every place for the first that has none yet, and then for the rest.
fn fill(open: &[&Offer], taken: &mut Vec<Placement>, placed: &mut Vec<Placement>) -> bool {
    let Some(next) = open.get(placed.len()) else {
        return true;
    };
    // Of several alike each lies behind the one before: other orders would be the same division.
    let before = open.iter().zip(&*placed).next_back().filter(|(before, _)| before.profile == next.profile);
    let behind = before.map(|(_, place)| place.start);
    for place in &next.placements {
        if behind.is_some_and(|behind| place.start <= behind) || taken.iter().any(|other| other.overlaps(*place)) {
            continue;
        }
        taken.push(*place);
        placed.push(*place);
        if fill(open, taken, placed) {
            return true;
        }
        taken.pop();
        placed.pop();
    }
    false
}

/// Nobody uses what these clients would be the users of.
fn free<'c>(clients: impl Iterator<Item = &'c GpuClient>) -> Result<(), Obstacle> {
    let clients: BTreeSet<GpuClient> = clients.cloned().collect();
    if clients.is_empty() { Ok(()) } else { Err(Obstacle::Blocked(clients.into_iter().collect())) }
}
