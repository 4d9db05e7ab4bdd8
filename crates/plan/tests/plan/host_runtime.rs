//! Container runtimes that the host has configured for NVIDIA's toolkit.

use gpu_operator_crd::{Phase, keys, policy::Stage, report::HostRuntime};

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
