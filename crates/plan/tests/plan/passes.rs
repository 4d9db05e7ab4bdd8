//! What a pass asks for.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{NodeName, policy::Stage, reason::Reason};
use gpu_operator_plan::{
    loop_memory::{Class, Failure, LoopState},
    output::body::Part,
    pass::{Answer, Pass, Planning, Request},
    time::Uptime,
    world::Role,
};
use k8s_openapi::jiff::SignedDuration;

use crate::sim::Sim;
use crate::updates::begins_an_update;

/// Returns a fleet of this size in which every validation pod has ended, and no log has been read.
fn tested(nodes: usize) -> Sim {
    let mut sim = Sim::new().policy("all", "{readiness: {validation: {mode: OnInstall}}}");
    for node in 0..nodes {
        sim.join(format!("n{node:03}"), "2330", 8);
    }
    let has_ended =
        |sim: &Sim| sim.pods.values().filter(|pod| pod.role == Role::Validation && pod.end.is_some()).count();
    while has_ended(&sim) < nodes {
        sim.test_log = Err("no answer".into());
        assert!(sim.step(), "the tests do not end");
        sim.sleep(1);
    }
    sim
}

#[test]
fn each_pass_reads_at_most_32_logs() {
    let sim = tested(100);
    let mut read = BTreeSet::new();
    for round in 0..10 {
        let mut carry = LoopState::default();
        let mut around = sim.around(&mut carry, Uptime::ZERO);
        let mut planning = Planning::begin(sim.world(), sim.now + SignedDuration::from_secs(10 * round), &mut around);
        let Some(Request::ReadLogs(pods)) = planning.next(&mut around) else { panic!("no log is read") };
        assert_eq!(pods.len(), 32);
        planning
            .answer(Answer::Logs(pods.iter().map(|pod| (pod.clone(), Err("no answer".into()))).collect()), &mut around);
        let next = planning.next(&mut around);
        assert!(!matches!(next, Some(Request::ReadLogs(_))), "logs are read once in a pass");
        read.extend(pods);
    }
    assert_eq!(read.len(), 100);
}

#[test]
fn an_error_is_remembered_and_its_log_not_read_by_the_next_pass() {
    let sim = tested(2);
    let mut carry = LoopState::default();
    for (second, asks) in [(0, 2), (1, 0), (9, 0), (10, 2)] {
        let uptime = Uptime::from_secs(second);
        let (mut pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, uptime));
        let asked = requests.iter().find_map(|request| match request {
            Request::ReadLogs(pods) => Some(pods.clone()),
            _ => None,
        });
        assert_eq!(asked.as_ref().map_or(0, BTreeSet::len), asks, "after {second} s");
        if let Some(pods) = asked {
            let tails = pods.into_iter().map(|pod| (pod, Err("no answer".to_owned()))).collect();
            drop(pass.step(Answer::Logs(tails), &mut sim.around(&mut carry, uptime)));
        }
    }
}

#[test]
fn pods_that_cannot_be_listed_stop_only_updates() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.serves_pod_resources = false;
    sim.apply_policy("all", "{defaults: {driver: {version: 580.105.08}}}");
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    sim.run(5);
    sim.gpu_pods.clear();
    sim.apply_policy("all", "{defaults: {driver: {version: 580.105.08}}, nodeLabels: [{key: accelerator}]}");
    let mut carry = LoopState::default();
    let (mut pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, Uptime::ZERO));
    let asked = requests.iter().any(|request| matches!(request, Request::ListPods(nodes, _) if nodes.len() == 1));
    assert!(asked, "{requests:?}");
    let requests = pass.step(Answer::Pods(BTreeMap::new()), &mut sim.around(&mut carry, Uptime::ZERO));
    assert!(!requests.is_empty(), "the writes of the first stage");
    let writes = [pass.outstanding(), pass.later()].concat();
    assert!(!writes.iter().any(|write| begins_an_update(write)), "{writes:?}");
    assert!(writes.iter().any(|write| write.target.part == Part::Labels), "{writes:?}");
}

/// Runs the questions of a pass, and returns the nodes whose pods it listed. Each round takes this time.
fn listed_in_a_pass(sim: &Sim, carry: &mut LoopState, uptime: Uptime, round: Uptime) -> Vec<NodeName> {
    let (mut pass, mut requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(carry, uptime));
    let (mut listed, mut elapsed) = (Vec::new(), Uptime::ZERO);
    while let Some(question @ Request::ListPods(nodes, _)) = requests.first() {
        listed.extend(nodes.iter().cloned());
        elapsed += round;
        requests = pass.step(sim.read(question), &mut sim.around(carry, uptime + elapsed));
    }
    listed
}

/// Returns a fleet of busy nodes whose policy wants another driver. `reports` is whether their probes report the pods.
fn busy_fleet(nodes: usize, reports: bool) -> Sim {
    let mut sim = Sim::new().policy("all", "{}");
    sim.serves_pod_resources = reports;
    let names: Vec<_> = (0..nodes).map(|node| format!("n{node:03}")).collect();
    for name in &names {
        sim.join(name.as_str(), "2330", 8);
    }
    sim.settle();
    for name in &names {
        sim.gpu_pods.insert(name.as_str().into(), vec!["team/training".into()]);
    }
    sim.apply_policy("all", "{defaults: {driver: {version: 580.105.08}}}");
    sim.run(5);
    sim
}

#[test]
fn without_pod_resources_busy_nodes_are_listed_in_rotation() {
    let mut sim = busy_fleet(100, false);
    let mut carry = LoopState::default();
    let mut minutes: Vec<Vec<NodeName>> = vec![Vec::new(); 8];
    for second in 0..480 {
        let minute = usize::try_from(second / 60).expect("a minute");
        minutes[minute].extend(listed_in_a_pass(&sim, &mut carry, Uptime::from_secs(second), Uptime::ZERO));
        sim.sleep(1);
    }
    let counts: Vec<_> = minutes.iter().map(Vec::len).collect();
    assert!(counts.iter().all(|count| *count <= 30), "{counts:?}");
    assert_eq!(minutes[..4].concat().iter().collect::<BTreeSet<_>>().len(), 100, "no node is left out: {counts:?}");
    assert_eq!(minutes[4..].concat().iter().collect::<BTreeSet<_>>().len(), 100, "in rotation: {counts:?}");
    // A node that becomes idle is found, and its update begins.
    sim.gpu_pods.remove(&NodeName::from("n042"));
    let begins = (480..800).find(|second| {
        sim.pass(&mut carry, Uptime::from_secs(*second));
        sim.sleep(1);
        sim.is_moving("n042")
    });
    assert!(begins.is_some(), "{:#?}", sim.status("n042"));
}

#[test]
fn busy_nodes_that_report_are_listed_every_ten_minutes() {
    let (mut sim, mut carry, mut lists, mut writes) =
        (busy_fleet(40, true), LoopState::default(), Vec::new(), Vec::new());
    for second in 0..1300 {
        let now = Uptime::from_secs(second);
        let (mut pass, mut requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, now));
        while let Some(question @ Request::ListPods(nodes, _)) = requests.first() {
            lists.extend(nodes.iter().map(|node| (second, node.clone())));
            requests = pass.step(sim.read(question), &mut sim.around(&mut carry, now));
        }
        sim.drive(pass, requests, &mut carry, now, |sim, write| {
            writes.push((second, write.to_string()));
            sim.write(write).is_ok()
        });
        sim.surroundings();
        sim.sleep(1);
    }
    for minute in 1..22 {
        let listed = lists.iter().filter(|(second, _)| second / 60 == minute).count();
        assert!(listed <= 15, "{minute}: {listed}");
    }
    assert_eq!(lists.iter().map(|(_, node)| node).collect::<BTreeSet<_>>().len(), 40, "no node is left out");
    let times = |node: &str| lists.iter().filter(|(second, of)| *second >= 60 && of.as_str() == node).count();
    assert!((0..40).all(|node| (2..=3).contains(&times(&format!("n{node:03}")))), "{lists:?}");
    let late: Vec<_> = writes.iter().filter(|(second, _)| *second > 60).collect();
    assert!(late.is_empty(), "{late:?}");
    let status = sim.status("n020");
    assert_eq!(
        (status.reason(), &status.waits_on[..]),
        (Some(Reason::GpuPodsInUse), &["team/training".to_owned()][..])
    );
    // The report of its end begins the turn.
    sim.gpu_pods.remove(&NodeName::from("n020"));
    let begins = (1300..1305).find(|second| {
        sim.pass(&mut carry, Uptime::from_secs(*second));
        sim.sleep(1);
        sim.is_moving("n020")
    });
    assert!(begins.is_some(), "{:#?}", sim.status("n020"));
}

#[test]
fn a_node_is_asked_again_once_its_gpu_node_is_replaced() {
    let (mut sim, mut carry) = (busy_fleet(2, false), LoopState::default());
    let mut listed = |sim: &Sim, at| listed_in_a_pass(sim, &mut carry, Uptime::from_secs(at), Uptime::ZERO);
    let both = ["n000", "n001"].map(NodeName::from);
    assert_eq!(listed(&sim, 0), both);
    assert!(listed(&sim, 1).is_empty());
    // Its pods are those of an earlier installation, or of an earlier machine of this name.
    sim.gpu_nodes.entry("n000".into()).and_modify(|gpu_node| gpu_node.metadata.uid = Some("another".to_owned()));
    assert_eq!(listed(&sim, 2), both[..1]);
}

#[test]
fn a_pass_whose_questions_are_answered_slowly_ends() {
    let (sim, mut carry) = (busy_fleet(32, false), LoopState::default());
    let listed = listed_in_a_pass(&sim, &mut carry, Uptime::ZERO, Uptime::from_secs(3));
    assert_eq!(listed.len(), 16, "two rounds");
    // What is decided by then is written, if it is not too old.
    let (mut pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, Uptime::ZERO));
    let question = requests.first().expect("a question");
    let late = Uptime::from_secs(10);
    assert!(pass.step(sim.read(question), &mut sim.around(&mut carry, late)).is_empty(), "the plan is too old");
    assert_eq!((pass.ends(), pass.outstanding().len()), (Some(late), 0));
}

#[test]
fn groups_are_recorded_only_if_their_daemon_sets_exist() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let mut carry = LoopState::default();
    let (mut pass, mut requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, Uptime::ZERO));
    while let Some(request) = requests.pop() {
        let Request::Write(write) = request else { panic!("{request:?}") };
        let rejected = write.to_string().starts_with("apply DaemonSet device-plugin");
        let made = !rejected && sim.write(&write).is_ok();
        let failure = Failure { class: Class::Refused, message: "no".into() };
        let result = if made { Ok(()) } else { Err(failure) };
        requests.extend(pass.step(Answer::Written(write, result), &mut sim.around(&mut carry, Uptime::ZERO)));
    }
    assert!(!sim.sets.is_empty() && sim.sets_of(Stage::DevicePlugin).is_empty());
    assert_eq!(sim.spec("a").current, None, "the device plugin's DaemonSet was rejected");
    sim.settle();
    assert!(sim.status("a").is_ready());
}
