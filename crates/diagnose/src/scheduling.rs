//! Pods that wait for a node: those that no node can ever run, and those whose nodes are not ready yet. If a pod waits because
//! all GPUs are in use, the scheduler reports it.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::text::clipped;
use k8s_openapi::api::core::v1::Event;

use crate::{
    finding::{Mistake, NO_PLACE_GRACE, NODE_IS_COMING, Verdict},
    fleet::{Fleet, Host, Room},
    pending::{PendingPod, State},
};

const NAMES: usize = 5;

/// The maximum length of the required names in a message, in bytes.
const MAX_WANTED: usize = 500;

pub enum Place {
    /// A node can run it, or nothing is certain.
    Somewhere,
    /// No node can run it, with the explanation.
    Nowhere(String),
    /// A node will be able to run it, with its progress.
    Later(String),
}

pub fn place(pod: &PendingPod, fleet: &Fleet<'_>) -> Place {
    let requests = pod.requests();
    if requests.is_empty() || pod.state != State::Waiting {
        return Place::Somewhere;
    }
    let meant: Vec<&Host<'_>> = fleet.meant(&pod.placement).collect();
    if meant.is_empty() {
        let why = unknown_model(pod, fleet).or_else(|| too_much(&requests, fleet.hosts.values(), "in this cluster"));
        return why.map_or(Place::Somewhere, Place::Nowhere);
    }
    let mut later = Vec::new();
    let mut somewhere = false;
    for host in &meant {
        match host.room(&requests) {
            Room::Now => return Place::Somewhere,
            Room::Later => {
                somewhere = true;
                // If the node is unavailable or has a taint that the pod does not tolerate, the scheduler reports it.
                if host.node.serves() && pod.placement.tolerates(host.node) {
                    later.push(*host);
                }
            }
            Room::Never => {}
        }
    }
    if !somewhere {
        return too_much(&requests, meant.into_iter(), "that the pod may be placed on")
            .map_or(Place::Somewhere, Place::Nowhere);
    }
    nearest(&later).map_or(Place::Somewhere, Place::Later)
}

/// Returns the finding for a placement, given the Events of the pod.
pub fn check(place: &Place, events: Option<&[Event]>) -> Verdict {
    match (place, events) {
        (Place::Somewhere, _) => Verdict::NoMistake,
        (Place::Later(when), _) => Verdict::Mistake(Mistake::GpuNodesNotReady, when.clone()),
        (Place::Nowhere(why), Some(events)) if !events.iter().any(is_coming) => {
            Verdict::Mistake(Mistake::NoNodeFits, why.clone())
        }
        (Place::Nowhere(_), _) => Verdict::Unknown { grace: NO_PLACE_GRACE },
    }
}

fn is_coming(event: &Event) -> bool {
    event.reason.as_deref().is_some_and(|reason| NODE_IS_COMING.contains(&reason))
}

/// Returns the message for a pod that requires a model which no node has, with the most similar names. Returns `None` while the
/// model of any node is unknown: that node may have it.
fn unknown_model(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    if !fleet.hosts.values().all(Host::is_known) {
        return None;
    }
    let (key, wanted, mut known) = fleet.model_keys.iter().find_map(|key| {
        let wanted = pod.placement.wanted(key)?;
        let known: BTreeSet<&str> = fleet.hosts.values().filter_map(|host| host.label(key)).collect();
        (!wanted.iter().any(|wanted| known.contains(wanted))).then(|| (*key, wanted, Vec::from_iter(known)))
    })?;
    let missing = format!("the pod requires {key}={}, which no node has", clipped(&wanted.join("|"), MAX_WANTED));
    let likeness = |name: &str| wanted.iter().map(|wanted| strsim::jaro_winkler(wanted, name)).fold(0.0, f64::max);
    known.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    known.truncate(NAMES);
    Some(if known.is_empty() {
        format!(
            "{missing}; no node has the label {key}: kubectl get gpunodes lists the nodes with GPUs and their models"
        )
    } else {
        format!("{missing}; nodes have {}", known.join(", "))
    })
}

fn too_much<'h, 'w: 'h>(
    requests: &BTreeMap<&str, u64>,
    hosts: impl Iterator<Item = &'h Host<'w>>,
    which: &str,
) -> Option<String> {
    let hosts: Vec<_> = hosts.collect();
    // Each resource is checked on its own: a combination of resources that no single node offers is not reported.
    let too_much = |(resource, count): (&&str, &u64)| {
        let most = hosts.iter().map(|host| host.may_offer(resource)).collect::<Option<Vec<u64>>>()?;
        let most = most.into_iter().max().unwrap_or_default();
        (most < *count).then(|| (String::from(*resource), *count, most))
    };
    let (resource, count, most) = requests.iter().find_map(too_much)?;
    if most > 0 {
        return Some(format!(
            "the pod requests {count} {resource}, but no node {which} has more than {most}; a pod cannot span nodes: request \
             fewer, or use several pods"
        ));
    }
    let offered: BTreeSet<&str> = hosts.iter().flat_map(|host| host.resources()).collect();
    let offered: Vec<&str> = offered.into_iter().take(NAMES).collect();
    Some(if offered.is_empty() {
        format!("the pod requests {resource}, but no node {which} offers GPUs or is about to offer them")
    } else {
        format!("the pod requests {resource}, which no node {which} offers; these nodes offer {}", offered.join(", "))
    })
}

/// Returns the message with the progress of the node that is closest to ready.
fn nearest(later: &[&Host<'_>]) -> Option<String> {
    let known = later.iter().filter_map(|host| Some((host, host.status()?)));
    let (host, status) = known.max_by_key(|(host, status)| (status.phase, std::cmp::Reverse(&host.node.name)))?;
    let name = &host.node.name;
    let which = match later.len() {
        1 => format!("node {name}, the only eligible one, does not offer its GPUs yet; it is"),
        count => format!("none of the {count} eligible nodes offers its GPUs yet; the nearest, node {name}, is"),
    };
    let reason = status.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
    let message = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
    Some(format!("{which} in phase {}{reason}{message}", status.phase.as_str()))
}
