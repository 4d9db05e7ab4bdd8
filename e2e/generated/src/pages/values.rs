//! The values of the chart, from the comments and defaults in `values.yaml` and the types in `values.schema.json`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::page::{Page, code, listed};
use crate::file::Generated;

const CHART: &str = "charts/gpu-operator";

pub(super) fn page(checkout: &Path) -> Result<Generated> {
    let read = |name: &str| {
        let file = checkout.join(CHART).join(name);
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    };
    page_of(&read("values.yaml")?, &serde_json::from_str(&read("values.schema.json")?)?)
}

fn page_of(yaml: &str, schema: &Value) -> Result<Generated> {
    let mut page = Page::new("values", "charts/gpu-operator/values.yaml", "Values of the chart");
    page.block(
        "The values of [charts/gpu-operator](../../charts/gpu-operator), for `helm install --set` or a file of `--values`. Unknown values are\n\
         rejected. Drivers, toolkits and device plugins are not configured here, but in a [policy](api-policy.md).",
    );
    let values = serde_yaml::from_str(yaml)?;
    let mut walk = Walk { comments: comments(yaml), schema, sections: Vec::new() };
    walk.section("", &values)?;
    ensure!(walk.comments.is_empty(), "comments without a value: {:?}", walk.comments);
    for Section { path, text, items } in walk.sections {
        if !path.is_empty() {
            page.heading(2, &code(&path));
        }
        if !text.is_empty() {
            page.block(&text);
        }
        if !items.is_empty() {
            page.list(items);
        }
    }
    Ok(page.end())
}

/// A group of values.
struct Section {
    path: String,
    text: String,
    items: Vec<String>,
}

struct Walk<'a> {
    /// The comments that are not on the page yet, by the path of the value below them.
    comments: BTreeMap<String, String>,
    schema: &'a Value,
    sections: Vec<Section>,
}

impl Walk<'_> {
    /// Adds a group, and after it the groups in it.
    fn section(&mut self, path: &str, values: &serde_yaml::Value) -> Result<()> {
        // A group may be described by the group around it.
        let text = self.comments.remove(path).unwrap_or_default();
        let (mut items, mut groups) = (Vec::new(), Vec::new());
        for (name, value) in values.as_mapping().into_iter().flatten() {
            let name = name.as_str().context("a value whose name is no string")?;
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            if self.comments.keys().any(|other| other.starts_with(&format!("{path}."))) {
                groups.push((path, value));
                continue;
            }
            let kind = type_of(self.schema, &path).with_context(|| format!("values.schema.json lacks {path}"))?;
            items.push(format!("`{path}` ({kind}, default `{}`): {}", flow(value), self.comment(&path)?));
        }
        if !(items.is_empty() && text.is_empty()) {
            self.sections.push(Section { path: path.to_owned(), text, items });
        }
        groups.into_iter().try_for_each(|(path, value)| self.section(&path, value))
    }

    fn comment(&mut self, path: &str) -> Result<String> {
        self.comments
            .remove(path)
            .with_context(|| format!("values.yaml does not describe {path}: add a comment above it"))
    }
}

/// Returns the comments that are directly above a value, by its path.
fn comments(yaml: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let (mut text, mut parents): (Vec<&str>, Vec<(usize, &str)>) = (Vec::new(), Vec::new());
    let mut list = usize::MAX;
    for line in yaml.lines() {
        let (indent, content) = (line.len() - line.trim_start().len(), line.trim_start());
        if let Some(comment) = content.strip_prefix('#') {
            text.push(comment.trim());
            continue;
        }
        // The entries of a list have no comments of their own.
        list = if content.starts_with("- ") { list.min(indent) } else { list };
        let Some((name, _)) = content.split_once(':').filter(|_| indent <= list && !content.starts_with("- ")) else {
            text.clear();
            continue;
        };
        list = usize::MAX;
        parents.retain(|(outer, _)| *outer < indent);
        parents.push((indent, name));
        if !text.is_empty() {
            let path: Vec<_> = parents.iter().map(|(_, name)| *name).collect();
            all.insert(path.join("."), linked(&std::mem::take(&mut text).join(" ")));
        }
    }
    all
}

/// Replaces the names of pages by links.
fn linked(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        match word.split_once("docs/").and_then(|(before, rest)| Some((before, rest.split_once(".md")?))) {
            Some((before, (page, after))) => format!("{before}[{page}.md](../{page}.md){after}"),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the type of a value and its bounds.
fn type_of(schema: &Value, path: &str) -> Option<String> {
    let resolved = |node: &Value| match node["$ref"].as_str().and_then(|target| target.strip_prefix('#')) {
        Some(target) => schema.pointer(target).cloned(),
        None => Some(node.clone()),
    };
    let mut node = schema.clone();
    for name in path.split('.') {
        node = resolved(node.get("properties")?.get(name)?)?;
    }
    if let Some(merged) = node["allOf"].get(0) {
        node = resolved(merged)?;
    }
    let values: Vec<_> = node["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(code).collect();
    if !values.is_empty() {
        return Some(listed(&values, "or"));
    }
    let kind = node["type"].as_str().or_else(|| node["type"].get(0)?.as_str())?;
    let range = match (node["minimum"].as_i64(), node["maximum"].as_i64()) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        _ => String::new(),
    };
    Some(format!("{}{range}", if kind == "array" { "list" } else { kind }))
}

/// Returns a value in YAML's flow style.
fn flow(value: &serde_yaml::Value) -> String {
    match value {
        serde_yaml::Value::Mapping(map) => {
            let fields: Vec<_> = map.iter().map(|(name, value)| format!("{}: {}", flow(name), flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        serde_yaml::Value::Sequence(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
        serde_yaml::Value::String(text) => {
            let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
            if is_plain { text.clone() } else { format!("{text:?}") }
        }
        other => serde_yaml::to_string(other).unwrap_or_default().trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"properties": {
            "a": {"type": "object", "properties": {
                "b": {"$ref": "#/definitions/port"}, "c": {"enum": ["X", "Y"]}, "list": {"type": ["array", "null"]},
            }},
            "d": {"type": "string"},
        }, "definitions": {"port": {"type": "integer", "minimum": 1, "maximum": 9}}})
    }

    #[test]
    fn a_value_has_the_comment_above_it_its_type_and_its_default() {
        let yaml = "# Group.\na:\n  # A port,\n  # in two lines.\n  b: 2\n  # A choice.\n  c: X\n  # A list.\n  list:\n    - x: 1\n      y: [z]\n\n# A text (docs/a/b.md).\nd: \"\"\n";
        let text = page_of(yaml, &schema()).expect("a page").text;
        for line in [
            "\n- `d` (string, default `\"\"`): A text ([a/b.md](../a/b.md)).\n",
            "\n## `a`\n\nGroup.\n",
            "\n- `a.b` (integer, 1 to 9, default `2`): A port, in two lines.\n",
            "\n- `a.c` (`X` or `Y`, default `X`): A choice.\n",
            "\n- `a.list` (list, default `[{x: 1, y: [z]}]`): A list.\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_value_without_a_comment_or_a_type_is_an_error() {
        for (yaml, words) in [
            ("d: \"\"\n", "does not describe d:"),
            ("# Group.\na:\n  # A port.\n  b: 2\n  c: X\n", "does not describe a.c:"),
            ("# Not in the schema.\ne: 1\n", "lacks e"),
        ] {
            let error = format!("{:#}", page_of(yaml, &schema()).err().expect("an error"));
            assert!(error.contains(words), "{yaml}: {error}");
        }
    }
}
