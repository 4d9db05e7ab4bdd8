//! Pods that hold what a driver's container of before has left: the device plugin and MPS's daemon have its library open,
//! and the plugin's CDI specification names the files and device nodes of its root. With another start of that container
//! all of it is another one's, and while it is down there must be no GPU to hand out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    super::{judge::against_driver, member::Member},
    is_nvidias,
};
use crate::{
    moment::older,
    world::{PodFacts, World},
};

/// How long a pod has run of which the probe's report is not of before.
const SETTLED: Duration = Duration::from_mins(1);

/// Returns the pods to recreate. Their replacements wait at their gates for the driver's container, so that each is
/// replaced once for each of its starts.
pub fn holders_of_an_old_root(world: &World) -> impl Iterator<Item = &PodFacts> {
    let pods = || world.pods.values().map(Arc::as_ref);
    let drivers: BTreeMap<&str, Option<Timestamp>> = pods().filter_map(driver).collect();
    pods().filter(move |pod| {
        let started = drivers.get(pod.node.as_str());
        is_holder(pod) && started.is_some_and(|started| is_older(pod, *started))
    })
}

/// The node of a pod with NVIDIA's driver container, and since when that runs.
fn driver(pod: &PodFacts) -> Option<(&str, Option<Timestamp>)> {
    (is_nvidias(pod) && !pod.is_leaving()).then(|| (pod.node.as_str(), pod.running_since()))
}

/// Returns the pods to recreate where there is evidence against the driver's root, which kubelet knows nothing of and would
/// send GPU pods to: those that have run for a while. The probe may be behind those that have just passed their gates.
pub fn holders_of_a_broken_root<'w>(member: &Member<'w>, now: Timestamp) -> impl Iterator<Item = &'w PodFacts> {
    let settled = move |pod: &PodFacts| pod.running_since().is_some_and(|since| older(since, SETTLED, now));
    let broken = member.probe_pod().is_some_and(PodFacts::running) && against_driver(member, now).is_some();
    let pods = if broken { member.pods.clone() } else { Vec::new() };
    pods.into_iter().filter(move |pod| is_holder(pod) && settled(pod))
}

fn is_holder(pod: &PodFacts) -> bool {
    pod.holds_driver() && pod.has_started() && !pod.is_leaving()
}

/// Whether a pod started before the driver's container did, which may be down. Both times are of one kubelet.
fn is_older(pod: &PodFacts, driver: Option<Timestamp>) -> bool {
    driver.is_none_or(|driver| pod.running_since().is_some_and(|since| since < driver))
}
