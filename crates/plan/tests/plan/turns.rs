//! The turn of one node: what its pods' fates, a pause, a window, or another layout or MPS daemon mean for it.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{
    gpunode::{DisruptionScope, RolloutStep},
    policy::Stage,
    reason::Reason,
};
use gpu_operator_plan::{
    output::body::Body,
    world::{GpuPod, PodOwner},
};
use jiff::Timestamp;

use crate::{
    mig::mixed,
    robust::{busy, loaded, rollout_spec, updating_fleet},
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
fn one_pod_that_must_stay_keeps_all_others() {
    let of_set = || GpuPod { owner: PodOwner::DaemonSet, ..GpuPod::default() };
    let job = GpuPod { labels: BTreeMap::from([("kind".into(), "training".into())]), ..of_set() };
    for (case, facts, budget, reason, words) in [
        ("an emptyDir", GpuPod { has_empty_dir: true, ..of_set() }, "", Reason::GpuPodsInUse, "an emptyDir volume"),
        ("a job", job, "", Reason::GpuPodsInUse, "gpuPods.waitForJobs have ended"),
        ("a budget", of_set(), "needs 1 healthy pods", Reason::EvictionBlocked, "needs 1 healthy pods"),
        ("a budget of another pod", GpuPod::default(), "needs 1 healthy pods", Reason::EvictionBlocked, "needs 1"),
    ] {
        let mut sim = fleet("gpuPods: {mode: Evict, waitForJobs: {matchLabels: {kind: training}}}");
        add(&mut sim, "team/agent", facts);
        if !budget.is_empty() {
            sim.budgets.insert("team/agent".into(), budget.into());
        }
        sim.steps(60);
        let status = sim.status("a");
        assert_eq!((evicted(&sim).len(), step_of(&sim)), (0, Some(RolloutStep::Await)), "{case}");
        assert_eq!((status.reason(), &*status.waits_on), (Some(reason), &["team/agent".to_owned()][..]), "{case}");
        assert!(status.message.contains(words), "{case}: {}", status.message);
        assert_eq!(sim.node("a").allocatable.total(), 8, "{case}");
        sim.budgets.clear();
        sim.gpu_pods.entry("a".into()).or_default().retain(|pod| pod != "team/agent");
        sim.run(200);
        assert_eq!(loaded(&mut sim, "a"), NEW, "{case}");
    }
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
fn what_stops_a_rollout_gives_its_nodes_back() {
    const PAUSED: &str = ", paused: true";
    // Whether the node has evicted pods, what is done, and whether the node goes on.
    for (has_evicted, strategy, goes_on) in [(false, PAUSED, false), (true, PAUSED, true)] {
        let mut sim = fleet("gpuPods: {mode: Evict}");
        if has_evicted {
            evict_slowly(&mut sim);
        } else {
            sim.budgets.insert("team/web".into(), "no".into());
            sim.steps(10);
        }
        assert_eq!(step_of(&sim), Some(RolloutStep::Await));
        sim.apply_policy("all", &rollout_spec(&format!("{{gpuPods: {{mode: Evict}}{strategy}}}"), NEW));
        sim.steps(10);
        assert_eq!(step_of(&sim).is_some(), goes_on, "{has_evicted}");
        assert_eq!(sim.node("a").cordoned, goes_on, "{has_evicted}");
        // Once the pods have ended, a program may still be there.
        sim.gpu_pods.clear();
        sim.budgets.clear();
        sim.run(200);
        assert_eq!(loaded(&mut sim, "a") == NEW, goes_on, "{has_evicted}");
    }
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
fn a_change_that_needs_idle_gpus_releases_them_first() {
    const SEVENTHS: &str = "[{profiles: [{profile: 1g.10gb, count: 7}]}]";
    const HALVES: &str = "[{profiles: [{profile: 3g.40gb, count: 2}]}]";
    let sharing = |sharing: &str| format!("{{defaults: {{devicePlugin: {sharing}}}}}");
    let mps = |more: &str| sharing(&format!("{{sharing: {{mps: {{replicas: 2}}}}{more}}}"));
    let unmanaged = "{defaults: {devicePlugin: {mig: {strategy: Mixed}}}}".to_owned();
    let changes = [
        ("another layout", mixed(SEVENTHS), mixed(HALVES), true),
        ("a first layout", unmanaged.clone(), mixed(HALVES), true),
        ("no layout", mixed(HALVES), unmanaged, false),
        ("MPS", sharing("{}"), mps(""), true),
        ("no MPS", mps(""), sharing("{}"), true),
        ("another MPS daemon", mps(""), mps(", image: {tag: v9}"), true),
        ("an argument of the plugin under MPS", mps(""), mps(", args: [--x]"), false),
        ("time-slicing", sharing("{}"), sharing("{sharing: {timeSlicing: {replicas: 2}}}"), false),
        ("the plugin", mixed(SEVENTHS), mixed(&format!("{SEVENTHS}}}, image: {{tag: v9}}, google: {{")), false),
    ];
    for (case, before, after, needs_idle) in changes {
        let after = after.replace(", google: {}}", "}");
        let mut sim = Sim::new().policy("all", &before).gpu_node("a", "2330", 2);
        sim.settle();
        let plugin = |sim: &Sim| sim.node("a").labels[Stage::DevicePlugin.key()].clone();
        let had = plugin(&sim);
        busy(&mut sim, "a");
        // What the probe cannot see does not matter.
        sim.report("a").gpus.iter_mut().for_each(|gpu| gpu.mig_capable = None);
        sim.apply_policy("all", &after);
        sim.run(60);
        if !needs_idle {
            assert_ne!(plugin(&sim), had, "{case}");
            continue;
        }
        assert_eq!((sim.status("a").reason(), plugin(&sim)), (Some(Reason::GpuPodsInUse), had.clone()), "{case}");
        // A pod comes after the first look: the node returns, and offers what it did.
        let offered = sim.node("a").allocatable.total();
        sim.gpu_pods.clear();
        run_until(&mut sim, case, |sim| step_of(sim) == Some(RolloutStep::Release));
        assert_eq!(sim.spec("a").rollout.as_ref().map(|rollout| rollout.scope), Some(DisruptionScope::GpuPods));
        busy(&mut sim, "a");
        sim.steps(30);
        assert_eq!((step_of(&sim), plugin(&sim)), (None, had.clone()), "{case}");
        assert_eq!(sim.node("a").allocatable.total(), offered, "{case}");
        sim.gpu_pods.clear();
        sim.run(200);
        assert_ne!(plugin(&sim), had, "{case}");
        assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable), "{case}");
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
