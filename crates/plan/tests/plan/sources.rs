//! Where drivers come from: each source from the policy to Ready, what Auto selects for a node, and how a driver that
//! is not available is reported.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{Phase, policy::Stage, reason::Reason, report::InstalledDriver};
use k8s_openapi::api::core::v1::Container;
use test_support::planned::Planned;

pub(crate) const NODE_POOL: &str = "cloud.google.com/gke-nodepool";
pub(crate) const GKE_DRIVER: &str = "cloud.google.com/gke-gpu-driver-version";
pub(crate) const GKE_ROOT: &str = "/home/kubernetes/bin/nvidia";

/// Returns a node with one T4, this operating system and these labels, under a policy of this spec.
pub(crate) fn node(spec: &str, os: (&str, &str), labels: &[(&str, &str)]) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "1eb8", 1).policy("all", spec);
    let release = &mut sim.report("a").os;
    (release.id, release.version_id) = (os.0.into(), os.1.into());
    for (key, value) in labels {
        sim.label("a", key, Some(value));
    }
    sim
}

/// Returns the container that installs the driver, from the only driver DaemonSet.
fn installer(sim: &Sim) -> Container {
    let sets = sim.sets_of(Stage::Driver);
    let [set] = sets[..] else { panic!("{} driver DaemonSets", sets.len()) };
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).expect("a pod's spec");
    let mut init = pod.init_containers.expect("init containers").into_iter();
    init.find(|container| container.name == "install-driver").unwrap_or_else(|| pod.containers[0].clone())
}

/// Returns a driver's library under a folder of the host.
pub(crate) fn library(root: &str, version: &str) -> InstalledDriver {
    InstalledDriver { root: root.into(), version: version.into(), ..InstalledDriver::default() }
}

pub(crate) fn env(container: &Container, name: &str) -> Option<String> {
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.clone()
}

#[test]
fn a_node_becomes_ready_with_every_driver_source() {
    const OWN: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 450.66, image: {repository: registry.example.com:5000/nvidia-install, tag: \"20.04\"}}}}";
    const BY_URL: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1, url: \"http://10.0.0.1/a.run\", installDir: /srv/nvidia}, image: {repository: own/run-file, tag: ubuntu22.04}}}}";
    const PRECOMPILED: &str = "nvcr.io/nvidia/driver:595-6.8.0-60-generic-ubuntu24.04";
    for (spec, os, image, root) in [
        ("{}", ("ubuntu", "22.04"), "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", None),
        // There is no image of the newest version.
        ("{}", ("ubuntu", "20.04"), "nvcr.io/nvidia/driver:570.172.08-ubuntu20.04", None),
        ("{defaults: {driver: {container: {precompiled: true}}}}", ("ubuntu", "24.04"), PRECOMPILED, None),
        ("{defaults: {driver: {source: CloudInstaller}}}", ("cos", "117"), "cos-nvidia-installer:fixed", None),
        (
            "{defaults: {driver: {source: CloudInstaller, cloudInstaller: {channel: Latest}}}}",
            ("cos", "117"),
            "cos-nvidia-installer:fixed",
            None,
        ),
        (OWN, ("centos", "7"), "registry.example.com:5000/nvidia-install:20.04", None),
        (BY_URL, ("ubuntu", "16.04"), "own/run-file:ubuntu22.04", Some("/srv/nvidia")),
    ] {
        let mut sim = node(spec, os, &[]);
        sim.settle();
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::AllGpusAllocatable), "{spec}: {}", status.message);
        assert_eq!(installer(&sim).image.as_deref(), Some(image), "{spec}");
        assert!(root.is_none() || sim.spec("a").driver_root.as_deref() == root, "{spec}: {:?}", sim.spec("a"));
        assert!(sim.writes["node/a"] <= 4, "{spec}: {:?}", sim.writes);
    }
}

/// No driver is guessed for a GPU that is not in the catalogue.
#[test]
fn a_driver_that_is_not_fully_described_is_not_installed() {
    const RUN_FILE: &str = "source: RunFile, image: {repository: own/a, tag: a}";
    const URL: &str = "url: \"https://mirror.example.com/a.run\"";
    let (known, unknown) = ("1eb8", "fff1");
    let no_repository = Err((Reason::NoDriverImageForOS, "no repository"));
    let no_version = Err((Reason::UnknownGpu, "driver.version and driver.container.kernelModule"));
    for (gpu, driver, expected) in [
        (known, "source: RunFile, version: 580.173.02, runFile: {sha256: a1}, image: {tag: a}", no_repository),
        (known, "source: CloudInstaller, image: {tag: a}", no_repository),
        (unknown, "", no_version),
        (unknown, "version: 580.173.02", no_version),
        (
            unknown,
            "version: 580.173.02, container: {kernelModule: Proprietary}",
            Ok("nvcr.io/nvidia/driver:580.173.02-ubuntu22.04"),
        ),
        (
            unknown,
            "RUN_FILE, version: 580.173.02, runFile: {sha256: a1}",
            Err((Reason::UnknownGpu, "driver.runFile.url")),
        ),
        (unknown, "RUN_FILE, runFile: {sha256: a1, URL}", Ok("own/a:a")),
        (unknown, "source: CloudInstaller", Ok("cos-nvidia-installer:fixed")),
    ] {
        let spec = format!("{{defaults: {{driver: {{{driver}}}}}}}").replace("RUN_FILE", RUN_FILE).replace("URL", URL);
        let os = if spec.contains("CloudInstaller") { ("cos", "117") } else { ("ubuntu", "22.04") };
        let mut sim = node(&spec, os, &[]);
        sim.plug("a", &[gpu]);
        sim.run(40);
        let status = sim.status("a");
        match expected {
            Ok(image) => assert_eq!(installer(&sim).image.as_deref(), Some(image), "{spec}: {}", status.message),
            Err((reason, words)) => {
                assert_eq!(status.reason(), Some(reason), "{spec}: {}", status.message);
                assert!(status.message.contains(words), "{spec}: {}", status.message);
                assert!(sim.sets_of(Stage::Driver).is_empty(), "{spec}");
            }
        }
    }
}

#[test]
fn what_a_pool_sets_replaces_the_defaults_as_a_whole() {
    let defaults =
        "driver: {version: 580.173.02, image: {repository: own/driver, tag: a}, env: [{name: A, value: \"1\"}]}";
    for (pool, image, has_env) in [
        ("", "own/driver:a", true),
        ("driver: {version: 595.91.07}", "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", false),
        ("driver: {}", "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", false),
        ("toolkit: {}", "own/driver:a", true),
    ] {
        let spec = format!("{{defaults: {{{defaults}}}, pools: [{{name: p, {pool}}}]}}").replace("p, }", "p}");
        let mut sim = node(&spec, ("ubuntu", "22.04"), &[]);
        sim.settle();
        let container = installer(&sim);
        assert_eq!(container.image.as_deref(), Some(image), "{spec}: {}", sim.status("a").message);
        assert_eq!(env(&container, "A").is_some(), has_env, "{spec}");
    }
}

#[test]
fn a_run_file_is_installed_for_nvidias_plugin_except_on_gke() {
    let spec = "{defaults: {driver: {source: RunFile, version: 580.173.02, runFile: {sha256: a1}, image: {repository: own/a, tag: a}}}}";
    for (labels, root, plugin, toolkits) in [
        (&[][..], "/opt/nvidia", "nvcr.io/nvidia/k8s-device-plugin:", 1),
        (&[(NODE_POOL, "gpus")][..], GKE_ROOT, "nvidia-gpu-device-plugin@", 0),
    ] {
        let mut sim = node(spec, ("ubuntu", "22.04"), labels);
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
        assert_eq!(env(&installer(&sim), "NVIDIA_INSTALL_DIR_HOST").as_deref(), Some(root));
        let set = format!("{:?}", sim.sets_of(Stage::DevicePlugin));
        assert!(set.contains(plugin), "{set}");
        assert_eq!(sim.sets_of(Stage::Toolkit).len(), toolkits);
    }
}

#[test]
fn auto_selects_the_source_of_the_system_and_keeps_it() {
    type Labels<'a> = &'a [(&'a str, &'a str)];
    let gke: Labels<'_> = &[(NODE_POOL, "gpus")];
    let disabled: Labels<'_> = &[(NODE_POOL, "gpus"), (GKE_DRIVER, "disabled")];
    for (os, labels, image) in [
        (("ubuntu", "22.04"), &[][..], "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04"),
        (
            ("ubuntu", "22.04"),
            &[("cloud.google.com/gke-accelerator", "nvidia-tesla-t4")],
            "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04",
        ),
        (("cos", "117"), gke, "cos-nvidia-installer:fixed"),
        (("cos", "117"), disabled, "cos-nvidia-installer:fixed"),
        (("ubuntu", "22.04"), gke, "gke-nvidia-installer:fixed"),
        // The policy's image only applies to NVIDIA's driver container.
    ] {
        let mut sim = node("{defaults: {driver: {image: {repository: nvcr.io/nvidia/driver}}}}", os, labels);
        sim.settle();
        assert_eq!(installer(&sim).image.as_deref(), Some(image), "{os:?} {labels:?}");
        assert_eq!(sim.status("a").phase, Phase::Ready, "{os:?} {labels:?}: {}", sim.status("a").message);
        let before = sim.sets.clone();
        // After a reboot, and without any state in the operator, the selection is the same.
        sim.reboot("a", 0);
        sim.settle();
        assert_eq!(sim.sets, before, "{os:?} {labels:?}");
        assert_eq!(sim.status("a").phase, Phase::Ready, "{os:?} {labels:?}: {}", sim.status("a").message);
    }
}

#[test]
fn without_a_precompiled_image_the_driver_is_compiled() {
    let tag = "595-6.8.0-60-generic-ubuntu24.04";
    let missing = format!("nvcr.io/nvidia/driver:{tag}");
    let mut sim = node("{defaults: {driver: {container: {precompiled: true}}}}", ("ubuntu", "24.04"), &[]);
    sim.faults.insert("a".into(), Faults { missing_images: [tag.to_owned()].into(), ..Faults::default() });
    sim.settle();
    let status = sim.status("a");
    assert_eq!(status.missing_image.as_deref(), Some(missing.as_str()));
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::PrecompiledImageMissing)));
    assert!(status.message.contains(&missing), "{}", status.message);
    assert_eq!(sim.condition("all", "Ready").0, "True");
    // The node does not switch back and forth: neither a restart of the operator nor time changes anything.
    let writes = sim.writes.clone();
    sim.sleep(3600);
    sim.settle();
    assert_eq!(sim.writes, writes);
    // Another kernel has another image.
    sim.faults.clear();
    sim.node_mut("a").kernel = "6.8.0-62-generic".into();
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!(
        (sim.status("a").missing_image, sim.status("a").phase),
        (None, Phase::Ready),
        "{}",
        sim.status("a").message
    );
    let set = sim.sets_of(Stage::Driver)[0];
    assert_eq!(Sim::image(set), "nvcr.io/nvidia/driver:595-6.8.0-62-generic-ubuntu24.04");
}

#[test]
fn an_installed_driver_that_is_not_loaded_requires_a_reboot() {
    let spec = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 535.309.01, image: {repository: own/run-file, tag: ubuntu22.04}}}}";
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.settle();
    // Another program on the host has loaded an older driver and uses it.
    sim.report("a").driver.loaded = Some("470.256.02".into());
    sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
    sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
    sim.run(60);
    assert_eq!(sim.status("a").reason(), Some(Reason::RebootNeeded), "{}", sim.status("a").message);
}

#[test]
fn the_probe_releases_the_driver_only_for_a_waiting_container() {
    let spec = "{defaults: {driver: {source: Container, version: 535.309.01}}}";
    // Driver containers load their module long before they are ready; that does not require a release by the probe.
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.run(3);
    let released = |sim: &Sim| sim.spec("a").release_driver;
    let pod = sim.pods.get_mut("driver@a").expect("a pod");
    pod.containers[0].ready = false;
    for _ in 0..60 {
        let plan = sim.plan();
        let asked = plan.specs().values().any(|write| write.spec.release_driver);
        assert!(!asked, "no container waits for the driver");
        sim.sleep(1);
    }
    // A container that finds another driver loaded waits for its release.
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.report("a").driver.loaded = Some("470.256.02".into());
    let mut asked = false;
    for _ in 0..60 {
        sim.step();
        sim.sleep(1);
        asked |= released(&sim);
    }
    assert!(asked && !released(&sim), "the probe was asked to release the driver, and no longer is");
    assert_eq!(sim.status("a").phase, Phase::Ready, "{:?}", sim.status("a"));
    // If another program uses the driver, this is reported, and the probe does not open the driver again.
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.report("a").driver.loaded = Some("470.256.02".into());
    sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
    sim.run(60);
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverInUse), "{:?}", sim.status("a"));
    assert!(released(&sim));
    assert!(sim.writes["node/a"] <= 5, "{:?}", sim.writes);
}
