//! The operator's pods on a node, their logs and their metrics.

use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    contents::Contents,
    log::{LogOf, metrics, tail},
};
use crate::read::{ReadError, each};

/// The names of the ports at which operator and probe serve metrics.
const PORTS: [&str; 2] = ["http", "metrics"];

/// Which logs are read.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Whether any are.
    pub enabled: bool,
    /// From how many seconds ago.
    pub since: Option<i64>,
    /// The limit for each, in bytes.
    pub limit: usize,
}

/// Returns whether an object of the operator's namespace is the chart's or the operator's.
pub fn is_own(object: &DynamicObject) -> bool {
    let labels = object.metadata.labels.iter().flatten();
    let (part_of, operator) = keys::PART_OF;
    labels.into_iter().any(|(key, value)| key == keys::STAGE || (key == part_of && value == operator))
}

fn is_operator(pod: &DynamicObject) -> bool {
    keys::are_of(pod.labels(), keys::OPERATOR_NAME)
}

/// Reads the operator's pods if a selector of labels is given, or else the others of the operator's namespace that a selector of fields
/// selects, with their logs and metrics. `whose` names them in the manifest.
pub async fn pods(
    client: Client,
    namespace: String,
    params: ListParams,
    whose: String,
    logs: LogOptions,
) -> (Vec<Value>, Contents) {
    let mut found: Vec<Value> = Vec::new();
    let mut contents = Contents::default();
    let resource = ApiResource::erase::<Pod>(&());
    // The operator's pods are selected by their label; those of a node are the others.
    let of_operator = params.label_selector.is_some();
    let read = each(&client, Some(&namespace), &resource, params, |pod| {
        if is_own(&pod) && is_operator(&pod) == of_operator {
            found.extend(serde_json::to_value(pod));
        }
    });
    if let Err(error) = read.await {
        contents.add_unread(&of_kind("pods", &whose, &error), &error);
    }
    found.sort_by_key(|pod| name(pod).to_owned());
    // A node that does not answer is not asked again.
    let (mut reads_logs, mut reads_metrics) = (logs.enabled, true);
    for pod in &found {
        contents.add_object(format!("pods/{}.json", name(pod)), pod.clone());
        if reads_logs && let Err(error) = add_logs(&client, &namespace, pod, logs, &mut contents).await {
            contents.add_unread(&of_kind("logs", &whose, &error), &error);
            reads_logs = false;
        }
        if reads_metrics && let Some(port) = metrics_port(pod) {
            match metrics(&client, &namespace, name(pod), port).await {
                Ok(text) => contents.add_text(format!("metrics/{}.txt", name(pod)), &text),
                Err(error) => {
                    contents.add_unread(&of_kind("metrics", &whose, &error), &error);
                    reads_metrics = false;
                }
            }
        }
    }
    (found, contents)
}

/// Returns what an error prevents: a missing right applies to all nodes.
fn of_kind(kind: &str, whose: &str, error: &ReadError) -> String {
    if matches!(error, ReadError::Forbidden(_)) { kind.to_owned() } else { format!("{kind} {whose}") }
}

/// Adds the logs of a pod. Returns an error after which no other log of the same node can be read.
async fn add_logs(
    client: &Client,
    namespace: &str,
    pod: &Value,
    logs: LogOptions,
    contents: &mut Contents,
) -> Result<(), ReadError> {
    for (container, previous) in runs(pod) {
        let path = format!("logs/{}/{container}{}.log", name(pod), if previous { ".previous" } else { "" });
        let log = LogOf { namespace, pod: name(pod), container: &container, previous };
        match tail(client, &log, logs.since, logs.limit).await {
            Ok(tail) => {
                if tail.is_cut {
                    contents.leave_out(&format!("{path}: earlier lines"), &format!("{} bytes per log", logs.limit));
                }
                contents.add_text(path, &tail.text);
            }
            // For example because the container's log has been removed.
            Err(error @ ReadError::Rejected(..)) => contents.add_unread(&path, &error),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the runs of a pod's containers that have logs: the name of the container, and whether it is the previous run.
fn runs(pod: &Value) -> Vec<(String, bool)> {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let statuses = lists.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    let mut runs = Vec::new();
    for status in statuses {
        let container = status["name"].as_str().unwrap_or_default();
        if status["state"]["running"].is_object() || status["state"]["terminated"].is_object() {
            runs.push((container.to_owned(), false));
        }
        if status["lastState"]["terminated"].is_object() {
            runs.push((container.to_owned(), true));
        }
    }
    runs
}

/// Returns the port at which a pod serves metrics, if it does.
fn metrics_port(pod: &Value) -> Option<i64> {
    if pod["status"]["phase"] != "Running" || pod["metadata"]["labels"][keys::PART_OF.0] != keys::PART_OF.1 {
        return None;
    }
    let containers = pod["spec"]["containers"].as_array()?;
    let ports = containers.iter().flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let mut named = ports.filter(|port| PORTS.iter().any(|name| port["name"] == *name));
    named.find_map(|port| port["containerPort"].as_i64())
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_runs_with_a_log_are_read() {
        let state =
            |name, state: &str, last: &str| json!({"name": name, "state": {state: {}}, "lastState": {last: {}}});
        let init = [state("gate", "terminated", "none"), state("new", "waiting", "none")];
        let containers = [state("driver", "running", "terminated"), state("crashed", "waiting", "terminated")];
        let pod = json!({"status": {"initContainerStatuses": init, "containerStatuses": containers}});
        let runs = runs(&pod);
        let runs: Vec<_> = runs.iter().map(|(name, previous)| (name.as_str(), *previous)).collect();
        assert_eq!(runs, [("gate", false), ("driver", false), ("driver", true), ("crashed", true)]);
    }
}
