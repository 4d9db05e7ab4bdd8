//! The health that Argo CD, by the health check in the chart, and Flux, by kstatus, report for each state of a policy and of a
//! node.

use crate::{
    columns::table,
    messages::without_hash,
    sim::kstatus::{self, Kstatus},
    states,
};
use mlua::{Lua, LuaOptions, StdLib, Table, Value as LuaValue};
use serde::Serialize;
use serde_json::{Value, json};

const HEALTH: &str = include_str!("../../../../charts/gpu-operator/argocd/health.lua");
const PAGE: &str = include_str!("../../../../docs/guides/gitops.md");

/// Returns the health and the message of an object, by the rules of Argo CD: it runs the check with Lua's basic functions and
/// tables only, and not at all for an object that is being deleted.
fn argo_cd(object: &impl Serialize) -> (String, String) {
    let object = serde_json::to_value(object).expect("JSON");
    if object["metadata"].get("deletionTimestamp").is_some() {
        return ("Progressing".to_owned(), "Pending deletion".to_owned());
    }
    run(&object)
}

fn run(object: &Value) -> (String, String) {
    let lua = Lua::new_with(StdLib::TABLE, LuaOptions::default()).expect("an interpreter");
    lua.globals().set("obj", to_lua(&lua, object)).expect("a global");
    let health: Table = lua.load(HEALTH).eval().expect("a health");
    (health.get("status").expect("a status"), health.get("message").expect("a message"))
}

/// Returns a value as Argo CD passes it to the check.
fn to_lua(lua: &Lua, value: &Value) -> LuaValue {
    let table = || lua.create_table().expect("a table");
    match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(value) => LuaValue::Boolean(*value),
        Value::Number(number) => LuaValue::Number(number.as_f64().expect("a finite number")),
        Value::String(text) => LuaValue::String(lua.create_string(text).expect("a string")),
        Value::Array(items) => {
            let list = table();
            for item in items {
                list.push(to_lua(lua, item)).expect("an item");
            }
            LuaValue::Table(list)
        }
        Value::Object(fields) => {
            let map = table();
            for (name, field) in fields {
                map.set(name.as_str(), to_lua(lua, field)).expect("a field");
            }
            LuaValue::Table(map)
        }
    }
}

/// Returns the row of an object: its state according to kstatus and to Argo CD.
fn row<O: Serialize>(state: &'static str, object: &O, kstatus: Kstatus) -> (&'static str, Vec<String>) {
    let (health, message) = argo_cd(object);
    // Argo CD also has a health for what waits for something else, such as a policy; it is neither a failure nor progress.
    let expected: &[&str] = match kstatus {
        Kstatus::Current => &["Healthy", "Suspended"],
        Kstatus::Failed => &["Degraded"],
        Kstatus::InProgress | Kstatus::Terminating => &["Progressing"],
    };
    assert!(expected.contains(&health.as_str()), "{state}: {kstatus:?}, but {health}: {message}");
    (state, vec![format!("{kstatus:?}"), health, without_hash(&message)])
}

#[test]
fn argo_cd_and_kstatus_agree_on_the_health_of_each_state() {
    let policies = states::policies();
    let policies = policies.iter().map(|(state, policy)| row(state, policy, kstatus::of_policy(policy)));
    let nodes = states::gpu_nodes();
    let nodes = nodes.iter().map(|(state, node)| row(state, node, kstatus::of_gpu_node(node)));
    let headings = |kind| (kind, ["KSTATUS", "ARGO CD", "MESSAGE"].map(str::to_owned).to_vec());
    let policies = table(&[headings("POLICY")].into_iter().chain(policies).collect::<Vec<_>>());
    let nodes = table(&[headings("GPUNODE")].into_iter().chain(nodes).collect::<Vec<_>>());
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("gitops", format!("{policies}\n{nodes}"));
    });
}

#[test]
fn an_object_without_a_status_or_conditions_is_in_progress() {
    let metadata = json!({"generation": 1});
    for status in
        [Value::Null, json!({}), json!({"observedGeneration": 1}), json!({"observedGeneration": 1, "conditions": []})]
    {
        let object = json!({"metadata": metadata, "status": status});
        assert_eq!(run(&object).0, "Progressing", "{object}");
    }
}

#[test]
fn the_page_quotes_the_health_check_of_the_chart() {
    let blocks = PAGE.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let block = blocks.into_iter().find(|block| block.contains("resource.customizations")).expect("a block");
    let patch: Value = serde_yaml::from_str(block).expect("YAML");
    let checks = patch["data"].as_object().expect("keys");
    let kinds: Vec<_> = checks.keys().collect();
    let key = |kind| format!("resource.customizations.health.gpu.nodestack.dev_{kind}");
    assert_eq!(kinds, [&key("ClusterGpuPolicy"), &key("GpuNode")]);
    assert!(
        checks.values().all(|check| check == HEALTH),
        "docs/guides/gitops.md differs from argocd/health.lua of the chart"
    );
}
