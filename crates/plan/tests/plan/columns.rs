//! What `kubectl get` prints in each state of a policy and of a node: the columns of the CRDs, evaluated on the objects that the
//! plan writes.

use std::fmt::Write;

use crate::states;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
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
pub fn table(rows: &[(&str, Vec<String>)]) -> String {
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

#[test]
fn kubectl_prints_the_state_of_a_policy() {
    shown::<ClusterGpuPolicy, _>("columns", &states::policies());
}

#[test]
fn kubectl_prints_the_state_of_a_node() {
    shown::<GpuNode, _>("columns-gpunodes", &states::gpu_nodes());
}
