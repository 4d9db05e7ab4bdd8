//! Evictions, and their checks.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator::error::Error;
use gpu_operator_plan::{
    Plan,
    loop_memory::{Class, LoopState},
    output::{body::Body, write::Write},
    world::World,
};
use http::{Method, StatusCode};
use serde_json::json;
use test_api_server::{Api, Fault};

use crate::writes::{apply, carry_out, driver};

/// Returns an API server with pods, most of which have a PodDisruptionBudget.
fn pods_with_budgets() -> Api {
    let api = Api::new();
    for (name, app) in [("free", "free"), ("held", "held"), ("twice", "twice"), ("another", "free")] {
        api.write("user", &format!("/api/v1/namespaces/team/pods/{name}"), |pod| {
            *pod = json!({"metadata": {"uid": format!("uid of {name}"), "labels": {"app": app}}});
        });
    }
    for (name, app, allowed) in [("open", "free", 1), ("web", "held", 0), ("one", "twice", 1), ("two", "twice", 1)] {
        api.write("user", &format!("/apis/policy/v1/namespaces/team/poddisruptionbudgets/{name}"), |budget| {
            let selector = json!({"matchLabels": {"app": app}});
            *budget = json!({"spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}});
        });
    }
    api
}

#[tokio::test]
async fn evictions_respect_budgets_and_name_them() {
    let api = pods_with_budgets();
    let evict = |name: &str, uid: &str| Write::new(format!("team/{name}"), Body::Eviction(uid.to_owned()));
    let mut writes: Vec<_> =
        ["free", "gone", "held", "twice"].map(|name| evict(name, &format!("uid of {name}"))).into();
    writes.push(evict("another", "uid of its predecessor"));
    let (plan, mut carry) = (Plan { writes, ..Plan::default() }, LoopState::default());
    let written = carry_out(&driver(&api), &plan, &mut carry).await;
    let made = api.take();
    assert!(
        made.iter()
            .all(|made| made.method == Method::POST && made.body["deleteOptions"]["preconditions"]["uid"].is_string())
    );
    let pods = "/api/v1/namespaces/team/pods";
    assert_eq!(api.paths(pods), ["another", "held", "twice"].map(|name| format!("{pods}/{name}")));
    let classes: BTreeMap<_, _> = written
        .iter()
        .map(|written| (&*written.write.target.name, written.result.as_ref().err().map(Error::class)))
        .collect();
    let expected = [
        ("team/another", None),
        ("team/free", None),
        ("team/gone", None),
        ("team/held", Some(Class::TooManyRequests)),
        ("team/twice", Some(Class::Refused)),
    ];
    assert_eq!(classes, expected.into());
    // The next plan knows why.
    let mut world = World::default();
    carry.annotate(&mut world, Duration::ZERO);
    let why = world.refused_evictions;
    assert_eq!(why.len(), 2, "{why:?}");
    assert!(
        why["team/held"].ends_with("The disruption budget web needs 1 healthy pods and has 1 currently"),
        "{why:?}"
    );
    assert!(why["team/twice"].contains("more than one PodDisruptionBudget"), "{why:?}");
}

#[tokio::test]
async fn an_eviction_is_checked_without_evicting() {
    let api = pods_with_budgets();
    let pods = "/api/v1/namespaces/team/pods";
    // Its admission webhook has side effects.
    api.fail(|made| made.names("another"), Fault::Refused(StatusCode::BAD_REQUEST));
    let check = |name: &str| Write::new(format!("team/{name}"), Body::EvictionCheck(format!("uid of {name}")));
    let plan = Plan { writes: ["another", "free", "gone", "held"].map(check).into(), ..Plan::default() };
    let mut carry = LoopState::default();
    let written = carry_out(&driver(&api), &plan, &mut carry).await;
    let made = api.take();
    assert!(made.len() == 4 && made.iter().all(|made| made.query["dryRun"] == "All"), "{made:?}");
    assert_eq!(api.paths(pods), ["another", "free", "held", "twice"].map(|name| format!("{pods}/{name}")));
    let refused = written.iter().filter(|written| written.result.is_err());
    assert_eq!(refused.map(|written| &*written.write.target.name).collect::<Vec<_>>(), ["team/held"], "{written:?}");
    let mut world = World::default();
    carry.annotate(&mut world, Duration::ZERO);
    let allowed = ["another", "free", "gone"].map(|name| (format!("team/{name}"), format!("uid of {name}")));
    assert_eq!(world.allowed_evictions, allowed.into());
    let why = world.refused_evictions;
    assert!(why.len() == 1 && why["team/held"].contains("The disruption budget web needs 1 healthy pods"), "{why:?}");
    // Not for an eviction itself.
    let evict = Write::new("team/another", Body::Eviction("uid of another".to_owned()));
    let written = apply(&api, &Plan { writes: vec![evict], ..Plan::default() }).await;
    assert_eq!(written[0].result.as_ref().err().map(Error::class), Some(Class::Refused), "{written:?}");
}
