//! Drivers that this operator does not install: what is found on the host, and what is missing.

use crate::{
    sim::{Faults, Sim},
    sources::{GKE_DRIVER, GKE_ROOT, NODE_POOL, env, library, node},
};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason};

#[test]
fn auto_never_overwrites_a_loaded_module_without_a_library() {
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.report("a").driver.loaded = Some("535.261.03".into());
    sim.run(15);
    // The module may belong to an installation in progress.
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverInstalling), "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty() && !sim.node("a").labels.contains_key(keys::DRIVER));
    sim.run(60);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverLibraryNotFound)));
    assert!(sim.sets_of(Stage::Driver).is_empty() && !sim.node("a").labels.contains_key(keys::DRIVER));
    let mut explicit = sim.clone();
    // The installer writes the libraries shortly after it has loaded the module.
    sim.report("a").driver.installed.push(library("/", "535.261.03"));
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty());
    // An explicitly requested container is installed.
    explicit.apply_policy("all", "{defaults: {driver: {source: Container}}}");
    explicit.settle();
    assert_eq!(explicit.report("a").driver.loaded.as_deref(), Some("595.91.07"));
}

#[test]
fn a_module_that_a_container_left_behind_is_no_host_driver() {
    // The policy is deleted and applied again while a pod uses a GPU, so that the module stays loaded and its
    // libraries are gone.
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.settle();
    sim.delete_policy("all");
    sim.settle();
    sim.report("a").driver.installed.clear();
    sim.apply_policy("all", "{}");
    sim.run(60);
    let installs = |sim: &Sim| {
        assert_eq!(sim.status("a").reason(), Some(Reason::DriverInstalling), "{}", sim.status("a").message);
        assert_eq!(sim.sets_of(Stage::Driver).len(), 1);
        assert!(sim.node("a").labels.contains_key(keys::DRIVER));
    };
    installs(&sim);
    // The pod is killed on a node that still has its label.
    sim.report("a").driver.container_ran = false;
    sim.pods.remove("driver@a");
    sim.run(60);
    installs(&sim);
}

#[test]
fn the_probe_and_the_plugin_get_the_install_dir_of_the_policy() {
    let spec = "{defaults: {driver: {source: Preinstalled, preinstalled: {installDir: /opt/vendor}}}}";
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.run(40);
    assert_eq!(sim.spec("a").driver_root.as_deref(), Some("/opt/vendor"));
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverNotInstalled), "{}", sim.status("a").message);
    sim.report("a").driver.loaded = Some("535.261.03".into());
    sim.run(40);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::DriverLibraryNotFound), "{}", status.message);
    sim.report("a").driver.installed.push(library("/opt/vendor", "535.261.03"));
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty());
    let plugin = sim.sets_of(Stage::DevicePlugin)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let plugin = &plugin.containers[0];
    assert_eq!(env(plugin, "NVIDIA_DRIVER_ROOT").as_deref(), Some("/opt/vendor"));
    assert_eq!(env(plugin, "NVIDIA_DEV_ROOT").as_deref(), Some("/"));
}

#[test]
fn an_unsuitable_host_driver_is_reported_unless_its_gpus_work() {
    for (version, publishes, reason) in [
        ("550.54.14", Some(0), Reason::DriverUnsupported),
        ("470.256.02", Some(0), Reason::WaitingForAllocatable),
        // The catalogue may be wrong.
        ("550.54.14", None, Reason::AllGpusAllocatable),
    ] {
        let mut sim = Sim::new().gpu_node("a", "102d", 4);
        sim.host_driver("a", version, true);
        sim.faults.insert("a".into(), Faults { publishes, ..Faults::default() });
        sim.apply_policy("all", "{}");
        sim.run(60);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(reason), "{version}: {}", status.message);
        let expected = match reason {
            Reason::DriverUnsupported => "use a version such as 470.256.02",
            Reason::AllGpusAllocatable => "driver 550.54.14 is installed on the host and left unchanged",
            _ => "0 of 4 GPUs",
        };
        assert!(status.message.contains(expected), "{}", status.message);
    }
}

#[test]
fn a_driver_in_googles_cache_is_of_the_host_only_if_loaded() {
    for (loaded, managed) in [(false, true), (true, false)] {
        let mut sim = node("{}", ("cos", "117"), &[(NODE_POOL, "gpus")]);
        let driver = &mut sim.report("a").driver;
        driver.installed.push(library(GKE_ROOT, "580.1.1"));
        driver.loaded = loaded.then(|| "580.1.1".into());
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
        assert_eq!(sim.node("a").labels.contains_key(keys::DRIVER), managed, "a suitable loaded driver is kept");
    }
}

#[test]
fn waiting_for_gkes_installation_is_reported() {
    for source in ["Auto", "Preinstalled"] {
        let spec = format!("{{defaults: {{driver: {{source: {source}}}}}}}");
        let mut sim = node(&spec, ("cos", "117"), &[(NODE_POOL, "gpus"), (GKE_DRIVER, "latest")]);
        sim.run(40);
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverInstalling)), "{source}");
        assert!(status.message.contains("GKE installs") && status.message.contains("latest"), "{}", status.message);
        assert!(sim.sets_of(Stage::Driver).is_empty());
        let driver = &mut sim.report("a").driver;
        driver.loaded = Some("580.1.1".into());
        driver.installed.push(library(GKE_ROOT, "580.1.1"));
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{source}: {}", sim.status("a").message);
        assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
    }
}

#[test]
fn libraries_added_to_the_host_remove_no_working_driver() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let before = sim.node("a").labels.clone();
    sim.report("a").driver.installed.push(library("/", "550.1.1"));
    sim.settle();
    assert_eq!(sim.node("a").labels, before);
}
