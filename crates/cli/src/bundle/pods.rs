//! The operator's pods on a node, their metrics, and the ends of their logs, each in a limited number of bytes.

use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, LogParams},
    client::Body,
    core::{Request, Status},
};
use serde_json::Value;

use super::archive::Contents;
use crate::read::{ReadError, classify, each};

/// The names of the ports at which operator and probe serve metrics.
const PORTS: [&str; 2] = ["http", "metrics"];

#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
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

/// A missing right applies to all nodes.
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

/// The number of lines that are asked for. If they are longer than the limit, fewer are.
const LINES: i64 = 8192;
/// The smallest number of lines that are asked for.
const FEWEST: i64 = 8;

#[derive(Clone, Debug)]
pub struct LogOf<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub container: &'a str,
    /// Whether the log is that of the container's previous run.
    pub previous: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Tail {
    pub text: String,
    /// Whether earlier lines have been left out because of the limit in bytes.
    pub is_cut: bool,
}

/// Reads the end of a log, of at most `limit` bytes.
pub async fn tail(client: &Client, log: &LogOf<'_>, since: Option<i64>, limit: usize) -> Result<Tail, ReadError> {
    let mut lines = LINES;
    loop {
        // The API server counts the limit from the first of the lines, so that the last ones would be missing.
        let params = LogParams {
            container: Some(log.container.to_owned()),
            limit_bytes: i64::try_from(limit + 1).ok(),
            previous: log.previous,
            since_seconds: since,
            tail_lines: Some(lines),
            timestamps: true,
            ..LogParams::default()
        };
        let content = fetch(client, log.namespace, log.pod, &Part::Log(params)).await?;
        if content.len() <= limit || lines <= FEWEST {
            let is_cut = content.len() > limit || lines < LINES;
            return Ok(Tail { text: whole_lines(&content, limit), is_cut });
        }
        lines /= 4;
    }
}

/// Returns whole lines of a text, of at most `limit` bytes. A cut line is left out, because a credential in it might
/// not be recognized any more.
pub fn whole_lines(content: &[u8], limit: usize) -> String {
    let end = match content.get(..limit) {
        Some(start) if content.len() > limit => start.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        _ => content.len(),
    };
    String::from_utf8_lossy(&content[..end]).into_owned()
}

/// Reads the metrics that a pod serves at a port, through the API server.
pub async fn metrics(client: &Client, namespace: &str, pod: &str, port: i64) -> Result<String, ReadError> {
    let content = fetch(client, namespace, pod, &Part::Metrics(port)).await?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

enum Part {
    Log(LogParams),
    Metrics(i64),
}

async fn fetch(client: &Client, namespace: &str, pod: &str, part: &Part) -> Result<Vec<u8>, ReadError> {
    let plural = match part {
        Part::Log(_) => "pods/log",
        Part::Metrics(_) => "pods/proxy",
    };
    let (version, kind) = ("v1".to_owned(), "Pod".to_owned());
    let (group, api_version) = (String::new(), version.clone());
    let resource = ApiResource { group, version, api_version, kind, plural: plural.to_owned() };
    bytes(client, namespace, pod, part).await.map_err(|error| match error {
        // The pod, and not the resource, does not exist any more.
        kube::Error::Api(status) if status.is_not_found() => {
            ReadError::Rejected(format!("get {plural} {pod}"), kube::Error::Api(status))
        }
        error => classify("get", &resource, Some(pod), error),
    })
}

/// Returns the body of an answer. It may contain bytes that are no UTF-8.
async fn bytes(client: &Client, namespace: &str, pod: &str, part: &Part) -> Result<Vec<u8>, kube::Error> {
    let pods = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
    let request = match part {
        Part::Log(params) => pods.logs(pod, params),
        Part::Metrics(number) => pods.get_subresource("proxy/metrics", &format!("{pod}:{number}")),
    };
    let answer = client.send(request.map_err(kube::Error::BuildRequest)?.map(Body::from)).await?;
    let code = answer.status();
    let body = answer.into_body().collect_bytes().await?.to_vec();
    if code.is_success() {
        return Ok(body);
    }
    let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), code.canonical_reason().unwrap_or_default()).with_code(code.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::FakeApi;

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

    #[test]
    fn a_line_that_is_cut_is_left_out() {
        for (content, limit, shown) in [
            ("one\ntwo\n", 8, "one\ntwo\n"),
            ("one\ntwo\n", 7, "one\n"),
            ("one\ntwo\n", 4, "one\n"),
            ("one\ntwo", 7, "one\ntwo"),
            ("one\n", 2, ""),
            ("", 0, ""),
        ] {
            assert_eq!(whole_lines(content.as_bytes(), limit), shown, "{content:?} {limit}");
        }
        assert_eq!(whole_lines(b"a\xff\n", 9), "a\u{fffd}\n");
    }

    #[tokio::test]
    async fn fewer_lines_are_read_if_they_are_long() {
        let api = FakeApi::default();
        api.add_text("/api/v1/namespaces/a/pods/p/log", "token=canary\n123456789\n");
        let log = LogOf { namespace: "a", pod: "p", container: "c", previous: false };
        let whole = tail(&api.client(), &log, None, 100).await.expect("a log");
        assert_eq!((whole.is_cut, api.requests().len()), (false, 1));
        let cut = tail(&api.client(), &log, Some(60), 15).await.expect("a log");
        assert_eq!(cut, Tail { text: "token=canary\n".to_owned(), is_cut: true });
        let lines =
            |request: &String| request.split("tailLines=").nth(1).map(|rest| rest.split('&').next().map(str::to_owned));
        let asked: Vec<_> = api.requests().iter().skip(1).filter_map(lines).flatten().collect();
        assert_eq!(asked, ["8192", "2048", "512", "128", "32", "8"]);
        assert!(api.requests()[1].contains("sinceSeconds=60") && api.requests()[1].contains("limitBytes=16"));
    }
}
