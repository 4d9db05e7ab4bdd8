//! Check: whether the components of the installed chart work, for `helm test`.

use std::time::Duration;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys, schema_revision::crd_names};
use gpu_operator_plan::ground::{DETECTOR_DAEMON_SET, PROBE_DAEMON_SET};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::time::{Instant, sleep};

use crate::{
    error::{Error, request},
    installation::{Crd, CrdMetadata},
};

/// The time in which faults may disappear: shortly after an installation, probes still start on the nodes that the detector has found.
const WITHIN: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(2);

pub async fn lasting_faults(client: &Client, namespace: &str) -> Result<Vec<String>, Error> {
    let until = Instant::now() + WITHIN;
    loop {
        let found = faults(client, namespace).await?;
        if found.is_empty() || Instant::now() >= until {
            return Ok(found);
        }
        sleep(PAUSE).await;
    }
}

/// Returns what does not work: the CRDs, the operator's pod, detector or probe. Empty if all of them work.
pub async fn faults(client: &Client, namespace: &str) -> Result<Vec<String>, Error> {
    let one = ListParams::default().limit(1);
    request("list policies".into(), Api::<ClusterGpuPolicy>::all(client.clone()).list(&one)).await?;
    request("list GpuNodes".into(), Api::<GpuNode>::all(client.clone()).list(&one)).await?;
    let mut faults = Vec::new();
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let of_operator = ListParams::default().labels(&keys::selector(keys::OPERATOR_NAME));
    let pods = request("list the operator's pods".into(), pods.list(&of_operator)).await?;
    if !pods.iter().any(is_ready) {
        let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
        faults.push(format!("no pod of the operator is ready: {names:?}"));
    }
    // The detector runs on every node that could have a GPU, the probe where one was found, which may be nowhere.
    let with_gpus = ListParams::default().labels(&format!("{}=true", keys::PRESENT)).limit(1);
    let with_gpus = request("list nodes".into(), Api::<Node>::all(client.clone()).list_metadata(&with_gpus)).await?;
    let sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
    for (name, is_wanted) in [(DETECTOR_DAEMON_SET, true), (PROBE_DAEMON_SET, !with_gpus.items.is_empty())] {
        let set = request(format!("read DaemonSet {name}"), sets.get(name)).await?;
        faults.extend(not_ready(&set, is_wanted));
    }
    for name in crd_names() {
        // By a list, because the operator has no other right to read it.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = request(format!("read CRD {name}"), Api::<CrdMetadata>::all(client.clone()).list(&named)).await?;
        let outdated = found.items.first().and_then(|crd| Crd::from(crd).outdated);
        faults.extend(outdated.map(|mismatch| format!("{mismatch}: {}", mismatch.remedy())));
    }
    Ok(faults)
}

/// Returns why a DaemonSet is not ready. `is_wanted`: at least one node must be selected.
fn not_ready(set: &DaemonSet, is_wanted: bool) -> Option<String> {
    let (name, status) = (set.name_any(), set.status.clone().unwrap_or_default());
    let (ready, wanted) = (status.number_ready, status.desired_number_scheduled);
    if status.observed_generation < set.metadata.generation {
        return Some(format!("the controller has not observed the latest generation of DaemonSet {name}"));
    }
    if is_wanted && wanted == 0 {
        return Some(format!(
            "DaemonSet {name} selects no node: check its nodeSelector and affinity in the chart's values"
        ));
    }
    (ready < wanted).then(|| format!("{ready} of {wanted} pods of DaemonSet {name} are ready"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
