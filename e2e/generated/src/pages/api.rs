//! The fields of policies and `GpuNodes`, from the schemas of their CRDs.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value};

use super::page::{Page, code, listed};
use crate::file::Generated;

/// The source of every page.
const SOURCE: &str = "the types in crates/crd";

/// Fields of Kubernetes' own types, which its documentation describes: name and type.
const OF_KUBERNETES: [(&str, &str); 3] =
    [("conditions", "Condition"), ("env", "EnvVar"), ("tolerations", "Toleration")];

/// Enumerations with more values than this are listed once per page.
const MANY: usize = 10;

/// Defaults of fields that are written even if they are empty.
const NO_DEFAULTS: [&str; 2] = ["\"\"", "0"];

/// A page of fields.
struct Part {
    name: &'static str,
    title: &'static str,
    text: &'static str,
    /// Index of the CRD.
    crd: usize,
    /// The paths below which all fields are on this page, unless a longer path of another page fits.
    paths: &'static [&'static str],
}

const PARTS: [Part; 5] = [
    Part {
        name: "api-policy",
        title: "Fields of a ClusterGpuPolicy",
        text: "All fields are optional, except where a list entry requires them. [policy.md](policy.md) shows them in one example. The API server\n\
               also checks rules between fields, whose messages name the correction. `driver`, `toolkit`, `devicePlugin` and `allocation` are\n\
               on a [page of their own](api-operands.md), and the status is on [another](api-policy-status.md).",
        crd: 0,
        paths: &["spec"],
    },
    Part {
        name: "api-operands",
        title: "Fields of driver, toolkit, device plugin and allocation",
        text: "These fields of a ClusterGpuPolicy are valid in `spec.defaults` and in each of `spec.pools`, where `driver`, `toolkit`,\n\
               `devicePlugin` and `allocation` each replace that of the defaults as a whole. Guides: [drivers](../guides/drivers.md),\n\
               [container runtimes](../guides/runtimes.md), [sharing](../guides/sharing.md), [MIG](../guides/mig.md), [DRA](../guides/dra.md).",
        crd: 0,
        paths: &[
            "spec.defaults.driver",
            "spec.defaults.toolkit",
            "spec.defaults.devicePlugin",
            "spec.defaults.allocation",
        ],
    },
    Part {
        name: "api-policy-status",
        title: "Status of a ClusterGpuPolicy",
        text: "The operator writes these fields. [Readiness and status](../concepts/readiness.md) explains how to read them.",
        crd: 0,
        paths: &["status"],
    },
    Part {
        name: "api-gpunode",
        title: "Fields of a GpuNode",
        text: "The operator writes `spec` and `status`, and the probe writes `status.report`, which is on a\n\
               [page of its own](api-gpunode-report.md). Users change neither. Versions of the operator add values to enumerations; programs\n\
               that read GpuNodes should accept values that they do not know.",
        crd: 1,
        paths: &["spec", "status"],
    },
    Part {
        name: "api-gpunode-report",
        title: "The report of a GpuNode",
        text: "The probe of a node writes these fields. Those that come from NVML are absent until the driver works.",
        crd: 1,
        paths: &["status.report"],
    },
];

pub(super) fn pages() -> Result<Vec<Generated>> {
    let mut pages: Vec<_> = PARTS.iter().map(begun).collect();
    for (crd, (_, definition)) in gpu_operator_crd::crds().into_iter().enumerate() {
        let definition = serde_json::to_value(&definition.spec.versions[0].schema)?;
        let fields = &definition["openAPIV3Schema"]["properties"];
        let mut reader =
            Reader { crd, described: BTreeMap::new(), enumerations: BTreeMap::new(), sections: Vec::new() };
        for name in ["spec", "status"] {
            reader.section(name, &fields[name]);
        }
        for Section { path, items } in reader.sections {
            let page = &mut pages[part_of(crd, &path)];
            page.heading(2, &code(&path));
            page.block(&items.join("\n"));
        }
    }
    Ok(pages.into_iter().map(Page::end).collect())
}

fn begun(part: &Part) -> Page {
    let mut page = Page::new(part.name, SOURCE, part.title);
    page.block(part.text);
    page
}

/// Returns the index of the page for a path.
fn part_of(crd: usize, path: &str) -> usize {
    let fits = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let longest = |part: &Part| part.paths.iter().filter(|of| fits(of)).map(|of| of.len()).max().unwrap_or_default();
    let parts = PARTS.iter().enumerate().filter(|(_, part)| part.crd == crd);
    parts.max_by_key(|(_, part)| longest(part)).map_or(0, |(index, _)| index)
}

/// The fields of one object.
struct Section {
    path: String,
    items: Vec<String>,
}

/// Reads a schema. What occurs at several paths is described at the first.
struct Reader {
    crd: usize,
    /// The paths of objects, by their fields.
    described: BTreeMap<String, String>,
    /// The paths of long enumerations, by their values.
    enumerations: BTreeMap<String, String>,
    sections: Vec<Section>,
}

impl Reader {
    /// Reads an object, and after it the objects in it.
    fn section(&mut self, path: &str, schema: &Value) {
        let index = self.sections.len();
        self.sections.push(Section { path: path.to_owned(), items: Vec::new() });
        self.described.insert(fields_of(schema), path.to_owned());
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.iter().any(|other| other == name);
            let items = self.items(path, name, field, is_required);
            self.sections[index].items.extend(items);
        }
    }

    /// Returns the lines of a field.
    fn items(&mut self, parent: &str, name: &str, field: &Value, is_required: bool) -> Vec<String> {
        let path = format!("{parent}.{name}");
        let (text, values) = description(field);
        let mut notes = vec![self.type_of(parent, &path, name, field, values.is_empty())];
        notes.extend(is_required.then(|| "required".to_owned()));
        let default = field.get("default").filter(|default| !default.is_object() && !default.is_array());
        let default = default.map(Value::to_string).filter(|default| !NO_DEFAULTS.contains(&default.as_str()));
        notes.extend(default.map(|default| format!("default `{}`", default.trim_matches('"'))));
        let item = format!("- `{name}` ({}): {text}", notes.join(", "));
        std::iter::once(item).chain(values.into_iter().map(|value| format!("  - {value}"))).collect()
    }

    fn type_of(&mut self, parent: &str, path: &str, name: &str, field: &Value, list_values: bool) -> String {
        if let Some((_, of)) = OF_KUBERNETES.iter().find(|(of, _)| *of == name) {
            return format!("list of Kubernetes' `{of}`{}", at_most(&field["maxItems"], ""));
        }
        let items = &field["items"];
        match field["type"].as_str() {
            Some("array") if items["properties"].is_object() => {
                format!("list of {}{}", self.object(parent, &format!("{path}[]"), items), bounds_of_list(field))
            }
            Some("array") => format!("list of {}{}", self.scalar(path, items, true, true), bounds_of_list(field)),
            Some("object") if field["properties"].is_object() => self.object(parent, path, field),
            Some("object") => {
                let values = self.scalar(path, &field["additionalProperties"], true, true);
                format!("map of {values}{}", at_most(&field["maxProperties"], " keys"))
            }
            _ => self.scalar(path, field, false, list_values),
        }
    }

    /// Returns a link to the fields of an object, and reads them if they have not been described.
    fn object(&mut self, parent: &str, path: &str, schema: &Value) -> String {
        if let Some(described) = self.described.get(&fields_of(schema)) {
            return format!("fields as in {}", self.link(parent, described, described));
        }
        self.section(path, schema);
        self.link(parent, path, "fields")
    }

    fn link(&self, from: &str, path: &str, text: &str) -> String {
        let (here, there) = (part_of(self.crd, from), part_of(self.crd, path));
        let page = if here == there { String::new() } else { format!("{}.md", PARTS[there].name) };
        let anchor: String = path.chars().filter(char::is_ascii_alphanumeric).collect();
        let text = if text == path { code(text) } else { text.to_owned() };
        format!("[{text}]({page}#{})", anchor.to_lowercase())
    }

    /// Returns the type and the bounds of a value, or of the values of a list.
    fn scalar(&mut self, path: &str, schema: &Value, plural: bool, list_values: bool) -> String {
        let values: Vec<_> =
            schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(code).collect();
        if !values.is_empty() {
            let all = listed(&values, "or");
            if values.len() > MANY
                && let Some(other) = self.enumerations.get(&all)
            {
                return format!("values as in `{other}`");
            }
            if list_values {
                self.enumerations.insert(all.clone(), path.to_owned());
            }
            return if list_values { all } else { "string".to_owned() };
        }
        let kind = match (schema["type"].as_str(), schema["format"].as_str()) {
            (Some("string"), Some("date-time")) => "time",
            (Some(kind), _) => kind,
            (None, _) => "integer or string",
        };
        let kind = if plural { format!("{}s", kind.replace(" or ", "s or ")) } else { kind.to_owned() };
        // The only integers with one bound are counts, which are not negative.
        let range = match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
            (Some(least), Some(most)) => format!("{}{least} to {most}", if plural { " from " } else { ", " }),
            _ => String::new(),
        };
        let length = match schema["maxLength"].as_u64() {
            // The longest value of an enumeration that grows means nothing to a user.
            Some(_) if schema["pattern"].is_string() => String::new(),
            _ => at_most(&schema["maxLength"], " characters"),
        };
        let length = if plural { length.replace(',', " of") } else { length };
        format!("{kind}{range}{length}")
    }
}

/// Returns the fields of an object as text, without what may differ between two paths: the rules.
fn fields_of(schema: &Value) -> String {
    fn without_rules(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let kept = map.iter().filter(|(key, _)| *key != "x-kubernetes-validations");
                Value::Object(kept.map(|(key, value)| (key.clone(), without_rules(value))).collect::<Map<_, _>>())
            }
            Value::Array(items) => items.iter().map(without_rules).collect(),
            other => other.clone(),
        }
    }
    without_rules(&schema["properties"]).to_string()
}

fn at_most(number: &Value, unit: &str) -> String {
    number.as_u64().map_or(String::new(), |number| format!(", at most {number}{unit}"))
}

fn bounds_of_list(field: &Value) -> String {
    match (field["minItems"].as_u64(), field["maxItems"].as_u64()) {
        (Some(least), Some(most)) => format!(", {least} to {most} entries"),
        _ => at_most(&field["maxItems"], " entries"),
    }
}

/// Returns a description in one line, and the descriptions of a field's values.
fn description(field: &Value) -> (String, Vec<String>) {
    let text = field["description"].as_str().unwrap_or_default();
    let (values, lines): (Vec<_>, Vec<_>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with("- "));
    let values = values.into_iter().filter_map(|line| {
        let (name, text) = line.strip_prefix("- ")?.split_once(": ")?;
        Some(format!("`{name}`: {text}"))
    });
    (lines.join(" "), values.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn items(schema: &Value) -> Vec<(String, Vec<String>)> {
        let mut reader =
            Reader { crd: 0, described: BTreeMap::new(), enumerations: BTreeMap::new(), sections: Vec::new() };
        reader.section("spec", schema);
        reader.sections.into_iter().map(|section| (section.path, section.items)).collect()
    }

    #[test]
    fn a_field_has_its_type_bounds_default_and_values() {
        let schema = json!({"required": ["count"], "properties": {
            "count": {"type": "integer", "minimum": 1.0, "maximum": 7.0, "description": "A number."},
            "mode": {"type": "string", "enum": ["A", "B"], "default": "A", "description": "A mode.\n\n- A: One.\n- B: Two."},
            "names": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 9}, "description": "Names."},
        }});
        let expected = [
            "- `count` (integer, 1 to 7, required): A number.",
            "- `mode` (string, default `A`): A mode.",
            "  - `A`: One.",
            "  - `B`: Two.",
            "- `names` (list of strings of at most 9 characters, at most 2 entries): Names.",
        ];
        assert_eq!(items(&schema), [("spec".to_owned(), expected.map(str::to_owned).to_vec())]);
    }

    #[test]
    fn objects_with_the_same_fields_are_described_once() {
        let object = |text: &str, rule: &str| {
            let fields = json!({"x": {"type": "boolean", "description": "X.", "x-kubernetes-validations": [rule]}});
            json!({"type": "object", "description": text, "properties": fields})
        };
        let schema = json!({"properties": {"a": object("The first.", "1"), "b": object("The second.", "2")}});
        let expected = [
            (
                "spec",
                vec!["- `a` ([fields](#speca)): The first.", "- `b` (fields as in [`spec.a`](#speca)): The second."],
            ),
            ("spec.a", vec!["- `x` (boolean): X."]),
        ];
        let found = items(&schema);
        let found: Vec<_> = found
            .iter()
            .map(|(path, items)| (path.as_str(), items.iter().map(String::as_str).collect::<Vec<_>>()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_field_of_the_schemas_is_on_a_page() {
        fn fields(schema: &Value, path: &str, all: &mut Vec<(String, String)>) {
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                all.push((path.to_owned(), name.clone()));
                if OF_KUBERNETES.iter().all(|(of, _)| of != name) {
                    fields(field, &format!("{path}.{name}"), all);
                    fields(&field["items"], &format!("{path}.{name}[]"), all);
                }
            }
        }
        let pages = pages().expect("pages").into_iter().map(|page| page.text).collect::<String>();
        let mut checked = 0;
        for (_, crd) in gpu_operator_crd::crds() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON");
            let mut all = Vec::new();
            for name in ["spec", "status"] {
                fields(&schema["openAPIV3Schema"]["properties"][name], name, &mut all);
            }
            for (path, name) in all {
                assert!(pages.contains(&format!("\n- `{name}` (")), "{path}.{name}");
                checked += 1;
            }
        }
        assert!(checked > 300, "{checked}");
    }
}
