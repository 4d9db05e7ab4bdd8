//! MIG layouts: applied before the plugin starts, changed once no pod uses the GPUs, restored if changed manually, and
//! reported if blocked.

use crate::sim::{Faults, Sim, faults::MigOutcome};
use gpu_operator_crd::{Phase, Report, keys, policy::Stage, reason::Reason, report::MigDevices};
use gpu_operator_plan::output::body::Kind;
use test_support::planned::Planned;

pub(crate) const SEVENTHS: &str = "[{profiles: [{profile: 1g.10gb, count: 7}]}]";
const HALVES: &str = "[{profiles: [{profile: 3g.40gb, count: 2}]}]";

pub(crate) fn mixed(layout: &str) -> String {
    format!("{{defaults: {{devicePlugin: {{mig: {{strategy: Mixed, layout: {layout}}}}}}}}}")
}

/// Returns a settled fleet of nodes with two GPUs each, partitioned into sevenths.
pub(crate) fn partitioned(nodes: &[&str]) -> Sim {
    let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
    for node in nodes {
        sim.join(*node, "2330", 2);
    }
    sim.settle();
    sim
}

/// Returns phase, summary and resources of a node as text.
fn offers(sim: &Sim, node: &str) -> String {
    let status = sim.status(node);
    let resources = status.gpus.resources.iter().map(|(name, amount)| format!("{name}={amount}"));
    format!("{:?} {} {}", status.phase, status.gpus.summary, resources.collect::<Vec<_>>().join(" "))
}

pub(crate) fn change_manually(sim: &mut Sim, node: &str) {
    let halves = vec![MigDevices { profile: "3g.40gb".into(), count: 2, attributes: None }];
    sim.report(node).gpus[1].mig_devices = Some(halves);
}

fn plugin_created(sim: &Sim, node: &str) -> Option<gpu_operator_plan::world::ObservedTime> {
    sim.pods[&format!("device-plugin@{node}")].created
}

#[test]
fn a_layout_determines_the_nodes_resources() {
    let mut sim = partitioned(&["a"]);
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    sim.apply_policy("all", &mixed("[{profiles: [{profile: 3g.40gb, count: 1}, {profile: 1g.10gb.me, count: 1}]}]"));
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 4/4 nvidia.com/mig-1g.10gb.me=2 nvidia.com/mig-3g.40gb=2");
    sim.apply_policy("all", "{defaults: {devicePlugin: {mig: {mode: Disabled}}}}");
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 2/2 ");
    assert!(sim.report("a").gpus.iter().all(|gpu| gpu.mig_devices.is_none()));
}

#[test]
fn unmanaged_gpus_are_not_partitioned_by_the_plugins_pod() {
    for mig in ["{strategy: Mixed}", "{strategy: Mixed, mode: Unmanaged}"] {
        let sim = Sim::settled_fleet(&format!("{{defaults: {{devicePlugin: {{mig: {mig}}}}}}}"), &["a"]);
        let set = sim.sets_of(Stage::DevicePlugin)[0];
        let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec");
        assert!(pod.init_containers.iter().flatten().all(|init| init.name != "divide-gpus"));
        assert_ne!(pod.host_pid, Some(true));
    }
}

#[test]
fn a_node_has_the_resources_of_the_layouts_of_its_gpus() {
    const FIRST: &str = "{devices: [0], profiles: [{profile: 1g.10gb, count: 7}]}";
    const SECOND: &str = "{devices: [1], profiles: [{profile: 3g.40gb, count: 2}]}";
    const REST: &str = "{profiles: [{profile: 7g.80gb, count: 1}]}";
    let mut sim = Sim::new().gpu_node("a", "2330", 4).policy("all", "{}");
    for (entries, resources) in [
        (vec![FIRST], "10/10 nvidia.com/gpu=3 nvidia.com/mig-1g.10gb=7"),
        (vec![FIRST, REST], "10/10 nvidia.com/mig-1g.10gb=7 nvidia.com/mig-7g.80gb=3"),
        (vec![REST, SECOND, FIRST], "11/11 nvidia.com/mig-1g.10gb=7 nvidia.com/mig-3g.40gb=2 nvidia.com/mig-7g.80gb=2"),
        (vec![SECOND], "5/5 nvidia.com/gpu=3 nvidia.com/mig-3g.40gb=2"),
    ] {
        sim.apply_policy("all", &mixed(&format!("[{}]", entries.join(", "))));
        sim.settle();
        assert_eq!(offers(&sim, "a"), format!("Ready {resources}"), "{entries:?}");
    }
}

#[test]
fn the_order_of_entries_and_devices_is_no_new_revision() {
    let entry = |devices: &str| format!("{{devices: [{devices}], profiles: [{{profile: 7g.80gb, count: 1}}]}}");
    let mut sim = Sim::new().gpu_node("a", "2330", 4).policy("all", &mixed(&format!("[{}]", entry("0, 2, 3"))));
    sim.settle();
    let before = sim.node("a").labels.clone();
    for entries in [entry("3, 0, 2"), format!("{}, {}", entry("3"), entry("2, 0"))] {
        sim.apply_policy("all", &mixed(&format!("[{entries}]")));
        sim.settle();
        assert_eq!(sim.node("a").labels, before, "{entries}");
    }
}

#[test]
fn a_gpu_with_the_layout_of_another_one_is_restored() {
    let halves = "{profiles: [{profile: 3g.40gb, count: 2}]}";
    let mut sim = Sim::new()
        .gpu_node("a", "2330", 2)
        .policy("all", &mixed(&format!("[{{devices: [0], profiles: [{{profile: 1g.10gb, count: 7}}]}}, {halves}]")));
    sim.settle();
    let profile = |sim: &mut Sim, index: usize| {
        let devices = sim.report("a").gpus[index].mig_devices.clone();
        devices.unwrap_or_default().first().map(|devices| devices.profile.clone())
    };
    let expected = offers(&sim, "a");
    for swap in [true, false] {
        let gpus = &mut sim.report("a").gpus;
        if swap {
            // The node's resources stay the same.
            let (first, second) = gpus.split_at_mut(1);
            std::mem::swap(&mut first[0].mig_devices, &mut second[0].mig_devices);
        } else {
            gpus[0].mig_devices = None;
        }
        sim.sleep(601);
        sim.run(40);
        assert_eq!(offers(&sim, "a"), expected);
        assert_eq!([0, 1].map(|index| profile(&mut sim, index)), [Some("1g.10gb".into()), Some("3g.40gb".into())]);
    }
    // The second GPU is now the first one on the bus.
    sim.report("a").gpus.remove(0);
    let before = plugin_created(&sim, "a");
    sim.sleep(1200);
    sim.run(40);
    assert_eq!((profile(&mut sim, 0), plugin_created(&sim, "a")), (Some("3g.40gb".into()), before));
}

#[test]
fn an_index_that_a_node_lacks_is_refused() {
    let spec = mixed("[{devices: [3], profiles: [{profile: 7g.80gb, count: 1}]}]");
    let mut sim = Sim::new().gpu_node("a", "2330", 2).gpu_node("b", "2330", 4).policy("all", &spec);
    sim.settle();
    assert_eq!(sim.policy_status("all").pools[0].reason(), Some(Reason::MigLayoutRefused));
    assert_eq!(offers(&sim, "b"), "Ready 4/4 nvidia.com/gpu=3 nvidia.com/mig-7g.80gb=1");
    sim.reboot("b", 1);
    sim.run(120);
    assert_eq!(sim.status("b").reason(), Some(Reason::GpuMissing), "{}", sim.status("b").message);
}

#[test]
fn a_blocked_layout_is_reported_and_no_gpu_is_offered() {
    for reason in [Reason::MigBlocked, Reason::MigResetNeeded, Reason::MigLayoutRefused] {
        let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
        sim.join("a", "2330", 2);
        sim.faults
            .insert("a".into(), Faults { mig: MigOutcome::Fails(format!("{reason}: GPU 0")), ..Faults::default() });
        sim.run(40);
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(reason)), "{}", status.message);
        assert_eq!(sim.spec("a").release_driver, reason == Reason::MigBlocked);
        sim.faults.clear();
        sim.settle();
        assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
        assert!(!sim.spec("a").release_driver);
    }
}

#[test]
fn the_probe_releases_gpus_to_have_them_partitioned() {
    let mut sim = Sim::new().policy("all", &mixed(SEVENTHS));
    sim.join("a", "2330", 2);
    // With a host driver, only the probe holds the GPUs.
    sim.host_driver("a", "580.1.1", true);
    sim.faults.insert("a".into(), Faults { mig: MigOutcome::WaitsForProbe, ..Faults::default() });
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
}

#[test]
fn a_changed_layout_is_restored_once_no_pod_uses_the_gpus() {
    let mut sim = partitioned(&["a", "b"]);
    let before = plugin_created(&sim, "a");
    change_manually(&mut sim, "a");
    sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
    sim.run(20);
    assert_eq!(sim.report("a").gpus[1].mig_devices.as_ref().map(Vec::len), Some(1), "the plugin has just started");
    sim.sleep(601);
    sim.run(20);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::MigLayoutDiffers), "{}", status.message);
    assert!(status.message.contains("has 2 x 3g.40gb, but the policy requests 7 x 1g.10gb"), "{}", status.message);
    assert_eq!(status.waits_on, ["default/training"]);
    assert_eq!(plugin_created(&sim, "a"), before, "a pod that uses a GPU is not disturbed");
    sim.gpu_pods.clear();
    sim.run(40);
    assert_ne!(plugin_created(&sim, "a"), before);
    assert_eq!(offers(&sim, "a"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    assert_eq!(plugin_created(&sim, "b"), before, "other nodes do not change");
    let (again, recreated) =
        (plugin_created(&sim, "a"), sim.plans.iter().filter(|plan| !plan.deleted(Kind::Pod).is_empty()).count());
    sim.sleep(1200);
    sim.settle();
    assert_eq!((plugin_created(&sim, "a"), recreated), (again, 1));
}

#[test]
fn a_layout_that_the_probe_has_not_seen_is_not_restored() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    // As many resources of the same name as before, so that the node is ready.
    sim.apply_policy(
        "all",
        "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}}}}",
    );
    sim.run(120);
    let gpus = |report: &Report| report.gpus[0].mig_devices.as_ref().map(Vec::len);
    assert_eq!((gpus(sim.report("a")), sim.status("a").report.as_ref().map(gpus)), (Some(1), Some(None)));
    sim.sleep(3600);
    let before = plugin_created(&sim, "a");
    sim.run(20);
    assert_eq!(plugin_created(&sim, "a"), before, "the last report is older than the pod");
}

#[test]
fn a_layout_that_cannot_be_applied_yet_lets_an_update_settle() {
    let mut sim = Sim::new().gpu_node("a", "2330", 2).policy("all", &mixed(SEVENTHS));
    sim.host_driver("a", "595.91.07", true);
    sim.settle();
    // The plugin, which applies the layout, waits for the driver, and so does the toolkit, whose new revision restarts the runtime.
    sim.upgrade_packages(&"a".into());
    let plugin = format!("devicePlugin: {{mig: {{strategy: Mixed, layout: {HALVES}}}}}");
    sim.apply_policy("all", &format!("{{defaults: {{toolkit: {{injection: Runtime}}, {plugin}}}}}"));
    sim.settle();
    assert_eq!(sim.status("a").reason(), Some(Reason::RebootNeeded), "{}", sim.status("a").message);
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!(offers(&sim, "a"), "Ready 4/4 nvidia.com/mig-3g.40gb=4");
}

#[test]
fn a_change_of_layout_waits_for_gpu_pods_node_by_node() {
    let mut sim = partitioned(&["a", "b", "c"]);
    let drivers = |sim: &Sim| ["a", "b", "c"].map(|node| sim.node(node).labels.get(keys::DRIVER).cloned());
    let before = drivers(&sim);
    sim.gpu_pods.insert("b".into(), vec!["default/training".into()]);
    sim.apply_policy("all", &mixed(HALVES));
    for _ in 0..120 {
        sim.step();
        sim.sleep(1);
        let away = ["a", "b", "c"].into_iter().filter(|node| sim.status(*node).phase != Phase::Ready);
        assert!(away.count() <= 1);
    }
    assert_eq!(offers(&sim, "a"), "Ready 4/4 nvidia.com/mig-3g.40gb=4");
    assert_eq!(offers(&sim, "c"), offers(&sim, "a"));
    let status = sim.status("b");
    assert_eq!((status.reason(), status.waits_on), (Some(Reason::GpuPodsInUse), vec!["default/training".to_owned()]));
    assert_eq!(offers(&sim, "b"), "Ready 14/14 nvidia.com/mig-1g.10gb=14");
    sim.gpu_pods.clear();
    sim.run(120);
    assert_eq!(offers(&sim, "b"), offers(&sim, "a"));
    assert_eq!(drivers(&sim), before);
}
