//! `rollout`: attempts failed updates of a policy again, and pauses and resumes its rollout.

use std::io;

use gpu_operator_crd::{ClusterGpuPolicy, keys};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, ListParams, Patch, PatchParams},
};
use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::{
    context::{Context, Outcome},
    output::{Output, Screen, Tone, wrap},
    read::{self, ReadError, classify},
};

/// How often a write is attempted. The operator writes the policy's status meanwhile, which changes its version.
const ATTEMPTS: usize = 5;
/// The field manager of what this command writes.
const MANAGER: &str = "kubectl-gpu_fleet";

/// Attempts failed updates of a policy again, or pauses and resumes its rollout.
#[derive(clap::Args, Debug)]
pub struct Rollout {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Attempt the failed updates of a policy again, by a new value of its annotation gpu.nodestack.dev/retry.
    Retry(Target),
    /// Let no further update begin, by spec.rollout.paused. Engines such as Argo CD and Flux revert this: use the policy's source.
    Pause(Target),
    /// Let updates begin again, by spec.rollout.paused. Engines such as Argo CD and Flux revert this: use the policy's source.
    Resume(Target),
}

#[derive(clap::Args, Debug)]
struct Target {
    /// Name of the policy.
    policy: String,
    /// Only print what would be written.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

/// A reason why the rollout of a policy cannot be changed.
#[derive(Debug, Error)]
pub enum RolloutError {
    /// The policy does not exist.
    #[error("there is no policy {name}; {others}")]
    NoPolicy {
        /// Name of the policy.
        name: String,
        /// Which policies exist.
        others: String,
    },
    /// The policy may not be written.
    #[error("the right to patch {0} is missing; bind the ClusterRole nodestack-gpu-operator-edit of the chart")]
    Forbidden(String),
    /// Each attempt to write found that the policy had changed.
    #[error("policy {0} changes too often to be written; run the command again")]
    Conflict(String),
    /// The API server does not answer a request, or rejects it.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The report cannot be printed.
    #[error("cannot write the output: {0}")]
    Print(#[from] io::Error),
}

/// What the command writes, and why.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Report {
    policy: String,
    /// The field or annotation that is written.
    field: String,
    from: Option<String>,
    /// The new value. Absent if there is nothing to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// The pools whose updates are attempted again, or that have their own setting.
    pools: Vec<PoolReport>,
    written: bool,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct PoolReport {
    name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<String>,
    /// Why the nodes returned to the previous revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    rolled_back: String,
    /// The pool's own `rollout.paused`, which replaces the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<bool>,
}

impl Rollout {
    /// Changes the policy, and prints what has been written.
    pub async fn run(&self, context: &Context) -> Result<Outcome, RolloutError> {
        let (Verb::Retry(target) | Verb::Pause(target) | Verb::Resume(target)) = &self.verb;
        let mut attempts = ATTEMPTS;
        let report = loop {
            let policy = policy(&context.client, &target.policy).await?;
            let mut report = self.verb.report(&policy, context.now);
            let Some(patch) = self.verb.patch(&policy, &report).filter(|_| !target.dry_run) else { break report };
            if attempts == 0 {
                return Err(RolloutError::Conflict(target.policy.clone()));
            }
            attempts -= 1;
            if write(&context.client, &target.policy, &patch).await? {
                report.written = true;
                break report;
            }
        };
        target.output.print(&report, |report| self.verb.text(report, context.screen))?;
        Ok(Outcome::Good)
    }
}

impl Verb {
    fn report(&self, policy: &ClusterGpuPolicy, now: Timestamp) -> Report {
        match self {
            Self::Retry(_) => retry(policy, now),
            Self::Pause(_) => pause(policy, true),
            Self::Resume(_) => pause(policy, false),
        }
    }

    /// Returns the merge patch, or nothing if there is nothing to write. It applies only to the version of the policy that was read.
    fn patch(&self, policy: &ClusterGpuPolicy, report: &Report) -> Option<Value> {
        let to = report.to.as_ref()?;
        let mut patch = json!({"metadata": {"resourceVersion": policy.resource_version()}});
        match self {
            Self::Retry(_) => patch["metadata"]["annotations"] = json!({keys::RETRY: to}),
            Self::Pause(_) | Self::Resume(_) => {
                patch["spec"] = json!({"rollout": {"paused": matches!(self, Self::Pause(_))}});
            }
        }
        Some(patch)
    }

    fn text(&self, report: &Report, screen: Screen) -> String {
        let Report { policy, field, to, pools, written, .. } = report;
        let mut lines = Vec::new();
        let subject =
            if to.is_some() && !written { format!("policy {policy}, dry run") } else { format!("policy {policy}") };
        let headline = match (self, to.is_some()) {
            (Self::Retry(_), false) => "no update has failed; there is nothing to attempt again",
            (Self::Retry(_), true) => "failed updates are attempted again",
            (Self::Pause(_), false) => "is already paused",
            (Self::Pause(_), true) => "no further update begins",
            (Self::Resume(_), false) => "is not paused",
            (Self::Resume(_), true) => "updates begin again",
        };
        lines.extend(wrap(&format!("{subject}: {headline}"), "", 2));
        for PoolReport { name, failed, rolled_back, paused } in pools {
            if !failed.is_empty() {
                lines.extend(wrap(&failed.join(" "), &format!("  pool {name}: "), 4));
            }
            if !rolled_back.is_empty() {
                lines.extend(wrap(&format!("rolled back: {rolled_back}"), &format!("  pool {name}: "), 4));
            }
            if let Some(paused) = paused {
                let text = format!("keeps its own setting, rollout.paused: {paused}");
                lines.extend(wrap(&text, &format!("  pool {name}: "), 4));
            }
        }
        if let Some(to) = to {
            let arrow = screen.arrow();
            let from = report.from.as_deref().unwrap_or("not set");
            let state = if *written { "written" } else { "not written" };
            let text = screen.paint(Tone::Quiet, &format!("{state}: {field} {from} {arrow} {to}"));
            lines.extend(wrap(&text, "", 2));
        }
        lines.join("\n") + "\n"
    }
}

fn retry(policy: &ClusterGpuPolicy, now: Timestamp) -> Report {
    let from = policy.annotations().get(keys::RETRY).cloned();
    let status = policy.status.as_ref().map(|status| &status.rollout);
    let pools = status.into_iter().flat_map(|rollout| &rollout.pools);
    let failed = pools.filter(|pool| !pool.failed.is_empty() || !pool.rolled_back.is_empty());
    let report = failed.map(|pool| {
        let failed = pool.failed.iter().map(ToString::to_string).collect();
        PoolReport { name: pool.pool.to_string(), failed, rolled_back: pool.rolled_back.clone(), paused: None }
    });
    let pools: Vec<PoolReport> = report.collect();
    let seconds = now.as_second();
    // With the value that it has, nothing would be attempted again.
    let new = if from.as_ref() == Some(&seconds.to_string()) { seconds + 1 } else { seconds };
    let to = (!pools.is_empty()).then(|| new.to_string());
    Report { policy: policy.name_any(), field: keys::RETRY.to_owned(), from, to, pools, written: false }
}

fn pause(policy: &ClusterGpuPolicy, paused: bool) -> Report {
    let from = policy.spec.rollout.paused;
    let paused_pools = policy
        .spec
        .pools
        .iter()
        .filter(|pool| !paused && pool.rollout.as_ref().is_some_and(|rollout| rollout.paused == Some(true)));
    let pools = paused_pools.map(|pool| PoolReport {
        name: pool.name.to_string(),
        failed: Vec::new(),
        rolled_back: String::new(),
        paused: Some(true),
    });
    Report {
        policy: policy.name_any(),
        field: "spec.rollout.paused".to_owned(),
        from: from.map(|from| from.to_string()),
        to: (from.unwrap_or_default() != paused).then(|| paused.to_string()),
        pools: pools.collect(),
        written: false,
    }
}

async fn policy(client: &Client, name: &str) -> Result<ClusterGpuPolicy, RolloutError> {
    if let Some(policy) = read::get::<ClusterGpuPolicy>(client, None, name).await? {
        return Ok(policy);
    }
    let others = match read::list::<ClusterGpuPolicy>(client, None, ListParams::default()).await {
        Ok(listed) => {
            let mut names: Vec<String> =
                listed.items.iter().map(ResourceExt::name_any).chain(listed.unreadable).collect();
            names.sort();
            if names.is_empty() {
                "there are no policies".to_owned()
            } else {
                format!("there are: {}", names.join(", "))
            }
        }
        Err(ReadError::Forbidden(right)) => format!("the right to {right} is missing, so it is not known which exist"),
        Err(error) => return Err(error.into()),
    };
    Err(RolloutError::NoPolicy { name: name.to_owned(), others })
}

/// Returns false if the policy has changed since it was read.
async fn write(client: &Client, name: &str, patch: &Value) -> Result<bool, RolloutError> {
    let api = Api::<ClusterGpuPolicy>::all(client.clone());
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let resource = ApiResource::erase::<ClusterGpuPolicy>(&());
    match api.patch_metadata(name, &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            let (plural, group) = (ClusterGpuPolicy::plural(&()), ClusterGpuPolicy::group(&()));
            Err(RolloutError::Forbidden(format!("{plural}.{group}")))
        }
        Err(error) => Err(classify("patch", &resource, Some(name), error).into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::testing::FakeApi;

    const PATH: &str = "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/all";

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        rollout: Rollout,
    }

    fn add(api: &FakeApi, pools: &Value) {
        let metadata = json!({"name": "all", "resourceVersion": "7", "annotations": {keys::RETRY: "100"}});
        let own = json!([{"name": "lab", "rollout": {"paused": true}}]);
        let status = json!({"rollout": {"pools": pools}});
        api.add_json(PATH, json!({"metadata": metadata, "spec": {"pools": own}, "status": status}));
    }

    fn failed() -> Value {
        json!([
            {"pool": "h100", "revision": "1", "failed": ["a", "b"], "rolledBack": "node a: DriverFailed"},
            {"pool": "k80", "revision": "1"},
        ])
    }

    async fn run(api: &FakeApi, seconds: i64, arguments: &[&str]) -> Result<(), String> {
        let now = Timestamp::from_second(seconds).expect("a time");
        let context = Context { client: api.client(), namespace: "default".to_owned(), screen: Screen::default(), now };
        let rollout = Arguments::parse_from(["x"].iter().chain(arguments)).rollout;
        let outcome = rollout.run(&context).await.map_err(|error| error.to_string())?;
        assert_eq!(outcome, Outcome::Good);
        Ok(())
    }

    fn writes(api: &FakeApi) -> usize {
        api.requests().iter().filter(|request| !request.starts_with("GET ")).count()
    }

    #[tokio::test]
    async fn a_retry_writes_another_value_of_the_annotation() {
        for (seconds, value) in [(200, "200"), (100, "101")] {
            let api = FakeApi::default();
            add(&api, &failed());
            run(&api, seconds, &["retry", "all", "--dry-run"]).await.expect("good");
            assert_eq!(writes(&api), 0);
            run(&api, seconds, &["retry", "all"]).await.expect("good");
            let policy = api.get(PATH).expect("the policy");
            assert_eq!((writes(&api), policy["metadata"]["annotations"][keys::RETRY].as_str()), (1, Some(value)));
        }
    }

    #[tokio::test]
    async fn nothing_is_written_if_nothing_has_failed() {
        let api = FakeApi::default();
        add(&api, &json!([{"pool": "k80", "revision": "1"}]));
        run(&api, 200, &["retry", "all"]).await.expect("good");
        run(&api, 200, &["resume", "all"]).await.expect("good");
        assert_eq!(writes(&api), 0);
    }

    #[tokio::test]
    async fn a_rollout_is_paused_and_resumed() {
        let api = FakeApi::default();
        add(&api, &json!([]));
        for (verb, paused) in [("pause", true), ("resume", false)] {
            run(&api, 200, &[verb, "all"]).await.expect("good");
            run(&api, 200, &[verb, "all"]).await.expect("good");
            assert_eq!(api.get(PATH).expect("the policy")["spec"]["rollout"]["paused"], paused);
        }
        assert_eq!(writes(&api), 2);
    }

    #[tokio::test]
    async fn errors_name_policies_and_rights() {
        let api = FakeApi::default();
        let error = run(&api, 200, &["retry", "other"]).await.expect_err("an error");
        assert_eq!(error, "there is no policy other; there are no policies");
        add(&api, &failed());
        let error = run(&api, 200, &["retry", "other"]).await.expect_err("an error");
        assert_eq!(error, "there is no policy other; there are: all");
        api.forbid("clustergpupolicies");
        let error = run(&api, 200, &["retry", "all"]).await.expect_err("an error");
        assert!(error.starts_with("the right to get clustergpupolicies.gpu.nodestack.dev is missing"), "{error}");
        let error = write(&api.client(), "all", &json!({})).await.expect_err("an error").to_string();
        assert!(error.ends_with("bind the ClusterRole nodestack-gpu-operator-edit of the chart"), "{error}");
    }

    #[test]
    fn the_text_names_pools_and_nodes() {
        let api = FakeApi::default();
        add(&api, &failed());
        let policy = serde_json::from_value(api.get(PATH).expect("the policy")).expect("a policy");
        let text = |verb: &str| {
            let Rollout { verb } = Arguments::parse_from(["x", verb, "all"]).rollout;
            let now = Timestamp::from_second(200).expect("a time");
            verb.text(&verb.report(&policy, now), Screen::default())
        };
        let lines = [
            "policy all, dry run: failed updates are attempted again",
            "  pool h100: a b",
            "  pool h100: rolled back: node a: DriverFailed",
            "not written: gpu.nodestack.dev/retry 100 -> 200",
        ];
        assert_eq!(text("retry"), lines.join("\n") + "\n");
        let lines =
            ["policy all, dry run: no further update begins", "not written: spec.rollout.paused not set -> true"];
        assert_eq!(text("pause"), lines.join("\n") + "\n");
        let lines = ["policy all: is not paused", "  pool lab: keeps its own setting, rollout.paused: true"];
        assert_eq!(text("resume"), lines.join("\n") + "\n");
    }
}
