use std::sync::Arc;

use gpu_operator_crd::NodeName;
use k8s_openapi::api::core::v1::Pod;
use kube::core::ObjectMeta;

use super::*;
use crate::{
    loop_memory::retry::Class,
    world::{NodeFacts, OwnCondition, TaintWrite},
};

const HOUR: u64 = 3600;

/// Plans and makes the write of each second for which `planned` returns one, and returns the seconds of those that were made.
fn made(retry: &mut Retry, seconds: std::ops::Range<u64>, planned: impl Fn(u64) -> Option<&'static str>) -> Vec<u64> {
    let name = NodeName::from("a");
    let world =
        World { nodes: [(name.clone(), Arc::new(NodeFacts::default()))].into_iter().collect(), ..World::default() };
    let mut made = Vec::new();
    for second in seconds {
        let Some(message) = planned(second) else { continue };
        let now = Uptime::from_secs(second);
        let since = jiff::Timestamp::from_second(second.cast_signed()).ok();
        let condition = OwnCondition { message: message.into(), since, ..OwnCondition::default() };
        let write = Write::new(&name, Body::Conditions([(keys::HEALTH_CONDITION, condition)].into()));
        retry.note(&write, &world, now);
        if !retry.holds(&write, now) {
            retry.succeeded(&write, now);
            made.push(second);
        }
    }
    made
}

#[test]
fn a_fight_costs_at_most_twelve_repairs_in_any_hour() {
    let made = made(&mut Retry::default(), 0..5 * HOUR, |_| Some("x"));
    assert_eq!(made[..9], [0, 1, 2, 3, 4, 5, 95, 275, 635]);
    let repairs = &made[1..];
    for start in repairs {
        let within = repairs.iter().filter(|at| (*start..start + HOUR).contains(at)).count();
        assert!(within <= 12, "{within} from {start}: {repairs:?}");
    }
    assert!(repairs.windows(2).all(|pair| pair[1] - pair[0] <= 600), "repairs go on: {repairs:?}");
}

#[test]
fn a_write_that_changes_with_the_facts_is_never_held() {
    let alternates = |second: u64| Some(if second.is_multiple_of(2) { "x" } else { "y" });
    assert_eq!(made(&mut Retry::default(), 0..HOUR, alternates).len(), 3600);
}

#[test]
fn after_an_hour_without_a_repair_the_budget_is_full_again() {
    let mut retry = Retry::default();
    let before = made(&mut retry, 0..HOUR, |_| Some("x"));
    let last = before.last().copied().unwrap();
    for (quiet, at_once) in [(HOUR - 1, 1), (2 * HOUR, 6)] {
        let mut retry = retry.clone();
        let again = last + quiet;
        retry.begin(&mut Vec::new(), &World::default(), Uptime::from_secs(again));
        assert_eq!(made(&mut retry, again..again + 60, |_| Some("x")).len(), at_once);
    }
}

#[test]
fn a_fight_ends_when_no_repair_has_been_needed_for_ten_minutes() {
    let mut retry = Retry::default();
    made(&mut retry, 0..60, |_| Some("x"));
    let report = |retry: &Retry| {
        let mut world = World::default();
        retry.annotate(&mut world, Uptime::ZERO);
        world.contested_nodes.len()
    };
    let end = Uptime::from_secs(59) + MAX_PAUSE;
    let mut pass = |now| {
        retry.begin(&mut Vec::new(), &World::default(), now);
        (report(&retry), retry.next())
    };
    assert_eq!(pass(end.saturating_sub(SOON)), (1, Some(end)));
    assert_eq!(pass(end), (0, None));
}

#[test]
fn the_pause_of_a_failure_doubles_until_it_is_resolved() {
    let forbidden = || Failure { class: Class::Forbidden, message: "failed to label node a: no".into() };
    let [a, b] = ["a", "b"].map(|node| Write::new(node, Body::Taints(TaintWrite::default())));
    let (mut retry, mut now) = (Retry::default(), Uptime::ZERO);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        retry.failed(&a, forbidden(), now);
        assert!(retry.holds(&a, now) && !retry.holds(&b, now));
        let next = retry.next().unwrap();
        assert!(!retry.holds(&a, next));
        pauses.push(next.saturating_sub(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
    let mut world = World::default();
    retry.annotate(&mut world, now);
    assert_eq!(world.held_writes[0].concerns, Concern::Node("a".into()));
    let begin = |retry: &mut Retry, write: &Write| retry.begin(&mut vec![write.clone()], &World::default(), now);
    assert!(!begin(&mut retry, &a) && retry.next().is_some());
    assert!(begin(&mut retry, &b), "it is not needed any more");
    assert_eq!(retry, Retry::default());
    retry.failed(&a, forbidden(), now);
    assert!(retry.succeeded(&a, now));
    assert_eq!(retry.next(), None);
}

#[test]
fn a_write_that_fails_for_a_minute_is_reported() {
    let pod =
        Pod { metadata: ObjectMeta { name: Some("preflight-a".into()), ..ObjectMeta::default() }, ..Pod::default() };
    let pod = Write::new("preflight-a", Body::Pod(Box::new(pod)));
    let eviction = Write::new("team/a", Body::Eviction("uid".into()));
    for class in [Class::Refused, Class::Unreachable, Class::TooManyRequests, Class::Conflict, Class::NotFound] {
        let (mut retry, at) = (Retry::default(), Uptime::from_secs);
        let report = |retry: &Retry, second| {
            let mut world = World::default();
            retry.annotate(&mut world, at(second));
            (world.held_writes.len(), world.refused_pods.len(), world.refused_evictions.len())
        };
        for second in [0, 30] {
            for write in [&pod, &eviction] {
                retry.failed(write, Failure { class, message: "no".into() }, at(second));
            }
        }
        assert_eq!(report(&retry, 59), (0, 1, 1), "{class:?}");
        assert_eq!(report(&retry, 60), (1, 1, 1), "{class:?}");
        retry.succeeded(&pod, at(61));
        retry.failed(&pod, Failure { class, message: "no".into() }, at(62));
        assert_eq!(report(&retry, 121), (0, 1, 1), "{class:?}");
    }
}
