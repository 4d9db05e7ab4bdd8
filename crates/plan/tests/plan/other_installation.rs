//! Components of this operator in another namespace than its own.

use gpu_operator_crd::keys;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use kube::ResourceExt;

use crate::sim::Sim;

/// Returns the DaemonSets of a settled fleet, with this number of pods each.
fn sets(pods: i32) -> Vec<DaemonSet> {
    let sim = Sim::settled_fleet("{}", &["a"]);
    let status = Some(DaemonSetStatus { current_number_scheduled: pods, ..DaemonSetStatus::default() });
    sim.sets.into_values().map(|set| DaemonSet { status: status.clone(), ..set }).collect()
}

fn beside(namespace: &str, sets: Vec<DaemonSet>) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    sim.foreign_sets = sets.into_iter().map(|set| (format!("{namespace}/{}", set.name_any()), set)).collect();
    sim.run(60);
    sim
}

#[test]
fn an_installation_in_another_namespace_is_a_conflict() {
    let mut sim = beside("gpu-old", sets(1));
    assert_eq!((sim.sets.len(), sim.node("a").labels.contains_key(keys::DRIVER)), (0, false));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "ManagerConflict".into()));
    let message = sim.message("all", "Stalled");
    assert!(message.starts_with("DaemonSet gpu-old/d") && message.contains("in namespace gpu-operator"), "{message}");
    sim.foreign_sets.clear();
    sim.settle();
    assert_eq!(sim.condition("all", "Ready").0, "True");
}

#[test]
fn a_label_alone_is_no_conflict() {
    let without_host_paths = || {
        let mut sets = sets(1);
        for set in &mut sets {
            let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).expect("a pod");
            pod.volumes = None;
        }
        sets
    };
    // A user may create any DaemonSet, and has no pods with access to the hosts; and the operator's own are no others.
    for (namespace, sets) in [("team", sets(0)), ("team", without_host_paths()), ("gpu-operator", sets(1))] {
        let sim = beside(namespace, sets);
        assert_eq!(sim.condition("all", "Ready").0, "True", "{namespace}");
    }
}
