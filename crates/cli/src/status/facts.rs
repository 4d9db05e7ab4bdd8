//! The facts of `status`: the policies, the operator's Deployment and, on request, the GpuNodes. They are read once, or watched.

use std::{collections::BTreeMap, io};

use futures::{Stream, StreamExt, future, stream};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    runtime::{WatchStreamExt, watcher},
};
use serde::Serialize;
use thiserror::Error;

use crate::read::{self, ReadError};

/// The name of the operator's Deployment in the chart.
pub const DEPLOYMENT: &str = keys::OPERATOR_NAME;

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub policies: Vec<ClusterGpuPolicy>,
    /// The names of policies that cannot be parsed.
    pub unreadable: Vec<String>,
    pub operator: Operator,
    /// The GpuNodes, if they were requested.
    pub nodes: Option<Vec<GpuNode>>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

/// Whether the operator runs, so that the statuses are current.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Operator {
    #[default]
    Unknown,
    Available,
    Unavailable {
        /// The time since which it does not run.
        since: Option<Timestamp>,
    },
    /// There is none in this namespace.
    Absent {
        namespace: String,
    },
}

impl Operator {
    /// Returns the state that a Deployment in this namespace shows.
    pub fn of(deployment: Option<&Deployment>, namespace: &str) -> Self {
        let Some(deployment) = deployment else { return Self::Absent { namespace: namespace.to_owned() } };
        let conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_available = |condition: &&DeploymentCondition| condition.type_ == "Available";
        match conditions.into_iter().find(is_available) {
            Some(condition) if condition.status == "True" => Self::Available,
            condition => {
                let since = condition.and_then(|condition| condition.last_transition_time.as_ref());
                Self::Unavailable { since: since.map(|time| time.0) }
            }
        }
    }
}

/// Reads the facts: two requests, however many nodes there are, unless there are more policies than fit in a page.
pub async fn read(client: &Client, namespace: &str, policy: Option<&str>) -> Result<Facts, ReadError> {
    let mut facts = Facts::default();
    if let Some(name) = policy {
        facts.policies.extend(read::get(client, None, name).await?);
    } else {
        let listed = read::list(client, None, ListParams::default()).await?;
        (facts.policies, facts.unreadable) = (listed.items, listed.unreadable);
    }
    match read::get(client, Some(namespace), DEPLOYMENT).await {
        Ok(deployment) => facts.operator = Operator::of(deployment.as_ref(), namespace),
        Err(error) => facts.notes.push(format!("it is not known whether the operator runs: {error}")),
    }
    Ok(facts)
}

pub async fn nodes(client: &Client) -> Result<Vec<GpuNode>, ReadError> {
    Ok(read::list(client, None, ListParams::default()).await?.items)
}

#[derive(Debug, Error)]
pub enum StatusError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

enum Event {
    Policies(watcher::Result<watcher::Event<DynamicObject>>),
    Operator(watcher::Result<watcher::Event<DynamicObject>>),
}

/// The objects so far.
#[derive(Default)]
struct Known {
    /// The policies; `None` if one cannot be parsed.
    policies: BTreeMap<String, Option<ClusterGpuPolicy>>,
    is_complete: bool,
    /// The operator; `None` until its Deployment has been looked for.
    operator: Option<Operator>,
    /// The operator according to the list of Deployments so far.
    listed: Option<Operator>,
    /// Why the operator's state is not known.
    unknown: Option<String>,
    /// Why the statuses may be outdated.
    interrupted: Option<String>,
}

/// Returns the facts whenever they change, from the time at which policies and operator are known. After an error that later requests cannot correct,
/// such as a missing right, there is nothing more.
pub fn all(
    client: &Client,
    namespace: &str,
    policy: Option<&str>,
) -> impl Stream<Item = Result<Facts, ReadError>> + use<> {
    let named = |name: Option<&str>| {
        let fields = name.map(|name| format!("metadata.name={name}"));
        fields.map_or_else(watcher::Config::default, |fields| watcher::Config::default().fields(&fields))
    };
    let policies = Api::all_with(client.clone(), &ApiResource::erase::<ClusterGpuPolicy>(&()));
    let policies = watcher(policies, named(policy)).default_backoff();
    let deployments = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Deployment>(&()));
    let deployments = watcher(deployments, named(Some(DEPLOYMENT))).default_backoff();
    let namespace = namespace.to_owned();
    let events = stream::select(policies.map(Event::Policies), deployments.map(Event::Operator));
    let facts = events.scan((Known::default(), false), move |(known, is_over), event| {
        if *is_over {
            return future::ready(None);
        }
        let outcome = known.apply(event, &namespace);
        *is_over = outcome.is_err();
        future::ready(Some(match outcome {
            Ok(()) => known.facts().map(Ok),
            Err(error) => Some(Err(error)),
        }))
    });
    facts.filter_map(future::ready)
}

impl Known {
    /// Adds what an event says. The error is one that later requests cannot correct.
    fn apply(&mut self, event: Event, namespace: &str) -> Result<(), ReadError> {
        match event {
            Event::Policies(Ok(event)) => {
                self.interrupted = None;
                self.apply_policy(event);
            }
            Event::Policies(Err(error)) => match error_of::<ClusterGpuPolicy>(error) {
                error @ (ReadError::Forbidden(_) | ReadError::NotInstalled(_)) => return Err(error),
                error => self.interrupted = Some(error.to_string()),
            },
            Event::Operator(Ok(event)) => {
                self.unknown = None;
                self.apply_operator(event, namespace);
            }
            Event::Operator(Err(error)) => {
                self.operator = Some(Operator::Unknown);
                self.unknown = Some(error_of::<Deployment>(error).to_string());
            }
        }
        Ok(())
    }

    fn apply_policy(&mut self, event: watcher::Event<DynamicObject>) {
        match event {
            watcher::Event::Init => {
                self.policies.clear();
                self.is_complete = false;
            }
            watcher::Event::InitApply(policy) | watcher::Event::Apply(policy) => {
                self.policies.insert(policy.name_any(), policy.try_parse().ok());
            }
            watcher::Event::InitDone => self.is_complete = true,
            watcher::Event::Delete(policy) => drop(self.policies.remove(&policy.name_any())),
        }
    }

    fn apply_operator(&mut self, event: watcher::Event<DynamicObject>, namespace: &str) {
        let of = |deployment: DynamicObject| {
            deployment.try_parse().map_or(Operator::Unknown, |found| Operator::of(Some(&found), namespace))
        };
        let absent = || Operator::of(None, namespace);
        match event {
            watcher::Event::Init => self.listed = None,
            watcher::Event::InitApply(deployment) => self.listed = Some(of(deployment)),
            watcher::Event::InitDone => self.operator = Some(self.listed.take().unwrap_or_else(absent)),
            watcher::Event::Apply(deployment) => self.operator = Some(of(deployment)),
            watcher::Event::Delete(_) => self.operator = Some(absent()),
        }
    }

    /// Returns the facts, once all are known.
    fn facts(&self) -> Option<Facts> {
        let operator = self.operator.clone().filter(|_| self.is_complete)?;
        let unreadable = self.policies.iter().filter(|(_, policy)| policy.is_none());
        let unknown = self.unknown.iter().map(|error| format!("it is not known whether the operator runs: {error}"));
        let interrupted = self.interrupted.iter().map(|error| format!("this may be outdated: {error}"));
        Some(Facts {
            policies: self.policies.values().flatten().cloned().collect(),
            unreadable: unreadable.map(|(name, _)| name.clone()).collect(),
            operator,
            nodes: None,
            notes: interrupted.chain(unknown).collect(),
        })
    }
}

fn error_of<K: kube::Resource<DynamicType = ()>>(error: watcher::Error) -> ReadError {
    match error {
        watcher::Error::InitialListFailed(error) => read::error_of::<K>("list", error),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            read::error_of::<K>("watch", error)
        }
        watcher::Error::WatchError(status) => read::error_of::<K>("watch", kube::Error::Api(status)),
        error @ watcher::Error::NoResourceVersion => {
            read::error_of::<K>("watch", kube::Error::Service(Box::new(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    fn object(value: serde_json::Value) -> DynamicObject {
        serde_json::from_value(value).expect("an object")
    }

    fn policy(name: &str) -> DynamicObject {
        let (version, kind) = ("gpu.nodestack.dev/v1alpha1", "ClusterGpuPolicy");
        object(json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {}}))
    }

    fn failure(code: u16, reason: &str) -> watcher::Error {
        watcher::Error::WatchError(Box::new(Status::failure("no", reason).with_code(code)))
    }

    /// Returns the names of the policies, the operator's state and the number of notes after these events; `None` if not all is known.
    fn after(events: Vec<Event>) -> Result<Option<(Vec<String>, Operator, usize)>, ReadError> {
        let mut known = Known::default();
        for event in events {
            known.apply(event, "gpu-operator")?;
        }
        Ok(known.facts().map(|facts| {
            let names = facts.policies.iter().map(ResourceExt::name_any).chain(facts.unreadable).collect();
            (names, facts.operator, facts.notes.len())
        }))
    }

    fn policies(event: watcher::Event<DynamicObject>) -> Event {
        Event::Policies(Ok(event))
    }

    fn operator(event: watcher::Event<DynamicObject>) -> Event {
        Event::Operator(Ok(event))
    }

    fn deployment() -> DynamicObject {
        let conditions = json!([{"type": "Available", "status": "True"}]);
        object(json!({"metadata": {"name": DEPLOYMENT}, "status": {"conditions": conditions}}))
    }

    fn listed() -> Vec<Event> {
        vec![
            operator(Init),
            policies(Init),
            policies(InitApply(policy("a"))),
            policies(InitDone),
            operator(InitApply(deployment())),
            operator(InitDone),
        ]
    }

    #[test]
    fn the_facts_follow_the_watches() {
        let then = |more: Vec<Event>| {
            let events = listed().into_iter().chain(more).collect();
            after(events).expect("no error").expect("facts")
        };
        let strange = object(json!({"metadata": {"name": "b"}, "spec": 1}));
        assert_eq!(then(vec![policies(Apply(strange))]), (vec!["a".into(), "b".into()], Operator::Available, 0));
        assert!(then(vec![policies(Delete(policy("a")))]).0.is_empty());
        // A list after an interruption replaces what was known.
        assert!(then(vec![policies(Init), policies(InitDone)]).0.is_empty());
        let absent = Operator::Absent { namespace: "gpu-operator".to_owned() };
        assert_eq!(then(vec![operator(Init), operator(InitDone)]).1, absent);
        assert_eq!(then(vec![operator(Delete(deployment()))]).1, absent);
        // Until the list is complete, the operator is as before.
        assert_eq!(then(vec![operator(Init)]).1, Operator::Available);
    }

    #[test]
    fn there_are_no_facts_before_both_lists_are_complete() {
        for count in 0..listed().len() {
            assert_eq!(after(listed().into_iter().take(count).collect()).expect("no error"), None, "{count}");
        }
    }

    #[test]
    fn an_interruption_is_noted_and_a_missing_right_is_an_error() {
        let then = |more: Vec<Event>| after(listed().into_iter().chain(more).collect());
        let notes = |more: Vec<Event>| then(more).expect("no error").expect("facts").2;
        let interrupted = || Event::Policies(Err(failure(500, "InternalError")));
        assert_eq!(notes(vec![interrupted()]), 1);
        assert_eq!(notes(vec![interrupted(), policies(Apply(policy("a")))]), 0);
        let forbidden = || failure(403, "Forbidden");
        let error = then(vec![Event::Policies(Err(forbidden()))]).expect_err("an error");
        assert!(error.to_string().starts_with("the right to watch clustergpupolicies"), "{error}");
        assert_eq!(notes(vec![Event::Operator(Err(forbidden()))]), 1);
    }
}
