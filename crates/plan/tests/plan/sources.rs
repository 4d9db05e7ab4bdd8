//! Where drivers come from: each source from the policy to Ready, what Auto selects for a node, and how a driver that
//! is not available is reported.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason, report::InstalledDriver};
use k8s_openapi::api::core::v1::Container;
use test_support::planned::Planned;

pub(crate) const NODE_POOL: &str = "cloud.google.com/gke-nodepool";
pub(crate) const GKE_DRIVER: &str = "cloud.google.com/gke-gpu-driver-version";
const GKE_ROOT: &str = "/home/kubernetes/bin/nvidia";

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

fn env(container: &Container, name: &str) -> Option<String> {
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.clone()
}

#[test]
fn a_node_becomes_ready_with_every_driver_source() {
    for (spec, os, image) in [
        ("{}", ("ubuntu", "22.04"), "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04"),
        (
            "{defaults: {driver: {precompiled: true}}}",
            ("ubuntu", "24.04"),
            "nvcr.io/nvidia/driver:595-6.8.0-60-generic-ubuntu24.04",
        ),
        ("{defaults: {driver: {source: GkeCos}}}", ("cos", "117"), "cos-nvidia-installer:fixed"),
        ("{defaults: {driver: {source: GkeCos, channel: Latest}}}", ("cos", "117"), "cos-nvidia-installer:fixed"),
        ("{defaults: {driver: {source: GkeUbuntu}}}", ("ubuntu", "24.04"), "gke-nvidia-installer:fixed"),
        (
            "{defaults: {driver: {source: RunFile, sha256: a1, version: 450.66, image: {repository: registry.example.com:5000/nvidia-install, tag: \"20.04\"}}}}",
            ("centos", "7"),
            "registry.example.com:5000/nvidia-install:20.04",
        ),
        (
            "{defaults: {driver: {source: RunFile, sha256: a1, url: \"http://10.0.0.1/a.run\", installDir: /srv/nvidia, image: {repository: own/run-file, tag: ubuntu22.04}}}}",
            ("ubuntu", "16.04"),
            "own/run-file:ubuntu22.04",
        ),
    ] {
        let mut sim = node(spec, os, &[]);
        sim.settle();
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::AllGpusAllocatable), "{spec}: {}", status.message);
        assert_eq!(installer(&sim).image.as_deref(), Some(image), "{spec}");
        assert!(sim.writes["node/a"] <= 4, "{spec}: {:?}", sim.writes);
    }
}

/// Admission rules do not cover policies created before the rules, or drivers merged from pool and defaults.
#[test]
fn an_installer_without_a_complete_image_in_the_policy_is_rejected() {
    for (driver, os, words) in [
        ("{source: RunFile, sha256: a1, version: 450.66}", ("centos", "7"), "source RunFile has no default image"),
        (
            "{source: RunFile, sha256: a1, version: 450.66, image: {repository: own/a}}",
            ("centos", "7"),
            "own/a has no tag or digest",
        ),
        ("{source: RunFile, sha256: a1, version: 450.66, image: {tag: a}}", ("centos", "7"), "no repository"),
        ("{source: GkeUbuntu, image: {repository: own/a}}", ("ubuntu", "22.04"), "own/a has no tag or digest"),
        ("{source: GkeCos, image: {tag: a}}", ("cos", "117"), "no repository"),
    ] {
        let mut sim = node(&format!("{{defaults: {{driver: {driver}}}}}"), os, &[]);
        sim.run(40);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::NoDriverImageForOS), "{driver}: {}", status.message);
        assert!(status.message.contains(words), "{driver}: {}", status.message);
        assert!(sim.sets_of(Stage::Driver).is_empty(), "{driver}");
    }
}

#[test]
fn a_pool_takes_its_installer_from_the_defaults_whatever_version_it_pins() {
    let mut sim = node(
        "{defaults: {driver: {source: RunFile, sha256: a1, version: 580.173.02, image: {repository: own/run-file, tag: ubuntu22.04}}}, pools: [{name: p, driver: {version: 535.309.01, sha256: b2}}]}",
        ("ubuntu", "22.04"),
        &[],
    );
    sim.settle();
    assert_eq!(installer(&sim).image.as_deref(), Some("own/run-file:ubuntu22.04"), "{}", sim.status("a").message);
}

/// A pool's `sha256` is not that of the defaults' file, and vice versa.
#[test]
fn a_run_file_without_a_checksum_in_the_same_place_is_not_installed() {
    for (defaults, pool) in [
        ("version: 580.173.02", "{}"),
        ("sha256: a1", "{}"),
        ("version: 580.173.02, sha256: a1", "{version: 535.309.01}"),
        ("version: 580.173.02, sha256: a1", "{url: \"https://mirror.example.com/a.run\"}"),
        ("version: 580.173.02, sha256: a1", "{sha256: b2}"),
    ] {
        let image = "image: {repository: own/a, tag: a}";
        let spec = format!(
            "{{defaults: {{driver: {{source: RunFile, {defaults}, {image}}}}}, pools: [{{name: p, driver: {pool}}}]}}"
        );
        let mut sim = node(&spec, ("ubuntu", "22.04"), &[]);
        sim.run(40);
        assert_eq!(sim.status("a").reason(), Some(Reason::ChecksumMissing), "{spec}: {}", sim.status("a").message);
        assert!(sim.sets_of(Stage::Driver).is_empty(), "{spec}");
    }
}

#[test]
fn a_run_file_is_installed_for_nvidias_plugin_except_on_gke() {
    let spec =
        "{defaults: {driver: {source: RunFile, version: 580.173.02, sha256: a1, image: {repository: own/a, tag: a}}}}";
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
fn googles_installer_for_ubuntu_gets_a_version_only_if_the_policy_sets_one() {
    for (driver, version) in
        [("{source: GkeUbuntu}", None), ("{source: GkeUbuntu, version: 535.309.01}", Some("535.309.01"))]
    {
        let mut sim = node(&format!("{{defaults: {{driver: {driver}}}}}"), ("ubuntu", "22.04"), &[]);
        sim.settle();
        assert_eq!(env(&installer(&sim), "NVIDIA_DRIVER_VERSION").as_deref(), version, "{driver}");
        assert_eq!(sim.status("a").phase, Phase::Ready, "{driver}: {}", sim.status("a").message);
        // Without a version, the guard finds the version that the installer chose by its library.
        let pod = sim.sets_of(Stage::Driver)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod's spec");
        let guard = pod.init_containers.expect("init containers").swap_remove(0);
        let args = guard.args.expect("arguments").join(" ");
        let folder = format!("--install-dir {GKE_ROOT}");
        assert_eq!(
            (args.contains("--version"), args.contains(&folder)),
            (version.is_some(), version.is_none()),
            "{args}"
        );
        let mounted = guard.volume_mounts.into_iter().flatten().any(|m| m.mount_path == format!("/host{GKE_ROOT}"));
        assert_eq!(mounted, version.is_none(), "{driver}");
    }
}

#[test]
fn no_driver_is_guessed_for_a_gpu_that_is_not_in_the_catalogue() {
    const IMAGE: &str = "image: {repository: own/run-file, tag: ubuntu22.04}";
    for (driver, expected) in [
        ("{}".to_owned(), Err("driver.version and driver.kernelModule")),
        ("{version: 580.173.02}".to_owned(), Err("driver.version and driver.kernelModule")),
        (
            "{version: 580.173.02, kernelModule: Proprietary}".to_owned(),
            Ok("nvcr.io/nvidia/driver:580.173.02-ubuntu22.04"),
        ),
        (format!("{{source: RunFile, sha256: a1, version: 580.173.02, {IMAGE}}}"), Err("driver.url")),
        (
            format!("{{source: RunFile, sha256: a1, url: \"https://mirror.example.com/a.run\", {IMAGE}}}"),
            Ok("own/run-file:ubuntu22.04"),
        ),
        ("{source: GkeUbuntu}".to_owned(), Ok("gke-nvidia-installer:fixed")),
    ] {
        let mut sim = Sim::new().gpu_node("a", "fff1", 1).policy("all", &format!("{{defaults: {{driver: {driver}}}}}"));
        sim.run(40);
        let status = sim.status("a");
        match expected {
            Ok(image) => assert_eq!(installer(&sim).image.as_deref(), Some(image), "{driver}: {}", status.message),
            Err(way_out) => {
                assert_eq!(status.reason(), Some(Reason::UnknownGpu), "{driver}: {}", status.message);
                assert!(
                    status.message.contains("nvidia-10de-fff1") && status.message.contains("spec.models"),
                    "{driver}"
                );
                assert!(status.message.contains(way_out), "{driver}: {}", status.message);
                assert!(sim.sets_of(Stage::Driver).is_empty(), "{driver}");
            }
        }
    }
}

#[test]
fn the_run_file_for_a_desktop_gpu_is_downloaded_from_the_path_for_desktop_gpus() {
    let spec = "{defaults: {driver: {source: RunFile, version: 580.173.02, sha256: a1, image: {repository: own/run-file, tag: a}}}}";
    for (gpu, path) in [
        ("1b06", "XFree86/Linux-x86_64/580.173.02/NVIDIA-Linux-x86_64-580.173.02.run"),
        ("2330", "tesla/580.173.02/NVIDIA-Linux-x86_64-580.173.02.run"),
    ] {
        let mut sim = Sim::new().gpu_node("a", gpu, 1).policy("all", spec);
        sim.settle();
        let url = env(&installer(&sim), "NVIDIA_DRIVER_DOWNLOAD_URL");
        assert_eq!(url.as_deref(), Some(format!("https://us.download.nvidia.com/{path}").as_str()), "{gpu}");
    }
}

#[test]
fn a_host_driver_that_no_longer_supports_the_gpus_is_reported_unless_they_work() {
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
fn an_installer_gets_version_and_path_and_the_probe_gets_the_path() {
    let mut sim = node(
        "{defaults: {driver: {source: RunFile, sha256: a1, url: \"https://mirror.example.com/cuda_8.0.61_375.26_linux.run\", installDir: /srv/nvidia, image: {repository: own/run-file, tag: ubuntu22.04}}, devicePlugin: {flavor: Gke}}}",
        ("ubuntu", "16.04"),
        &[],
    );
    sim.report("a").gpus[0].device_id = "102d".into();
    sim.settle();
    let installer = installer(&sim);
    for (name, value) in [
        ("NVIDIA_DRIVER_VERSION", "375.26"),
        ("NVIDIA_DRIVER_DOWNLOAD_URL", "https://mirror.example.com/cuda_8.0.61_375.26_linux.run"),
        ("NVIDIA_DRIVER_SHA256", "a1"),
        ("NVIDIA_INSTALL_DIR_HOST", "/srv/nvidia"),
        ("NVIDIA_INSTALL_DIR_CONTAINER", "/usr/local/nvidia"),
        ("ROOT_MOUNT_DIR", "/root"),
    ] {
        assert_eq!(env(&installer, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(sim.spec("a").driver_root.as_deref(), Some("/srv/nvidia"));
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
}

#[test]
fn auto_selects_the_source_for_the_system_and_keeps_a_working_one() {
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
fn nvidias_plugin_works_with_googles_installer_and_its_toolkit_is_installed_beside_the_driver() {
    let spec = "{defaults: {driver: {source: GkeCos}, devicePlugin: {flavor: Nvidia}}}";
    let mut sim = node(spec, ("cos", "117"), &[]);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    let text = |stage| serde_json::to_string(&sim.sets_of(stage)[0].spec).expect("JSON");
    let (toolkit, plugin) = (text(Stage::Toolkit), text(Stage::DevicePlugin));
    assert!(toolkit.contains("--toolkit-install-dir=/home/kubernetes/bin/nvidia\""), "{toolkit}");
    assert!(plugin.contains("/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook"), "{plugin}");
    for set in [toolkit, plugin] {
        assert!(!set.contains("/usr/local/nvidia"), "this path is read-only: {set}");
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
        driver.installed.push(InstalledDriver {
            root: GKE_ROOT.into(),
            version: "580.1.1".into(),
            ..InstalledDriver::default()
        });
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{source}: {}", sim.status("a").message);
        assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
    }
}

#[test]
fn a_pool_with_another_source_inherits_nothing_specific_to_the_default_source() {
    let mut sim = node(
        "{defaults: {driver: {source: GkeCos, channel: Latest, image: {repository: own/cos}}}, pools: [{name: p, driver: {source: Container}}]}",
        ("ubuntu", "22.04"),
        &[],
    );
    sim.settle();
    assert_eq!(installer(&sim).image.as_deref(), Some("nvcr.io/nvidia/driver:595.91.07-ubuntu22.04"));
}

#[test]
fn without_a_precompiled_image_the_driver_is_compiled_and_the_node_remembers_it() {
    let tag = "595-6.8.0-60-generic-ubuntu24.04";
    let missing = format!("nvcr.io/nvidia/driver:{tag}");
    let mut sim = node("{defaults: {driver: {precompiled: true}}}", ("ubuntu", "24.04"), &[]);
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
fn the_end_of_an_installers_log_determines_the_reason() {
    for (words, reason, advice) in [
        ("curl: (6) Could not resolve host: us.download.nvidia.com", Reason::DownloadFailed, "DNS"),
        ("E: Unable to locate package linux-headers-6.8.0-60-generic", Reason::KernelHeadersUnavailable, "precompiled"),
        ("cc1: internal compiler error", Reason::ContainerCrashed, "internal compiler error"),
    ] {
        let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
        sim.faults.insert("a".into(), Faults { driver_crash: Some(words.into()), ..Faults::default() });
        sim.run(40);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(reason), "{words}: {}", status.message);
        assert!(status.message.contains(words) && status.message.contains(advice), "{}", status.message);
    }
}

#[test]
fn five_models_get_drivers_of_three_branches_and_each_unsupported_version_is_rejected() {
    let models = [("k80", "102d"), ("p100", "15f9"), ("t4", "1eb8"), ("h100", "2330"), ("b200", "2901")];
    let mut sim = Sim::new().policy("all", "{}");
    for (name, id) in models {
        sim.join(name, id, 2);
    }
    sim.settle();
    let images = |sim: &Sim| sim.sets_of(Stage::Driver).into_iter().map(Sim::image).collect::<Vec<_>>();
    assert_eq!(images(&sim).len(), 5);
    let branches: std::collections::BTreeSet<_> =
        images(&sim).iter().map(|image| image.split(':').nth(1).expect("a tag")[..3].to_owned()).collect();
    assert_eq!(branches.into_iter().collect::<Vec<_>>(), ["470", "580", "595"]);
    let before = images(&sim);
    for (name, model, wrong, last) in [
        ("k80", "nvidia-tesla-k80", "595.91.07", "up to branch 470"),
        ("p100", "nvidia-tesla-p100", "595.91.07", "up to branch 580"),
        ("t4", "nvidia-tesla-t4", "390.157", "from branch 410"),
        ("h100", "nvidia-h100-80gb", "470.256.02", "from branch 525"),
        ("b200", "nvidia-b200", "535.309.01", "from version 570.133.20"),
    ] {
        for source in ["Container", "RunFile"] {
            let pin = format!(
                "{{source: {source}, sha256: a1, version: {wrong}, image: {{repository: own/driver, tag: a}}}}"
            );
            sim.apply_policy(
                "all",
                &format!("{{pools: [{{name: pinned, match: {{models: [{model}]}}, driver: {pin}}}]}}"),
            );
            sim.settle();
            let status = sim.policy_status("all");
            let pool = status.pools.iter().find(|pool| pool.name == "pinned").expect("the pool");
            assert_eq!(pool.reason(), Some(Reason::DriverUnsupported), "{name}");
            assert!(pool.message.contains(last), "{name}: {}", pool.message);
            assert_eq!(images(&sim), before, "{name}: nothing changes");
            assert!(models.iter().all(|(node, _)| sim.status(*node).is_ready()), "{name}");
        }
    }
}

const CUSTOM: &str = "{models: [{name: nvidia-custom, pciIDs: [fff1], architecture: Kepler, memoryMiB: 4096}], pools: [{name: p, match: {models: [nvidia-custom]}}]}";

#[test]
fn a_model_that_a_policy_adds_applies_to_all_policies() {
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("older", "{nodeSelector: {matchLabels: {zone: a}}}");
    sim.label("a", "zone", Some("a"));
    sim.report("a").os.version_id = "20.04".into();
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-10de-fff1");
    sim.apply_policy("newer", CUSTOM);
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-custom", "{}", sim.status("a").message);
    assert_eq!(sim.node("a").labels[keys::POOL], "nvidia-custom", "the older policy governs the node");
    assert_eq!(Sim::image(sim.sets_of(Stage::Driver)[0]), "nvcr.io/nvidia/driver:470.256.02-ubuntu20.04");
    assert_eq!(sim.condition("newer", "Accepted").0, "True");
}

#[test]
fn a_model_of_an_architecture_that_this_version_does_not_know_gets_the_driver_that_the_policy_describes() {
    let added = "{models: [{name: nvidia-r100, pciIDs: [fff1], architecture: Rubin, driver: {firstBranch: 590}, modules: OpenOnly}]}";
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("all", added);
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-r100", "{}", sim.status("a").message);
    assert!(sim.status("a").is_ready(), "{}", sim.status("a").message);
    let pinned = added.replacen('{', "{defaults: {driver: {version: 580.173.02}}, ", 1);
    sim.apply_policy("all", &pinned);
    sim.settle();
    let pool = &sim.policy_status("all").pools[0];
    assert!(pool.message.contains("nvidia-r100 (Rubin) is supported from branch 590 on"), "{}", pool.message);
}

#[test]
fn a_model_that_is_already_known_is_reported_and_changes_nothing() {
    for (models, words) in [
        ("[{name: nvidia-tesla-t4, pciIDs: [fff1], architecture: Ada}]", "nvidia-tesla-t4 is already in the catalogue"),
        ("[{name: custom, pciIDs: [1eb8], architecture: Ada}]", "PCI id 1eb8 of custom belongs to nvidia-tesla-t4"),
        (
            "[{name: custom, pciIDs: [fff1], architecture: Ada}, {name: other, pciIDs: [fff1], architecture: Ada}]",
            "PCI id fff1 of other belongs to custom",
        ),
    ] {
        let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
        sim.settle();
        let before = (sim.sets.clone(), sim.node("a").labels.clone());
        sim.apply_policy("all", &format!("{{models: {models}}}"));
        sim.settle();
        assert_eq!((sim.sets.clone(), sim.node("a").labels.clone()), before, "{models}");
        assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()), "{models}");
        let conditions = sim.policy_status("all").conditions;
        assert!(conditions.iter().any(|condition| condition.message.contains(words)), "{models}: {conditions:?}");
    }
}

#[test]
fn of_two_policies_that_add_a_model_the_older_one_applies() {
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("older", CUSTOM);
    sim.report("a").os.version_id = "20.04".into();
    sim.apply_policy("newer", &CUSTOM.replace("Kepler", "Hopper"));
    sim.settle();
    assert_eq!(Sim::image(sim.sets_of(Stage::Driver)[0]), "nvcr.io/nvidia/driver:470.256.02-ubuntu20.04");
    assert_eq!(sim.condition("newer", "Accepted").0, "False");
    assert_eq!(sim.condition("older", "Accepted").0, "True");
    sim.apply_policy("newer", CUSTOM);
    sim.settle();
    assert_eq!(sim.condition("newer", "Accepted").0, "True", "equal definitions do not conflict");
}

#[test]
fn a_system_without_an_image_of_the_newest_version_gets_the_newest_that_has_one() {
    let mut sim = node("{}", ("ubuntu", "20.04"), &[]);
    sim.settle();
    assert_eq!(Sim::image(sim.sets_of(Stage::Driver)[0]), "nvcr.io/nvidia/driver:570.172.08-ubuntu20.04");
}

#[test]
fn the_highest_cuda_version_is_reported_from_the_start_and_follows_the_driver() {
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.settle();
    let reported = |sim: &Sim| {
        (sim.node("a").labels[keys::CUDA_VERSION].to_string(), sim.status("a").cuda.expect("a CUDA version"))
    };
    assert_eq!(reported(&sim), ("13.2".into(), "13.2".into()));
    assert!(sim.writes["node/a"] <= 4, "{:?}", sim.writes);
    // A driver whose update is pending is not the one in use.
    sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
    sim.apply_policy("all", "{defaults: {driver: {version: 535.309.01}}}");
    sim.run(30);
    assert_eq!(reported(&sim), ("13.2".into(), "13.2".into()));
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(reported(&sim), ("12.2".into(), "12.2".into()));
    sim.delete_policy("all");
    sim.settle();
    assert!(!sim.node("a").labels.contains_key(keys::CUDA_VERSION));
}

#[test]
fn a_host_driver_of_an_unknown_branch_reports_its_cuda_version_itself() {
    for (version, expected) in [("430.34", "10.1"), ("999.1.1", "99.1")] {
        let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
        sim.host_driver("a", version, true);
        sim.report("a").driver.cuda_version = Some("99.1".into());
        sim.settle();
        assert_eq!(sim.status("a").cuda.as_deref(), Some(expected), "{version}");
    }
}

#[test]
fn an_installed_driver_other_than_the_loaded_one_requires_a_reboot() {
    for spec in [
        "{}",
        "{defaults: {driver: {source: RunFile, sha256: a1, version: 535.309.01, image: {repository: own/run-file, tag: ubuntu22.04}}}}",
    ] {
        let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
        if spec == "{}" {
            let installed =
                InstalledDriver { root: "/".into(), version: "535.309.01".into(), ..InstalledDriver::default() };
            sim.report("a").driver.installed.push(installed);
        } else {
            sim.settle();
        }
        // Another program on the host has loaded an older driver and uses it.
        sim.report("a").driver.loaded = Some("470.256.02".into());
        sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
        sim.faults.insert("a".into(), Faults { publishes: Some(0), ..Faults::default() });
        sim.run(60);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::RebootNeeded), "{spec}: {}", status.message);
        assert!(status.message.contains("470.256.02") && status.message.contains("reboot"), "{}", status.message);
    }
}

#[test]
fn the_probe_releases_the_driver_only_for_a_container_that_waits_at_its_guard() {
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

#[test]
fn a_driver_left_in_the_cache_of_googles_installer_is_not_a_host_driver_unless_loaded() {
    for (loaded, managed) in [(false, true), (true, false)] {
        let mut sim = node("{}", ("cos", "117"), &[(NODE_POOL, "gpus")]);
        let driver = &mut sim.report("a").driver;
        driver.installed.push(InstalledDriver {
            root: GKE_ROOT.into(),
            version: "580.1.1".into(),
            ..InstalledDriver::default()
        });
        driver.loaded = loaded.then(|| "580.1.1".into());
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
        assert_eq!(sim.node("a").labels.contains_key(keys::DRIVER), managed, "a suitable loaded driver is kept");
    }
}

#[test]
fn a_loaded_module_whose_library_is_not_found_is_never_overwritten_by_auto() {
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.report("a").driver.loaded = Some("535.261.03".into());
    sim.run(15);
    // The module may belong to an installation in progress.
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverInstalling), "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty() && !sim.node("a").labels.contains_key(keys::DRIVER));
    sim.run(60);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverLibraryNotFound)));
    for words in ["nvidia 535.261.03", "libnvidia-ml.so.535.261.03", "installDir", "source: Container"] {
        assert!(status.message.contains(words), "{words}: {}", status.message);
    }
    assert!(sim.sets_of(Stage::Driver).is_empty() && !sim.node("a").labels.contains_key(keys::DRIVER));
    let mut explicit = sim.clone();
    // The installer writes the libraries shortly after it has loaded the module.
    let library = InstalledDriver { root: "/".into(), version: "535.261.03".into(), ..InstalledDriver::default() };
    sim.report("a").driver.installed.push(library);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty());
    // An explicitly requested container is installed.
    explicit.apply_policy("all", "{defaults: {driver: {source: Container}}}");
    explicit.settle();
    assert_eq!(explicit.report("a").driver.loaded.as_deref(), Some("595.91.07"));
}

#[test]
fn a_module_without_libraries_that_a_container_left_behind_is_not_taken_for_a_host_driver() {
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
    let spec = "{defaults: {driver: {source: Preinstalled, installDir: /opt/vendor}}}";
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.run(40);
    assert_eq!(sim.spec("a").driver_root.as_deref(), Some("/opt/vendor"));
    assert_eq!(sim.status("a").reason(), Some(Reason::DriverNotInstalled), "{}", sim.status("a").message);
    sim.report("a").driver.loaded = Some("535.261.03".into());
    sim.run(40);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::DriverLibraryNotFound));
    assert!(status.message.contains("libnvidia-ml.so.535.261.03 is not under /opt/vendor"), "{}", status.message);
    let library =
        InstalledDriver { root: "/opt/vendor".into(), version: "535.261.03".into(), ..InstalledDriver::default() };
    sim.report("a").driver.installed.push(library);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    assert!(sim.sets_of(Stage::Driver).is_empty());
    let plugin = sim.sets_of(Stage::DevicePlugin)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let plugin = &plugin.containers[0];
    assert_eq!(env(plugin, "NVIDIA_DRIVER_ROOT").as_deref(), Some("/opt/vendor"));
    assert_eq!(env(plugin, "NVIDIA_DEV_ROOT").as_deref(), Some("/"));
}

#[test]
fn a_pool_does_not_inherit_the_install_dir_of_another_source() {
    let spec = "{defaults: {driver: {source: RunFile, sha256: a1, installDir: /opt/nvidia}}, pools: [{name: p, driver: {source: Preinstalled}}]}";
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.host_driver("a", "535.261.03", true);
    sim.settle();
    assert_eq!(sim.spec("a").driver_root, None);
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
}

/// Returns a node whose GPU is bound to nouveau.
pub(crate) fn bound_to_nouveau(spec: &str) -> Sim {
    let mut sim = node(spec, ("ubuntu", "22.04"), &[]);
    sim.report("a").gpus[0].held_by = Some("nouveau".into());
    sim
}

#[test]
fn gpus_bound_to_nouveau_are_reported_with_instructions() {
    let crash = "modprobe: ERROR: could not insert 'nvidia': No such device";
    for spec in [
        "{}",
        "{defaults: {driver: {source: RunFile, sha256: a1, version: 580.173.02, image: {repository: own/run-file, tag: a}}}}",
    ] {
        let mut sim = bound_to_nouveau(spec);
        sim.faults.insert("a".into(), Faults { driver_crash: Some(crash.into()), ..Faults::default() });
        sim.run(60);
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::NouveauLoaded)), "{}", status.message);
        for words in ["GPU 0000:06:00.0 is bound to kernel driver nouveau", "driver@a", "modprobe.d", "reboot"] {
            assert!(status.message.contains(words), "{words}: {}", status.message);
        }
        // Once nouveau is gone, other problems are reported.
        sim.report("a").gpus[0].held_by = None;
        sim.run(60);
        assert_ne!(sim.status("a").reason(), Some(Reason::NouveauLoaded));
    }
    let mut sim = bound_to_nouveau("{}");
    sim.host_driver("a", "580.173.02", false);
    sim.run(40);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::NouveauLoaded), "{}", status.message);
    assert!(status.message.contains("the host's NVIDIA driver cannot be loaded"), "{}", status.message);
}

#[test]
fn nouveau_is_unloaded_before_a_driver_is_installed_on_systems_that_may_load_it() {
    for (spec, os, expected) in [
        ("{}", ("ubuntu", "22.04"), true),
        (
            "{defaults: {driver: {source: RunFile, sha256: a1, version: 580.173.02, image: {repository: own/run-file, tag: a}}}}",
            ("ubuntu", "22.04"),
            true,
        ),
        ("{defaults: {driver: {source: GkeCos}}}", ("cos", "117"), false),
        ("{defaults: {driver: {source: GkeUbuntu}}}", ("ubuntu", "22.04"), false),
    ] {
        let mut sim = node(spec, os, &[]);
        sim.settle();
        let set = sim.sets_of(Stage::Driver)[0].spec.clone();
        let init =
            set.and_then(|spec| spec.template.spec).and_then(|pod| pod.init_containers).expect("init containers");
        let at = |name: &str| init.iter().position(|container| container.name == name);
        assert_eq!(at("unload-nouveau").is_some(), expected, "{spec}");
        assert!(at("unload-nouveau") < at("install-driver") || at("install-driver").is_none(), "{spec}");
        let steps = init.iter().filter(|container| container.name == "unload-nouveau");
        for step in steps {
            assert_eq!(step.image.as_deref(), Some(sim.settings.probe_image.as_str()));
            assert_eq!(step.security_context.as_ref().and_then(|security| security.privileged), Some(true));
        }
    }
}

#[test]
fn gpus_passed_through_to_virtual_machines_are_reported_and_not_counted() {
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.report("a").passed_through = 2;
    sim.settle();
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpusPassedThrough)));
    assert!(status.message.contains("2 GPUs are bound to vfio-pci"), "{}", status.message);
    assert_eq!(status.gpus.summary, "1/1");
    assert!(sim.policy_status("all").attention.is_empty(), "nothing is wrong");
    // The message distinguishes a GPU that is passed through from one that is lost.
    let report = sim.report("a");
    report.passed_through = 3;
    report.gpus.clear();
    sim.run(60);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::GpuMissing));
    assert!(status.message.contains("3 GPUs are bound to vfio-pci"), "{}", status.message);
}

#[test]
fn gpus_that_are_bound_to_vfio_later_are_no_longer_expected() {
    for spec in ["{}", "{pools: [{name: p, gpusPerNode: 8}]}"] {
        let taint = "{onUnhealthy: {mode: Taint, taint: {effect: NoExecute}}}";
        let mut sim = Sim::settled_fleet(&format!("{{health: {taint}, {}", &spec[1..]), &["a"]);
        assert_eq!(sim.status("a").gpus.summary, "8/8", "{spec}");
        sim.pass_through("a", 2);
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpusPassedThrough)), "{spec}");
        assert_eq!((status.gpus.summary.as_str(), status.gpus.unhealthy), ("6/6", 0), "{spec}");
        assert_eq!(sim.node("a").own_taint, None, "{spec}: the pods on the other GPUs keep running");
        // One more is lost, which is not the same.
        sim.report("a").gpus.pop();
        sim.run(30);
        let status = sim.status("a");
        assert_eq!((status.reason(), status.gpus.unhealthy), (Some(Reason::GpuMissing), 1), "{spec}");
        assert!(status.message.contains("5 of 6 expected GPUs"), "{spec}: {}", status.message);
        assert!(status.message.contains("missing: 0000:0b:00.0;"), "{spec}: {}", status.message);
        // They are bound to NVIDIA's driver again.
        sim.pass_through("a", 0);
        sim.plug("a", &["2330"; 8]);
        sim.settle();
        assert_eq!(sim.status("a").gpus.summary, "8/8", "{spec}");
    }
}

#[test]
fn a_pools_number_holds_while_as_many_gpus_are_left() {
    let mut sim = Sim::settled_fleet("{pools: [{name: p, gpusPerNode: 6}]}", &["a"]);
    for (passed_through, summary) in [(1, "7/6"), (2, "6/6"), (3, "5/5"), (0, "8/6")] {
        sim.pass_through("a", passed_through);
        sim.settle();
        assert_eq!(sim.status("a").gpus.summary, summary, "{passed_through} GPUs are passed through");
    }
}

#[test]
fn a_node_whose_gpus_are_all_passed_through_is_no_gpu_node() {
    let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a", "b"]);
    sim.pass_through("a", 8);
    sim.sleep(120);
    sim.settle();
    assert_eq!(sim.policy_status("all").nodes.total, 1);
    assert_eq!(sim.condition("all", "Ready").0, "True");
    let left: Vec<_> = sim.node("a").labels.keys().filter(|key| key.starts_with(keys::PREFIX)).collect();
    assert!(left.is_empty(), "{left:?}");
}
