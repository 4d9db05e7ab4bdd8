//! The watches of the chart's admission policies, and what the metrics show.

use std::{sync::Arc, time::Duration};

use gpu_operator::{installation_watch::watch_admission_policies, metrics::Metrics};
use http::StatusCode;
use serde_json::json;
use test_api_server::{Api, Fault, Made};
use tokio::{task::LocalSet, time::sleep};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Creates a policy and its binding, as the chart does.
fn install(api: &Api, name: &str) {
    let policy = |object: &mut _| *object = json!({"spec": {"failurePolicy": "Fail"}});
    api.write("helm", &format!("{POLICIES}/{name}"), policy);
    bind(api, name, "Deny");
}

/// Binds a policy with this action.
fn bind(api: &Api, name: &str, action: &str) {
    let binding = |object: &mut serde_json::Value| {
        object["spec"] = json!({"policyName": name, "validationActions": [action]});
    };
    api.write("helm", &format!("{BINDINGS}/{name}"), binding);
}

/// Returns which policies are enforced.
fn shown(metrics: &Metrics) -> Vec<String> {
    let text = metrics.text().expect("a text");
    let series = text.lines().filter_map(|line| line.strip_prefix("gpu_operator_admission_policy_enforced"));
    let mut states: Vec<_> = series.map(str::to_owned).collect();
    states.sort();
    states
}

fn series(name: &str, is_enforced: u8) -> String {
    format!(r#"{{admission_policy="{name}"}} {is_enforced}"#)
}

/// Follows policies `a` and `b`, which may not exist.
fn start(api: &Api) -> (LocalSet, Arc<Metrics>) {
    let (tasks, metrics) = (LocalSet::new(), Arc::<Metrics>::default());
    for follow in watch_admission_policies(&api.client(), vec!["a".into(), "b".into()], &metrics) {
        tasks.spawn_local(follow);
    }
    (tasks, metrics)
}

#[tokio::test(start_paused = true)]
async fn a_removed_or_weakened_binding_is_shown_at_once() {
    let api = Api::new();
    install(&api, "a");
    install(&api, "b");
    let (tasks, metrics) = start(&api);
    let seconds = |seconds| tasks.run_until(sleep(Duration::from_secs(seconds)));
    seconds(1).await;
    assert_eq!(shown(&metrics), [series("a", 1), series("b", 1)]);
    api.delete(&format!("{BINDINGS}/a"));
    bind(&api, "b", "Audit");
    seconds(1).await;
    assert_eq!(shown(&metrics), [series("a", 0), series("b", 0)]);
    bind(&api, "a", "Deny");
    api.delete(&format!("{POLICIES}/b"));
    seconds(1).await;
    assert_eq!(shown(&metrics), [series("a", 1), series("b", 0)]);
}

#[tokio::test(start_paused = true)]
async fn settled_policies_cause_no_requests_but_watches() {
    let api = Api::new();
    install(&api, "a");
    let (tasks, metrics) = start(&api);
    let minutes = |minutes| tasks.run_until(sleep(Duration::from_mins(minutes)));
    minutes(1).await;
    let first = api.take();
    assert_eq!(first.iter().filter(|made| made.is_list()).count(), 4, "{first:?}");
    let fields = |made: &Made| made.query.get("fieldSelector").cloned().unwrap_or_default();
    assert!(first.iter().all(|made| ["metadata.name=a", "metadata.name=b"].contains(&&*fields(made))), "{first:?}");
    minutes(60).await;
    let settled = api.take();
    assert!(settled.iter().all(Made::is_watch), "{settled:?}");
    assert!(settled.len() < 4 * 15, "{}", settled.len());
    assert_eq!(shown(&metrics), [series("a", 1), series("b", 0)]);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_is_unknown_but_not_in_an_outage() {
    let api = Api::new();
    install(&api, "a");
    api.fail(|made| made.path == POLICIES, Fault::Refused(StatusCode::FORBIDDEN));
    let (tasks, metrics) = start(&api);
    let minutes = |minutes| tasks.run_until(sleep(Duration::from_mins(minutes)));
    minutes(5).await;
    // The missing binding of b is known.
    assert_eq!(shown(&metrics), [series("b", 0)]);
    let made = api.take().len();
    assert!(made < 60, "{made} requests");
    api.heal();
    install(&api, "b");
    minutes(5).await;
    assert_eq!(shown(&metrics), [series("a", 1), series("b", 1)]);
    api.fail(|_| true, Fault::Refused(StatusCode::INTERNAL_SERVER_ERROR));
    api.expire();
    minutes(5).await;
    assert_eq!(shown(&metrics), [series("a", 1), series("b", 1)]);
    // The API server does not serve the kinds.
    api.fail(|_| true, Fault::Refused(StatusCode::NOT_FOUND));
    minutes(5).await;
    assert_eq!(shown(&metrics), [""; 0]);
}
