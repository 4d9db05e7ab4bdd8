//! Drift: manual changes of this operator's DaemonSets are reverted, with no other writes.

use crate::sim::Sim;
use gpu_operator_crd::keys;
use gpu_operator_plan::output::body::Kind;
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::PodSpec},
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry},
};
use serde_json::json;
use test_support::planned::Planned;

/// Returns a settled node whose driver DaemonSet is edited manually.
fn edited(edit: impl FnOnce(&mut DaemonSet)) -> (Sim, String, DaemonSet) {
    let mut sim = Sim::settled_fleet("{defaults: {driver: {resources: {limits: {cpu: 1000m}}}}}", &["a"]);
    let (name, before) = sim
        .sets
        .iter()
        .find(|(name, _)| name.starts_with("driver-"))
        .map(|(n, s)| (n.clone(), s.clone()))
        .expect("a set");
    edit(sim.sets.get_mut(&name).expect("the set"));
    (sim, name, before)
}

fn pod(set: &mut DaemonSet) -> &mut PodSpec {
    set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).expect("a pod's spec")
}

/// Returns an entry of `managedFields` by which a manager owns these fields of the spec.
fn managed(manager: &str, spec: &serde_json::Value) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: Some(manager.into()),
        operation: Some("Update".into()),
        fields_v1: Some(FieldsV1(json!({"f:spec": spec}))),
        ..ManagedFieldsEntry::default()
    }
}

#[test]
fn changed_or_removed_fields_are_applied_again_and_no_others() {
    let edits: [fn(&mut DaemonSet); 4] = [
        |set| pod(set).containers[0].image = Some("example.com/other".into()),
        |set| pod(set).tolerations = None,
        |set| drop(pod(set).containers[0].env.as_mut().expect("some").pop()),
        |set| set.spec.as_mut().expect("a spec").update_strategy = None,
    ];
    for edit in edits {
        let (mut sim, name, before) = edited(edit);
        let plan = sim.plan();
        assert_eq!(plan.daemon_sets().keys().collect::<Vec<_>>(), [&name]);
        assert!(!plan.daemon_sets()[&name].whole, "server-side apply is sufficient");
        assert!(
            plan.labels().is_empty()
                && plan.specs().is_empty()
                && plan.node_statuses().is_empty()
                && plan.deleted(Kind::DaemonSet).is_empty(),
            "{plan:#?}"
        );
        sim.settle();
        assert_eq!(sim.sets[&name].spec, before.spec);
    }
}

#[test]
fn added_fields_are_removed_by_replacing_the_whole_object() {
    let (mut sim, name, before) = edited(|set| {
        pod(set).host_network = Some(true);
        set.metadata.managed_fields = Some(vec![
            managed(keys::MANAGER, &json!({"f:template": {"f:spec": {"f:containers": {}}}})),
            managed("kubectl-edit", &json!({"f:template": {"f:spec": {"f:hostNetwork": {}}}})),
        ]);
    });
    assert!(sim.plan().daemon_sets()[&name].whole);
    sim.settle();
    assert_eq!(sim.sets[&name].spec, before.spec);
}

#[test]
fn normalized_or_defaulted_values_are_not_drift() {
    let (sim, _, _) = edited(|set| {
        let cpu = pod(set).containers[0].resources.as_mut().and_then(|all| all.limits.as_mut()).expect("limits");
        cpu.insert("cpu".into(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("1".into()));
        pod(set).dns_policy = Some("ClusterFirst".into());
        set.metadata.managed_fields = Some(vec![
            managed(keys::MANAGER, &json!({"f:template": {"f:spec": {"f:hostPID": {}}}})),
            // Another manager that co-owns this operator's fields has added none; the DaemonSet controller owns only
            // the status.
            managed("another-manager", &json!({"f:template": {"f:spec": {"f:hostPID": {}}}})),
        ]);
    });
    assert!(sim.plan().is_empty(), "{:#?}", sim.plan());
}

#[test]
fn a_deleted_runtime_class_and_an_edited_spec_are_restored() {
    let mut sim = Sim::settled_fleet("{defaults: {toolkit: {injection: Runtime}}}", &["a", "b"]);
    let (classes, spec) = (sim.runtime_classes.clone(), sim.spec("a").clone());
    assert_eq!(classes.len(), 1);
    sim.runtime_classes.clear();
    let edited = &mut sim.gpu_nodes.get_mut(&"a".into()).expect("a GpuNode").spec;
    (edited.pool, edited.release_driver, edited.wanted.driver) = (Some("other".into()), true, None);
    let plan = sim.plan();
    assert_eq!(plan.specs().into_keys().collect::<Vec<_>>(), ["a"]);
    assert!(plan.labels().is_empty() && plan.daemon_sets().is_empty(), "{plan:#?}");
    sim.settle();
    assert_eq!((&sim.runtime_classes, sim.spec("a")), (&classes, &spec));
}
