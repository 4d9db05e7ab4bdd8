//! Layouts of MIG: applied before the plugin begins, changed once nothing uses the GPUs, kept as specified, and reported if
//! blocked.

use crate::sim::{Faults, Sim, machine::Division};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason, report::MigDevices};

const SEVENTHS: &str = "[{profile: 1g.10gb, count: 7}]";
const HALVES: &str = "[{profile: 3g.40gb, count: 2}]";

fn mixed(layout: &str) -> String {
    format!("{{defaults: {{devicePlugin: {{mig: {{strategy: Mixed, layout: {layout}}}}}}}}}")
}

/// Nodes of two GPUs each, divided into sevenths.
fn divided(nodes: &[&str]) -> Sim {
    let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
    for node in nodes {
        sim.join(node, "2330", 2);
    }
    sim.settle();
    sim
}

/// What a node offers, in words.
fn offers(sim: &Sim, node: &str) -> String {
    let status = sim.status(node);
    let resources = status.gpus.resources.iter().map(|(name, amount)| format!("{name}={amount}"));
    format!("{:?} {} {}", status.phase, status.gpus.summary, resources.collect::<Vec<_>>().join(" "))
}

fn moved_by_hand(sim: &mut Sim, node: &str) {
    let halves = vec![MigDevices { profile: "3g.40gb".into(), count: 2, attributes: None }];
    sim.report(node).gpus[1].mig_devices = Some(halves);
}

fn plugin_since(sim: &Sim, node: &str) -> Option<k8s_openapi::jiff::Timestamp> {
    sim.pods[&format!("device-plugin@{node}")].created
}

#[test]
fn a_layout_is_there_before_the_plugin_begins_and_is_what_the_node_offers() {
    let mut sim = divided(&["a"]);
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    sim.apply_policy("all", &mixed("[{profile: 3g.40gb, count: 1}, {profile: 1g.10gb.me, count: 1}]"));
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 4/4 nvidia.com/mig-1g.10gb.me=2 nvidia.com/mig-3g.40gb=2");
    sim.apply_policy("all", "{defaults: {devicePlugin: {mig: {layout: []}}}}");
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 2/2 ", "an empty layout turns MIG off");
    assert!(sim.report("a").gpus.iter().all(|gpu| gpu.mig_devices.is_none()));
}

#[test]
fn without_a_layout_nothing_is_divided_and_no_name_of_a_revision_changes() {
    let sim = Sim::settled_fleet("{defaults: {devicePlugin: {mig: {strategy: Mixed}}}}", &["a"]);
    let set = sim.sets_of(Stage::DevicePlugin)[0];
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec");
    assert!(pod.init_containers.iter().flatten().all(|init| init.name != "divide-gpus"));
    assert_ne!(pod.host_pid, Some(true));
}

#[test]
fn a_change_of_layout_moves_the_plugin_alone_one_node_at_a_time_and_waits_for_gpu_pods() {
    let mut sim = divided(&["a", "b", "c"]);
    let drivers = |sim: &Sim| ["a", "b", "c"].map(|node| sim.nodes[node].labels.get(keys::DRIVER).cloned());
    let before = drivers(&sim);
    sim.gpu_pods.insert("b".into(), vec!["default/trains".into()]);
    sim.apply_policy("all", &mixed(HALVES));
    for _ in 0..120 {
        sim.step();
        sim.sleep(1);
        let away = ["a", "b", "c"].into_iter().filter(|node| sim.status(node).phase != Phase::Ready);
        assert!(away.count() <= 1);
    }
    assert_eq!(offers(&sim, "a"), "Ready 4/4 nvidia.com/mig-3g.40gb=4");
    assert_eq!(offers(&sim, "c"), offers(&sim, "a"));
    let status = sim.status("b");
    assert_eq!((status.reason, status.waits_on), (Some(Reason::GpuPodsInUse), vec!["default/trains".to_owned()]));
    assert_eq!(offers(&sim, "b"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    sim.gpu_pods.clear();
    sim.run(120);
    assert_eq!(offers(&sim, "b"), offers(&sim, "a"));
    assert_eq!(drivers(&sim), before);
}

#[test]
fn a_blocked_layout_is_reported_with_the_original_message_and_nothing_is_offered_meanwhile() {
    for (words, reason) in [
        ("MigBlocked: GPU 0000:06:00.0 cannot be divided anew: in use by python (4711)", Reason::MigBlocked),
        ("MigResetNeeded: GPU 0000:06:00.0: reboot the node", Reason::MigResetNeeded),
        ("MigLayoutRefused: GPU 0000:06:00.0: the GPU has no profile 1g.10gb", Reason::MigLayoutRefused),
    ] {
        let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
        sim.join("a", "2330", 2);
        sim.faults.insert("a".into(), Faults { division: Division::Fails(words.into()), ..Faults::default() });
        sim.run(40);
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason), (Phase::DevicePlugin, Some(reason)), "{}", status.message);
        assert_eq!(Some(status.message.as_str()), words.split_once(": ").map(|(_, words)| words));
        assert_eq!(sim.gpu_nodes["a"].spec.release_driver, reason == Reason::MigBlocked);
        sim.faults.clear();
        sim.settle();
        assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
        assert!(!sim.gpu_nodes["a"].spec.release_driver);
    }
}

#[test]
fn the_probe_lets_go_of_gpus_that_it_keeps_from_being_divided() {
    let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
    sim.join("a", "2330", 2);
    // A driver that no pod has to release.
    sim.host_driver("a", "580.1.1", true);
    sim.faults.insert("a".into(), Faults { division: Division::WaitsForProbe, ..Faults::default() });
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
}

#[test]
fn a_manually_changed_layout_is_restored_once_no_pod_uses_the_gpus() {
    let mut sim = divided(&["a", "b"]);
    let before = plugin_since(&sim, "a");
    moved_by_hand(&mut sim, "a");
    sim.gpu_pods.insert("a".into(), vec!["default/trains".into()]);
    sim.run(20);
    assert_eq!(sim.report("a").gpus[1].mig_devices.as_ref().map(Vec::len), Some(1), "the plugin has just begun");
    sim.sleep(601);
    sim.run(20);
    let status = sim.status("a");
    assert_eq!(status.reason, Some(Reason::MigLayoutDiffers), "{}", status.message);
    assert!(status.message.contains("has 2 x 3g.40gb, but the policy requests 7 x 1g.10gb"), "{}", status.message);
    assert_eq!(status.waits_on, ["default/trains"]);
    assert_eq!(plugin_since(&sim, "a"), before, "a pod that uses a GPU is not disturbed");
    sim.gpu_pods.clear();
    sim.run(40);
    assert_ne!(plugin_since(&sim, "a"), before);
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    assert_eq!(plugin_since(&sim, "b"), before, "the others are left alone");
    let (again, renewed) = (plugin_since(&sim, "a"), sim.plans.iter().filter(|plan| !plan.recreate.is_empty()).count());
    sim.sleep(1200);
    sim.settle();
    assert_eq!((plugin_since(&sim, "a"), renewed), (again, 1));
}

#[test]
fn the_plugins_pod_with_a_layout_is_as_reviewed() {
    let sim = divided(&["a"]);
    let spec = sim.sets_of(Stage::DevicePlugin)[0].spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    insta::assert_yaml_snapshot!("device-plugin", spec.expect("a pod's spec"));
}
