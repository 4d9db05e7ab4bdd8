//! Windows of rollouts: when updates begin, and what happens to a node that waits when they close. The simulation begins on
//! 2026-01-01, a Thursday, at 00:00 UTC.

use gpu_operator_crd::{Phase, gpunode::RolloutStep, policy::Stage, reason::Reason};
use jiff::{SignedDuration, Timestamp};

use crate::{
    robust::{busy, loaded, rollout_spec, updating_fleet},
    sim::Sim,
};

const NODES: [&str; 2] = ["a", "b"];
const NEW: &str = "590.10.01";
/// From 10:00 to 12:00 UTC.
const MORNING: &str = "windows: [{start: '11:00', duration: 2h, timeZone: Europe/Berlin}]";
const OPENS: &str = "update pending: the next window of rollout.windows opens at 2026-01-01T10:00:00Z";

/// A settled fleet whose policy has this strategy and another driver version now. Every write obeys the laws.
fn updating(strategy: &str) -> Sim {
    updating_fleet(&NODES, &format!("{{{strategy}}}"))
}

fn spec(strategy: &str) -> String {
    rollout_spec(&format!("{{{strategy}}}"), NEW)
}

/// Waits until a time of the first days, and runs until nothing changes within a minute.
fn run_at(sim: &mut Sim, time: &str) {
    let time: Timestamp = format!("2026-01-{time}Z").parse().expect("a time");
    assert!(sim.now < time, "{} is over at {}", time, sim.now);
    sim.now = time;
    sim.run(400);
}

fn updated(sim: &mut Sim) -> Vec<&'static str> {
    NODES.into_iter().filter(|node| loaded(sim, node) == NEW).collect()
}

fn check_again(sim: &Sim) -> Option<Timestamp> {
    sim.plans.last().and_then(|plan| plan.check_again)
}

fn step_of(sim: &Sim, node: &str) -> Option<RolloutStep> {
    sim.spec(node).rollout.as_ref().map(|rollout| rollout.step)
}

#[test]
fn an_update_begins_only_in_a_window() {
    let mut sim = updating(MORNING);
    sim.run(60);
    for node in NODES {
        let status = sim.status(node);
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::RolloutPending)));
        assert_eq!(status.message, OPENS);
    }
    assert_eq!(check_again(&sim), "2026-01-01T10:00:00Z".parse().ok());
    run_at(&mut sim, "01T09:58:00");
    assert_eq!(updated(&mut sim), [""; 0]);
    run_at(&mut sim, "01T10:00:00");
    assert_eq!(updated(&mut sim), NODES);
    assert!(sim.now < "2026-01-01T12:00:00Z".parse().expect("a time"));
    assert_eq!(sim.condition("all", "Ready"), ("True".into(), "AllGpusAllocatable".into()));
}

#[test]
fn an_update_that_leaves_the_driver_begins_only_in_a_window() {
    let mut sim = Sim::settled_fleet("{}", &NODES);
    let plugins = |sim: &Sim| NODES.map(|node| sim.node(node).labels[Stage::DevicePlugin.key()].clone());
    let before = plugins(&sim);
    sim.apply_policy("all", &format!("{{rollout: {{{MORNING}}}, defaults: {{devicePlugin: {{args: [--new]}}}}}}"));
    sim.run(60);
    assert_eq!(plugins(&sim), before);
    assert_eq!(NODES.map(|node| sim.status(node).message), [OPENS; 2]);
    run_at(&mut sim, "01T10:00:00");
    assert!(plugins(&sim).iter().all(|plugin| !before.contains(plugin)));
    assert_eq!(NODES.map(|node| sim.status(node).reason()), [Some(Reason::AllGpusAllocatable); 2]);
}

#[test]
fn an_update_that_has_begun_goes_on_after_the_window() {
    let mut sim = updating(MORNING);
    sim.run(60);
    sim.now = "2026-01-01T11:59:58Z".parse().expect("a time");
    while step_of(&sim, "a").is_none_or(|step| step == RolloutStep::Await) {
        sim.step();
    }
    sim.now = "2026-01-01T12:00:00Z".parse().expect("a time");
    sim.run(400);
    assert_eq!(updated(&mut sim), ["a"]);
    assert!(sim.status("b").message.ends_with("opens at 2026-01-02T10:00:00Z"), "{}", sim.status("b").message);
    run_at(&mut sim, "02T10:00:00");
    assert_eq!(updated(&mut sim), NODES);
}

#[test]
fn a_node_that_awaits_its_pods_waits_for_the_next_window() {
    let mut sim = updating(&format!("gpuPods: {{mode: Await, timeout: 4h}}, {MORNING}"));
    busy(&mut sim, "a");
    sim.run(60);
    assert!(!sim.node("a").cordoned);
    for day in ["01", "02"] {
        run_at(&mut sim, &format!("{day}T10:00:00"));
        assert!(sim.node("a").own_cordon && sim.node("a").cordoned, "{day}");
        let message = sim.status("a").message;
        assert!(message.ends_with(&format!("until 2026-01-{day}T12:00:00Z at the latest")), "{message}");
        run_at(&mut sim, &format!("{day}T12:00:00"));
        assert!(!sim.node("a").own_cordon && !sim.node("a").cordoned && !sim.is_moving("a"), "{day}");
        let (status, next) = (sim.status("a"), sim.now + SignedDuration::from_hours(22));
        assert_eq!(status.reason(), Some(Reason::RolloutPending));
        let opens = next.to_string().split('T').next().map(|date| format!("{date}T10:00:00Z")).expect("a date");
        assert_eq!(status.message, format!("update pending: the next window of rollout.windows opens at {opens}"));
        assert_eq!(sim.spec("a").not_before, None);
        assert!(!sim.spec("a").report_holders);
        assert_eq!(sim.policy_status("all").rollout.slots, []);
    }
    sim.gpu_pods.clear();
    run_at(&mut sim, "03T10:00:00");
    assert_eq!(updated(&mut sim), NODES);
    assert!(sim.nodes.values().all(|node| !node.cordoned && !node.own_cordon));
}

#[test]
fn the_windows_of_a_pool_replace_those_of_its_policy() {
    let spec = |version: &str| {
        format!(
            "{{rollout: {{{MORNING}}}, pools: [{{name: p, match: {{nodeSelector: {{matchLabels: {{zone: a}}}}}}, rollout: \
             {{windows: [{{days: [Friday], start: '08:00', duration: 1h}}]}}}}], defaults: {{driver: {{version: {version}}}}}}}"
        )
    };
    let mut sim = Sim::new().policy("all", &spec("595.91.07"));
    for node in NODES {
        sim.join(node, "2330", 8);
    }
    sim.node_mut("a").labels.insert("zone".into(), "a".into());
    sim.settle();
    sim.apply_policy("all", &spec(NEW));
    sim.run(60);
    assert_eq!(sim.status("b").message, OPENS);
    assert!(sim.status("a").message.ends_with("opens at 2026-01-02T08:00:00Z"), "{}", sim.status("a").message);
    run_at(&mut sim, "01T10:00:00");
    assert_eq!(updated(&mut sim), ["b"]);
    run_at(&mut sim, "02T08:00:00");
    assert_eq!(updated(&mut sim), NODES);
}

#[test]
fn with_an_unknown_time_zone_no_update_begins() {
    const PROBLEM: &str = "rollout.windows: time zone Europe/Berlinn is unknown; write the name of a time zone of the IANA database, such as Europe/Berlin";
    let mut sim = updating("windows: [{start: '00:00', duration: 24h, timeZone: Europe/Berlinn}]");
    sim.run(60);
    sim.sleep(24 * 3600);
    sim.run(60);
    assert_eq!(updated(&mut sim), [""; 0]);
    assert_eq!(sim.status("a").message, format!("update pending: {PROBLEM}"));
    for (condition, status) in [("Accepted", "False"), ("Stalled", "True")] {
        assert_eq!(sim.condition("all", condition), (status.into(), "InvalidPolicy".into()));
        assert_eq!(sim.message("all", condition), PROBLEM);
    }
    sim.apply_policy("all", &spec("windows: [{start: '00:00', duration: 24h, timeZone: Europe/Berlin}]"));
    sim.run(400);
    assert_eq!(updated(&mut sim), NODES);
    assert_eq!(sim.condition("all", "Accepted").0, "True");
}

#[test]
fn an_unknown_time_zone_uncordons_an_awaiting_node() {
    let mut sim = updating("gpuPods: {mode: Await}");
    busy(&mut sim, "a");
    sim.run(60);
    assert!(sim.node("a").own_cordon);
    let zone = "windows: [{start: '00:00', duration: 24h, timeZone: Europe/Berlinn}]";
    sim.apply_policy("all", &spec(&format!("gpuPods: {{mode: Await}}, {zone}")));
    sim.run(60);
    assert!(!sim.node("a").cordoned && !sim.is_moving("a"));
}
