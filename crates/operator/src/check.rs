//! Check: whether the components of the installed chart work, for `helm test`.

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::assess::pod_failure::PROBE_DAEMON_SET;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::error::{Error, request};

/// The label of the operator's pod in the chart.
const OPERATOR: &str = "app.kubernetes.io/name=nodestack-gpu-operator";

/// Returns what does not work: the API of the CRDs, the operator's pod, or the probes. Empty if all of them work.
///
/// # Errors
/// Returns an error if the API server does not answer, or rejects a request.
pub async fn faults(client: &Client, namespace: &str) -> Result<Vec<String>, Error> {
    let one = ListParams::default().limit(1);
    request("list policies".into(), Api::<ClusterGpuPolicy>::all(client.clone()).list(&one)).await?;
    request("list GpuNodes".into(), Api::<GpuNode>::all(client.clone()).list(&one)).await?;
    let mut faults = Vec::new();
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let pods = request("list the operator's pods".into(), pods.list(&ListParams::default().labels(OPERATOR))).await?;
    if !pods.iter().any(is_ready) {
        let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
        faults.push(format!("no pod of the operator is ready: {names:?}"));
    }
    let sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
    let set = request(format!("read DaemonSet {PROBE_DAEMON_SET}"), sets.get(PROBE_DAEMON_SET)).await?;
    let status = set.status.unwrap_or_default();
    let (ready, wanted) = (status.number_ready, status.desired_number_scheduled);
    if ready < wanted || wanted == 0 {
        faults.push(format!("{ready} of {wanted} pods of DaemonSet {PROBE_DAEMON_SET} are ready"));
    }
    Ok(faults)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
