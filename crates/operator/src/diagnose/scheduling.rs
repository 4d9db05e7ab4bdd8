//! Pods that wait for a node: those that no node can ever take, and those whose nodes are still on their way. One that
//! waits because all GPUs are in use is told so by the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Look, Mistake, NO_PLACE_GRACE, PendingPod, Voice,
    fleet::{Fleet, Host, Room},
    pending::State,
};

/// What autoscalers say of a pod that they are making a node for: the cluster autoscaler's word and Karpenter's. General
/// knowledge, unverified.
const NODE_IS_COMING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];
/// How many names are told at most.
const NAMES: usize = 5;

/// Where a pod can go.
pub enum Place {
    /// There is one, or nothing certain to say.
    Somewhere,
    /// There is none, and why.
    Nowhere(String),
    /// There will be one, and when.
    Later(String),
}

/// Looks for a place.
pub fn place(pod: &PendingPod, fleet: &Fleet<'_>) -> Place {
    let asks = pod.asks();
    if asks.is_empty() || pod.state != State::Waiting {
        return Place::Somewhere;
    }
    let meant: Vec<&Host<'_>> = fleet.meant(&pod.placement).collect();
    if meant.is_empty() {
        let why = unknown_model(pod, fleet).or_else(|| too_much(&asks, fleet.hosts.values(), "of this cluster"));
        return why.map_or(Place::Somewhere, Place::Nowhere);
    }
    let mut later = Vec::new();
    let mut somewhere = false;
    for host in &meant {
        match host.room(&asks) {
            Room::Now => return Place::Somewhere,
            Room::Later => {
                somewhere = true;
                // One that is away or keeps the pod off by a taint is the scheduler's to tell of.
                if host.node.serves() && pod.placement.tolerates(host.node) {
                    later.push(*host);
                }
            }
            Room::Never => {}
        }
    }
    if !somewhere {
        return too_much(&asks, meant.into_iter(), "that it may be placed on").map_or(Place::Somewhere, Place::Nowhere);
    }
    nearest(&later).map_or(Place::Somewhere, Place::Later)
}

/// What is to be said of a place.
pub fn look(place: &Place, voices: Option<&[Voice]>) -> Look {
    match (place, voices) {
        (Place::Somewhere, _) => Look::Nothing,
        (Place::Later(when), _) => Look::Found(Mistake::GpuNodesNotReady, when.clone()),
        (Place::Nowhere(why), Some(voices)) if !voices.iter().any(is_coming) => {
            Look::Found(Mistake::NoNodeFits, why.clone())
        }
        (Place::Nowhere(_), _) => Look::Ask { grace: NO_PLACE_GRACE },
    }
}

fn is_coming(voice: &Voice) -> bool {
    NODE_IS_COMING.contains(&voice.reason.as_str())
}

/// That it asks for a model which no node has, and which are near. As long as a node's model is not known it may be that
/// node's.
fn unknown_model(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    if !fleet.hosts.values().all(Host::is_known) {
        return None;
    }
    let (key, wanted, mut known) = fleet.model_keys.iter().find_map(|key| {
        let wanted = pod.placement.wanted(key)?;
        let known: BTreeSet<&str> = fleet.hosts.values().filter_map(|host| host.label(key)).collect();
        (!wanted.iter().any(|wanted| known.contains(wanted))).then(|| (*key, wanted, Vec::from_iter(known)))
    })?;
    let asked = format!("it asks for {key}={}, which no node has", wanted.join("|"));
    let likeness = |name: &str| wanted.iter().map(|wanted| strsim::jaro_winkler(wanted, name)).fold(0.0, f64::max);
    known.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    known.truncate(NAMES);
    Some(if known.is_empty() {
        format!(
            "{asked}; no node carries {key} at all: kubectl get gpunodes lists the nodes with GPUs and their models"
        )
    } else {
        format!("{asked}; nodes have {}", known.join(", "))
    })
}

/// That it asks for more than any node has.
fn too_much<'h, 'w: 'h>(
    asks: &BTreeMap<&str, u64>,
    hosts: impl Iterator<Item = &'h Host<'w>>,
    which: &str,
) -> Option<String> {
    let hosts: Vec<_> = hosts.collect();
    // Where of several resources each is somewhere and all are nowhere, it is left at that.
    let too_much = |(resource, count): (&&str, &u64)| {
        let most = hosts.iter().map(|host| host.may_offer(resource)).collect::<Option<Vec<u64>>>()?;
        let most = most.into_iter().max().unwrap_or_default();
        (most < *count).then(|| (String::from(*resource), *count, most))
    };
    let (resource, count, most) = asks.iter().find_map(too_much)?;
    if most > 0 {
        return Some(format!(
            "it asks for {count} {resource}, and the most that a node {which} has is {most}; a pod cannot span nodes: ask for \
             fewer, or for several pods"
        ));
    }
    let offered: BTreeSet<&str> = hosts.iter().flat_map(|host| host.resources()).collect();
    let offered: Vec<&str> = offered.into_iter().take(NAMES).collect();
    Some(if offered.is_empty() {
        format!("it asks for {resource}, and no node {which} offers GPUs or is about to")
    } else {
        format!("it asks for {resource}, which no node {which} offers; they offer {}", offered.join(", "))
    })
}

/// How far the nearest of the nodes is that will take it.
fn nearest(later: &[&Host<'_>]) -> Option<String> {
    let told = later.iter().filter_map(|host| Some((host, host.status()?)));
    let (host, status) = told.max_by_key(|(host, status)| (status.phase, std::cmp::Reverse(&host.node.name)))?;
    let which = match later.len() {
        1 => "the node that fits does not offer its GPUs yet".to_owned(),
        count => format!("none of the {count} nodes that fit offers its GPUs yet"),
    };
    let reason = status.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
    let message = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
    let nearest = if later.len() == 1 { "" } else { "the nearest is " };
    Some(format!("{which}; {nearest}{} in phase {}{reason}{message}", host.node.name, status.phase.as_str()))
}
