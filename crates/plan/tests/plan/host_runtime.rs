//! Container runtimes that the host has configured for NVIDIA's toolkit.

use std::collections::BTreeSet;

use gpu_operator_crd::{
    Phase, keys,
    policy::Stage,
    reason::Reason,
    report::{HostRuntime, LoadedRuntime},
};
use kube::ResourceExt;

use crate::{sim::Sim, toolkit::plain_pod};

#[test]
fn a_default_runtime_of_the_host_is_kept_until_unsuitable() {
    let host_runtimes = |default| {
        let (file, handler) = ("/etc/containerd/config.toml".to_owned(), "nvidia".to_owned());
        vec![HostRuntime { file, handler, default }]
    };
    for taken_over in [false, true] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.host_driver("a", "580.95.05", true);
        sim.node_mut("a").runtime = "containerd://1.7.27".into();
        sim.report("a").runtimes = host_runtimes(true);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert!(sim.sets_of(Stage::Toolkit).is_empty());
        assert_eq!(sim.runtime_classes.keys().collect::<Vec<_>>(), ["nvidia"], "pods may refer to it by name");
        assert!(sim.status("a").message.ends_with("; runtime nvidia is configured on the host and left unchanged"));

        // The configuration file is being rewritten: no revision changes, nor does the plugin.
        let before = member_labels(&sim);
        sim.report("a").runtimes.clear();
        sim.settle();
        assert_eq!(member_labels(&sim), before);

        sim.report("a").runtimes = host_runtimes(taken_over);
        if taken_over {
            sim.apply_policy("all", "{defaults: {foreignStack: TakeOver}}");
        }
        sim.settle();
        assert_eq!(plain_pod(&sim), ("cdi-cri --enable-cdi-in-runtime=true".to_owned(), None));
        sim.report("a").runtimes = host_runtimes(true);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(sim.sets_of(Stage::Toolkit).len(), 1, "the toolkit that was installed first stays");
    }
}

fn member_labels(sim: &Sim) -> Vec<(String, String)> {
    let own = sim.node("a").labels.iter().filter(|(key, _)| key.starts_with(keys::PREFIX));
    own.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Returns a node with Docker, and a handler of NVIDIA's runtime in its configuration.
fn with_docker(handler: &str, default: bool) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.node_mut("a").runtime = "docker://27.0.3".into();
    let (file, handler) = ("/etc/docker/daemon.json".to_owned(), handler.to_owned());
    sim.report("a").runtimes = vec![HostRuntime { file, handler, default }];
    sim
}

#[test]
fn a_runtime_that_is_not_the_default_is_used_only_on_demand() {
    let mut sim = with_docker("nvidia", false);
    sim.host_driver("a", "580.95.05", true);
    for (toolkit, plain, sets) in
        [("{setAsDefault: false}", ("envvar", Some("nvidia")), 0), ("{}", ("envvar --set-as-default=true", None), 1)]
    {
        sim.apply_policy("all", &format!("{{defaults: {{toolkit: {toolkit}}}}}"));
        sim.settle();
        assert_eq!(sim.sets_of(Stage::Toolkit).len(), sets, "{toolkit}");
        let (how, class) = plain_pod(&sim);
        assert_eq!((how.as_str(), class.as_deref()), plain, "{toolkit}");
    }
}

#[test]
fn a_runtime_of_the_host_gets_a_class_that_can_name_it() {
    for (handler, classes) in [("nvidia-x", &["nvidia-x"][..]), ("nvidia_x", &[])] {
        let mut sim = with_docker(handler, true);
        sim.host_driver("a", "580.95.05", true);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready);
        assert_eq!(sim.runtime_classes.keys().collect::<Vec<_>>(), classes);
    }
}

#[test]
fn a_runtime_of_the_host_is_kept_only_with_its_driver() {
    let mut sim = with_docker("nvidia", true).policy("all", "{}");
    sim.settle();
    let stages = [Stage::Driver, Stage::Toolkit].map(|stage| sim.sets_of(stage).len());
    assert_eq!((stages, sim.status("a").phase), ([1, 1], Phase::Ready));
}

/// What containerd reports of its loaded configuration.
pub fn loaded(cdi: Option<bool>, dirs: &[&str]) -> Vec<LoadedRuntime> {
    loaded_by("/run/containerd/containerd.sock", cdi, dirs)
}

fn loaded_by(socket: &str, cdi: Option<bool>, dirs: &[&str]) -> Vec<LoadedRuntime> {
    let cdi_spec_dirs = dirs.iter().map(|dir| (*dir).to_owned()).collect();
    vec![LoadedRuntime { socket: socket.to_owned(), cdi, cdi_spec_dirs, ..LoadedRuntime::default() }]
}

const SPEC_DIRS: &[&str] = &["/etc/cdi", "/var/run/cdi"];

#[test]
fn cdi_disabled_in_containerd_is_enabled_by_the_toolkit() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.node_mut("a").runtime = "containerd://2.3.7".into();
    sim.report("a").loaded_runtimes = loaded(Some(false), SPEC_DIRS);
    sim.apply_policy("all", "{}");
    sim.settle();
    let status = sim.status("a");
    assert_eq!(
        (status.phase, status.reason()),
        (Phase::Toolkit, Some(Reason::ToolkitInstalling)),
        "{}",
        status.message
    );
    assert!(status.message.contains("enable_cdi = false"), "{}", status.message);

    let before = member_labels(&sim);
    sim.report("a").loaded_runtimes = loaded(Some(true), SPEC_DIRS);
    sim.settle();
    let status = sim.status("a");
    assert_eq!((status.phase, status.cdi_disabled), (Phase::Ready, true), "{}", status.message);
    assert_eq!(member_labels(&sim), before, "the toolkit that enables CDI stays");
    assert_eq!(plain_pod(&sim), ("cdi-cri --enable-cdi-in-runtime=true".to_owned(), None));
}

#[test]
fn gpus_that_no_container_can_have_are_not_ready() {
    for (cdi, dirs, key) in [
        (Some(false), SPEC_DIRS, "enable_cdi = false"),
        (Some(true), &["/etc/cdi"][..], "cdi_spec_dirs = [/etc/cdi]"),
        (None, &["/opt/cdi", "/etc/cdi"], "cdi_spec_dirs = [/opt/cdi, /etc/cdi]"),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        // Kubelet lists no runtime of NVIDIA's.
        sim.node_mut("a").runtime_handlers = BTreeSet::from(["runc".into()]);
        sim.report("a").loaded_runtimes = loaded(Some(true), SPEC_DIRS);
        sim.apply_policy("all", "{rollout: {paused: true}}");
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready);
        assert_eq!(plain_pod(&sim), ("cdi-cri".to_owned(), None));

        sim.report("a").loaded_runtimes = loaded(cdi, dirs);
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Toolkit, Some(Reason::CdiDisabled)), "{}", status.message);
        assert!(status.message.contains(key), "{}", status.message);
        assert_eq!(status.gpus.allocatable, 0);
        let before = member_labels(&sim);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(member_labels(&sim) != before, cdi == Some(false), "only enable_cdi has a remedy");
    }
}

#[test]
fn folders_that_crio_does_not_read_are_named() {
    const CRIO: &str = "/var/run/crio/crio.sock";
    for (dirs, key) in [(&[][..], "cdi_spec_dirs = []"), (&["/opt/cdi"], "cdi_spec_dirs = [/opt/cdi]"), (SPEC_DIRS, "")]
    {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.node_mut("a").runtime = "cri-o://1.34.1".into();
        sim.report("a").loaded_runtimes = loaded_by(CRIO, Some(!dirs.is_empty()), dirs);
        sim.apply_policy("all", "{}");
        sim.settle();
        let status = sim.status("a");
        let toolkit = serde_json::to_string(&sim.sets_of(Stage::Toolkit)[0]).expect("JSON");
        assert!(!toolkit.contains("--enable-cdi-in-runtime"), "its configuration is not changed: {toolkit}");
        if dirs == SPEC_DIRS {
            assert_eq!(plain_pod(&sim), ("cdi-cri".to_owned(), None), "its configuration is not changed");
            continue;
        }
        assert_eq!((status.phase, status.reason()), (Phase::Toolkit, Some(Reason::CdiDisabled)), "{}", status.message);
        assert!(status.message.starts_with(&format!("cri-o 1.34.1 has loaded {key}, ")), "{}", status.message);
        assert!(status.message.contains("add /var/run/cdi to cdi_spec_dirs"), "{}", status.message);
    }
}

/// Sets the default runtime that the node's container runtime has loaded.
fn set_default(sim: &mut Sim, socket: &str, default: &str) {
    let mut loaded = loaded_by(socket, None, &[]);
    loaded[0].default_runtime = Some(default.to_owned());
    sim.report("a").loaded_runtimes = loaded;
    sim.settle();
}

#[test]
fn another_default_than_nvidias_is_not_ready() {
    for (runtime, socket, file) in [
        ("docker://27.0.3", "/var/run/docker.sock", "/etc/docker/daemon.json"),
        ("containerd://1.6.9", "/run/containerd/containerd.sock", "/etc/containerd/config.toml"),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.node_mut("a").runtime = runtime.into();
        sim.apply_policy("all", "{}");
        sim.settle();
        set_default(&mut sim, socket, "nvidia");
        assert!(sim.status("a").is_ready(), "{runtime}: {}", sim.status("a").message);
        set_default(&mut sim, socket, "runc");
        sim.sleep(2 * 60);
        sim.settle();
        let status = sim.status("a");
        let expected = (Phase::Toolkit, Some(Reason::RuntimeConfigDrifted));
        assert_eq!((status.phase, status.reason()), expected, "{runtime}: {}", status.message);
        let words = [&runtime.replace("://", " "), "is runc instead of nvidia", "delete pod toolkit@a", file];
        assert!(words.iter().all(|words| status.message.contains(words)), "{}", status.message);
        set_default(&mut sim, socket, "nvidia");
        assert!(sim.status("a").is_ready(), "{runtime}: {}", sim.status("a").message);
    }
    // Pods name the RuntimeClass, whatever the default is.
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.node_mut("a").runtime = "docker://27.0.3".into();
    sim.apply_policy("all", "{defaults: {toolkit: {setAsDefault: false}}}");
    sim.settle();
    set_default(&mut sim, "/var/run/docker.sock", "runc");
    sim.sleep(2 * 60);
    sim.settle();
    assert!(sim.status("a").is_ready(), "{}", sim.status("a").message);
}

#[test]
fn the_file_containerd_was_started_with_is_written() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.node_mut("a").runtime = "containerd://1.7.27".into();
    let mut reported = loaded(Some(true), SPEC_DIRS);
    reported[0].config = Some("/etc/cri/containerd.toml".into());
    sim.report("a").loaded_runtimes = reported;
    sim.apply_policy("all", "{}");
    sim.settle();
    assert!(sim.status("a").is_ready(), "{}", sim.status("a").message);
    let pod = serde_json::to_string(&sim.template(&sim.sets_of(Stage::Toolkit)[0].name_any())).expect("JSON");
    for words in ["--config=/etc/cri/containerd.toml", "--drop-in-config=/etc/cri/conf.d/99-nvidia.toml"] {
        assert!(pod.contains(words), "{words}: {pod}");
    }
    assert!(!pod.contains("/etc/containerd"), "{pod}");
}
