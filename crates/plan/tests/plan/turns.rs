//! The turn of one node: what its pods' fates, a pause, a window, or another layout or MPS daemon mean for it.

use std::time::Duration;

use gpu_operator_crd::{gpunode::RolloutStep, policy::Stage, reason::Reason};
use gpu_operator_plan::{
    output::body::Body,
    world::{GpuPod, PodOwner},
};
use jiff::Timestamp;

use crate::{
    mig::mixed,
    robust::{busy, loaded, updating_fleet},
    sim::Sim,
};

const NEW: &str = "590.10.01";

/// Returns a fleet of one node, whose driver changes, with a pod of a ReplicaSet, `team/web`.
fn fleet(strategy: &str) -> Sim {
    let mut sim = updating_fleet(&["a"], &format!("{{{strategy}}}"));
    add(&mut sim, "team/web", GpuPod::default());
    sim
}

fn add(sim: &mut Sim, name: &str, facts: GpuPod) {
    sim.gpu_pods.entry("a".into()).or_default().push(name.into());
    sim.pod_facts.insert(name.into(), facts);
}

/// Returns the pods that were evicted, without refused evictions.
fn evicted(sim: &Sim) -> Vec<&str> {
    let writes = sim.plans.iter().flat_map(|plan| &plan.writes);
    let evictions = writes.filter(|write| matches!(write.body, Body::Eviction(_)));
    let mut pods: Vec<_> = evictions.map(|write| write.target.name.as_str()).collect();
    pods.dedup();
    pods
}

fn step_of(sim: &Sim) -> Option<RolloutStep> {
    sim.spec("a").rollout.as_ref().map(|rollout| rollout.step)
}

fn run_until(sim: &mut Sim, what: &str, is_so: impl Fn(&Sim) -> bool) {
    for _ in 0..300 {
        if is_so(sim) {
            return;
        }
        sim.steps(1);
    }
    panic!("not {what}: {:#?} {:#?}", sim.spec("a"), sim.status("a"));
}

/// Evicts `team/web`, which then ends slowly.
fn evict_slowly(sim: &mut Sim) {
    run_until(sim, "evicted", |sim| !evicted(sim).is_empty());
    let gone_by = Some(sim.now);
    sim.gpu_pods.entry("a".into()).or_default().push("team/web".into());
    sim.pod_facts.insert("team/web".into(), GpuPod { gone_by, ..GpuPod::default() });
    sim.steps(5);
}

#[test]
fn waiting_for_pods_in_release_is_no_failure() {
    let mut sim = fleet("gpuPods: {mode: Evict, timeout: 1h}");
    add(&mut sim, "team/agent", GpuPod { owner: PodOwner::DaemonSet, ..GpuPod::default() });
    run_until(&mut sim, "releasing", |sim| step_of(sim) == Some(RolloutStep::Release));
    sim.budgets.insert("team/agent".into(), "needs 1 healthy pods".into());
    let since = sim.now;
    run_until(&mut sim, "refused", |sim| sim.status("a").reason() == Some(Reason::EvictionBlocked));
    // Longer than a step may take.
    sim.sleep(40 * 60);
    sim.steps(5);
    assert_eq!(step_of(&sim), Some(RolloutStep::Release));
    sim.now = since + jiff::SignedDuration::from_mins(61);
    sim.steps(5);
    assert_eq!((step_of(&sim), loaded(&mut sim, "a").as_str()), (None, "595.91.07"));
    sim.steps(60);
    assert_eq!(sim.node("a").allocatable.total(), 8, "the node has its plugin again");
    assert!(!sim.node("a").cordoned && sim.spec("a").not_before.is_some());
    assert_eq!(sim.condition("all", "Stalled").0, "False");
}

#[test]
fn a_halt_gives_back_what_has_nothing_new_yet() {
    for evicts in [false, true] {
        let mut sim = updating_fleet(&["a", "b"], "{maxParallel: 2, maxUnavailable: 100%, gpuPods: {mode: Evict}}");
        add(&mut sim, "team/web", GpuPod::default());
        if evicts {
            evict_slowly(&mut sim);
        } else {
            add(&mut sim, "team/agent", GpuPod { owner: PodOwner::DaemonSet, ..GpuPod::default() });
            run_until(&mut sim, "releasing", |sim| step_of(sim) == Some(RolloutStep::Release));
            sim.budgets.insert("team/agent".into(), "no".into());
        }
        let crash = crate::sim::Faults { driver_crash: Some("no".into()), ..Default::default() };
        sim.faults.insert("b".into(), crash);
        sim.report("b").driver.loaded = None;
        run_until(&mut sim, "halted", |sim| sim.condition("all", "Stalled").1 == "RolloutHalted");
        sim.steps(60);
        assert_eq!((step_of(&sim), sim.node("a").cordoned), (None, false), "{evicts}");
        assert_eq!((loaded(&mut sim, "a").as_str(), sim.node("a").allocatable.total()), ("595.91.07", 8), "{evicts}");
        assert_eq!(sim.status("a").reason(), Some(Reason::RolloutPending), "{evicts}");
    }
}

#[test]
fn evictions_end_before_the_window_or_do_not_begin() {
    const MORNING: &str = "windows: [{start: '10:00', duration: 2h}]";
    let at = |time: &str| -> Timestamp { format!("2026-01-01T{time}Z").parse().expect("a time") };
    for (begin, timeout, seconds, is_evicted) in [
        ("10:00:00", "4h", 600, true),
        ("11:49:00", "4h", 600, true),
        ("11:51:00", "4h", 600, false),
        ("10:00:00", "4h", 7300, false),
        ("10:00:00", "10m", 700, false),
        ("10:00:00", "12m", 700, true),
    ] {
        let mut sim = updating_fleet(&["a"], &format!("{{gpuPods: {{mode: Evict, timeout: {timeout}}}, {MORNING}}}"));
        add(&mut sim, "team/web", GpuPod { grace: Duration::from_secs(seconds), ..GpuPod::default() });
        sim.now = at(begin);
        if is_evicted {
            evict_slowly(&mut sim);
            sim.now = at("11:59:50");
            // What has begun goes on.
            if begin == "11:49:00" {
                sim.now = at("12:00:10");
                sim.steps(10);
                assert!(sim.node("a").cordoned && sim.is_moving("a"), "{begin}");
                sim.gpu_pods.clear();
                sim.run(200);
                assert_eq!(loaded(&mut sim, "a"), NEW);
            }
            continue;
        }
        sim.steps(30);
        assert!(evicted(&sim).is_empty() && !sim.is_moving("a") && !sim.node("a").cordoned, "{begin} {seconds}");
        let status = sim.status("a");
        assert_eq!((status.reason(), &*status.waits_on), (Some(Reason::EvictionBlocked), &["team/web".to_owned()][..]));
        assert!(status.message.contains(&format!("may take {seconds}s to end")), "{}", status.message);
    }
}

#[test]
fn a_layout_changes_on_an_idle_node_although_nvml_is_silent() {
    let devices = |count| mixed(&format!("[{{devices: [0], profiles: [{{profile: 1g.10gb, count: {count}}}]}}]"));
    let mut sim = Sim::new().policy("all", &devices(7)).gpu_node("a", "2330", 2);
    sim.settle();
    // A GPU is missing, so that the layout of the others is unknown.
    sim.report("a").gpus.pop();
    sim.run(60);
    busy(&mut sim, "a");
    let had = sim.node("a").labels.clone();
    sim.apply_policy("all", &devices(4));
    sim.run(60);
    let plugin = Stage::DevicePlugin.key();
    assert_eq!(sim.node("a").labels[plugin], had[plugin]);
}

#[test]
fn an_installer_that_keeps_the_driver_disturbs_no_pod() {
    let run_file = |version: &str, more: &str| {
        format!(
            "{{defaults: {{driver: {{source: RunFile, version: {version}, image: {{repository: own/a, tag: a}}, runFile: {{sha256: a1{more}}}}}}}}}"
        )
    };
    let before = run_file("580.173.02", "");
    let pool = |name: &str| before.replacen('{', &format!("{{pools: [{{name: {name}}}], "), 1);
    for (case, from, to, keeps) in [
        ("mirror", &before, before.replace("own/a", "mirror.example.com/a"), true),
        ("tag", &before, before.replace("tag: a", "tag: b"), true),
        ("environment", &before, before.replace("source:", "env: [{name: A, value: b}], source:"), true),
        ("address", &before, run_file("580.173.02", ", url: \"http://10.0.0.1/a.run\""), true),
        ("pool", &pool("p"), pool("q"), true),
        ("version", &before, run_file("590.10.01", ""), false),
        ("folder", &before, run_file("580.173.02", ", installDir: /srv/nvidia"), false),
        ("source", &before, "{defaults: {driver: {version: 580.173.02}}}".to_owned(), false),
    ] {
        let mut sim = Sim::settled_fleet(from, &["a"]);
        let driver = |sim: &Sim| sim.node("a").labels[Stage::Driver.key()].clone();
        let had = driver(&sim);
        busy(&mut sim, "a");
        sim.apply_policy("all", &to);
        sim.run(200);
        assert_eq!(driver(&sim) != had, keeps, "{case}: {:#?}", sim.status("a"));
        let reason = if keeps { Reason::AllGpusAllocatable } else { Reason::GpuPodsInUse };
        assert_eq!(sim.status("a").reason(), Some(reason), "{case}");
    }
}
