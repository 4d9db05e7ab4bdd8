//! What `kubectl get` prints in each state of a policy and of a node: the columns of the CRDs, evaluated on the objects that the
//! plan writes.

use std::fmt::Write;

use crate::{
    health::set_health,
    robust::{NEW, OLD},
    sim::{Faults, Sim, machine::Test},
};
use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicySpec, GpuNode, health::HealthState};
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::Value;

/// Returns the headings of a CRD's columns, without those of `-o wide`, and the row of an object.
///
/// All paths of the CRDs are field names joined by dots. A column without a value is printed as `<none>` by kubectl.
fn row<K: CustomResourceExt>(object: &impl Serialize) -> (Vec<String>, Vec<String>) {
    let object = serde_json::to_value(object).expect("JSON");
    let version = K::crd().spec.versions.remove(0);
    let columns = version.additional_printer_columns.unwrap_or_default();
    // Ages are relative to the time of the request.
    let columns =
        columns.into_iter().filter(|column| column.priority.unwrap_or_default() == 0 && column.type_ != "date");
    let cell = |path: &str| {
        let value = path.trim_start_matches('.').split('.').fold(&object, |value, field| &value[field]);
        match value {
            Value::Null => "<none>".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    };
    columns.map(|column| (column.name.to_uppercase(), cell(&column.json_path))).unzip()
}

/// Returns a table with aligned columns.
fn table(rows: &[(&str, Vec<String>)]) -> String {
    let width = |index: usize| rows.iter().map(|(_, row)| row[index].len()).max().unwrap_or_default();
    let first = rows.iter().map(|(state, _)| state.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (state, row) in rows {
        let mut line = format!("{state:first$}");
        for (index, cell) in row.iter().enumerate() {
            write!(line, "   {cell:0$}", width(index)).expect("a string takes everything");
        }
        writeln!(text, "{}", line.trim_end()).expect("a string takes everything");
    }
    text
}

fn shown<K: CustomResourceExt, O: Serialize>(name: &str, states: &[(&'static str, O)]) {
    let headings = states.first().map(|(_, object)| ("", row::<K>(object).0));
    let rows = states.iter().map(|(state, object)| (*state, row::<K>(object).1));
    let rows: Vec<_> = headings.into_iter().chain(rows).collect();
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, table(&rows));
    });
}

fn two(spec: &str) -> Sim {
    Sim::settled_fleet(spec, &["a", "b"])
}

/// Returns a simulation after a change and the time that its effects need.
fn after(mut sim: Sim, change: impl FnOnce(&mut Sim)) -> Sim {
    change(&mut sim);
    sim.run(60);
    sim
}

fn failing(node: &str, faults: Faults) -> impl FnOnce(&mut Sim) {
    let node = node.to_owned();
    move |sim| drop(sim.faults.insert(node.as_str().into(), faults))
}

#[test]
fn kubectl_prints_the_state_of_a_policy() {
    let missing = || Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() };
    let installing = || Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let least = "{readiness: {minReadyNodes: 1}}";
    let states = [
        ("no node matches", after(Sim::new().policy("all", "{}"), |_| {})),
        ("no node, none required", after(Sim::new().policy("all", "{readiness: {minReadyNodes: 0}}"), |_| {})),
        ("first installation", after(installing(), failing("a", Faults { slow: 600, ..Faults::default() }))),
        ("a driver that fails", {
            let crash = Some("cc1: internal compiler error".to_owned());
            after(installing(), failing("a", Faults { driver_crash: crash, ..Faults::default() }))
        }),
        ("all ready", two("{}")),
        ("one of two ready, one required", {
            let publishes = Faults { publishes: Some(7), ..Faults::default() };
            let sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", least);
            after(sim, failing("b", publishes))
        }),
        ("update, a node at a time", {
            let slow = Faults { slow: 600, ..Faults::default() };
            after(after(two(OLD), failing("a", slow)).policy("all", NEW), |_| {})
        }),
        ("the same, one required", {
            let slow = Faults { slow: 600, ..Faults::default() };
            let with = |spec: &str| spec.replacen('{', "{readiness: {minReadyNodes: 1}, ", 1);
            after(after(two(&with(OLD)), failing("a", slow)).policy("all", &with(NEW)), |_| {})
        }),
        ("update halted", after(after(two(OLD), failing("a", missing())).policy("all", NEW), |_| {})),
        ("a pool that no node can reach", two("{pools: [{name: a}, {name: b, match: {models: [t4]}}]}")),
        ("a driver that does not support the model", two("{pools: [{name: p, driver: {version: 470.256.02}}]}")),
        ("a GPU with a problem", after(two("{}"), |sim| set_health(sim, 3, HealthState::Degraded))),
        ("a node that is away", after(two("{}"), |sim| sim.node_mut("b").ready = false)),
        ("a test that fails", {
            let fails = Faults { test: Test::Fails("no device".into()), ..Faults::default() };
            let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{readiness: {validation: {mode: OnInstall}}}");
            after(sim, failing("a", fails))
        }),
        ("being deleted", after(two("{}"), |sim| sim.delete_policy("all"))),
    ];
    let policies = states.iter().filter_map(|(state, sim)| {
        let shown = sim.plans.iter().rev().find_map(|plan| plan.statuses.get(&"all".into()))?;
        let policy = sim.policies.get(&"all".into()).cloned();
        let mut policy = policy.unwrap_or_else(|| ClusterGpuPolicy::new("all", ClusterGpuPolicySpec::default()));
        policy.status = Some(shown.clone());
        Some((*state, policy))
    });
    shown::<ClusterGpuPolicy, _>("columns", &policies.collect::<Vec<_>>());
}

#[test]
fn kubectl_prints_the_state_of_a_node() {
    let node = |sim: &Sim| sim.gpu_nodes[&"a".into()].clone();
    let mut without = two("{}");
    without.delete_policy("all");
    without.run(120);
    let states = [
        ("ready", node(&two("{}"))),
        ("a GPU with a problem", node(&after(two("{}"), |sim| set_health(sim, 3, HealthState::Degraded)))),
        ("away", node(&after(two("{}"), |sim| sim.node_mut("a").ready = false))),
        ("a GPU is missing", node(&after(two("{}"), |sim| sim.reboot("a", 1)))),
        ("without a policy", node(&without)),
    ];
    shown::<GpuNode, _>("columns-gpunodes", &states);
}
