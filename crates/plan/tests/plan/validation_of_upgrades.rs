//! Tests of nodes that were ready before: by mode `OnUpgrade`, and around updates.

use gpu_operator_crd::{Phase, gpunode::ValidationResult, reason::Reason};
use test_support::planned::Planned;

use crate::{
    sim::Sim,
    validation::{ON_INSTALL, failing, reported, result, tests},
};

const ON_UPGRADE: &str = "{readiness: {validation: {mode: OnUpgrade}}}";
const UPGRADED: &str =
    "{readiness: {validation: {mode: OnUpgrade}}, defaults: {devicePlugin: {image: {tag: v0.21.0}}}}";

#[test]
fn a_node_that_was_ready_before_is_not_tested() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.apply_policy("all", ON_UPGRADE);
    for _ in 0..30 {
        sim.step();
        sim.sleep(1);
        assert_eq!((reported(&sim, "a").0, reported(&sim, "b").0), (Phase::Ready, Phase::Ready));
    }
    assert_eq!((result(&sim, "a"), tests(&sim)), (Some(ValidationResult::Skipped), 0));
    // The node is not tested after an outage and a reboot either.
    sim.node_mut("a").ready = false;
    sim.steps(40);
    assert_eq!(reported(&sim, "a").1, Reason::NodeNotReady);
    sim.node_mut("a").ready = true;
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!((reported(&sim, "a").0, tests(&sim)), (Phase::Ready, 0));
}

#[test]
fn an_upgrade_is_complete_once_its_test_has_passed() {
    let mut sim = Sim::settled_fleet(ON_UPGRADE, &["a", "b"]);
    assert_eq!(tests(&sim), 2);
    sim.faults.insert("a".into(), failing());
    sim.apply_policy("all", UPGRADED);
    sim.steps(110);
    assert_eq!((reported(&sim, "a").1, reported(&sim, "b").1), (Reason::ValidationFailed, Reason::RolloutPending));
    assert!(sim.is_moving("a") && !sim.is_moving("b"));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    sim.faults.clear();
    sim.steps(120);
    sim.settle();
    assert_eq!(
        (result(&sim, "a"), result(&sim, "b")),
        (Some(ValidationResult::Passed), Some(ValidationResult::Passed))
    );
    assert_eq!((tests(&sim), sim.condition("all", "Ready").0), (6, "True".into()));
}

#[test]
fn with_mode_on_install_an_upgrade_is_not_tested() {
    let mut sim = Sim::settled_fleet(ON_INSTALL, &["a", "b"]);
    sim.apply_policy(
        "all",
        "{readiness: {validation: {mode: OnInstall}}, defaults: {devicePlugin: {image: {tag: v0.21.0}}}}",
    );
    sim.settle();
    assert_eq!((tests(&sim), reported(&sim, "a").0), (2, Phase::Ready));
}

#[test]
fn no_test_is_started_on_a_node_whose_update_begins() {
    let pool = |name: &str, version: &str| {
        format!(
            "{{name: {name}, match: {{nodeSelector: {{matchLabels: {{zone: {name}}}}}}}, driver: {{version: {version}}}}}"
        )
    };
    let pools = format!("[{}, {}]", pool("old", "595.91.07"), pool("new", "590.10.01"));
    let spec = format!("{{readiness: {{validation: {{mode: OnInstall}}}}, pools: {pools}}}");
    let mut sim = Sim::new().gpu_node("b", "2330", 8).policy("all", &spec);
    sim.label("b", "zone", Some("new"));
    sim.settle();
    sim.join("a", "2330", 8);
    sim.label("a", "zone", Some("old"));
    while sim.plan().tests().is_empty() {
        assert!(sim.step(), "the test is due");
        sim.sleep(1);
    }
    // A test would use a GPU, so that the update would be given up for it, and begin again once the test is deleted.
    sim.label("a", "zone", Some("new"));
    let begins = sim.plan();
    let begun = begins.specs()[&"a".into()].spec.rollout.is_some();
    assert!(begun && begins.tests().is_empty(), "{begins:#?}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
}
