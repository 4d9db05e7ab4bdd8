//! The pods of the chart. Helm is not at hand in these tests, so templates are expanded with every condition met: the pods have
//! all privileges that any values give them, except for security contexts, which are the default ones.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::api::core::v1::PodSpec;
use serde_yaml::{Mapping, Value};

/// The fields of a pod, and those of a container, that matter.
const POD: [&str; 8] = [
    "containers",
    "initContainers",
    "volumes",
    "securityContext",
    "automountServiceAccountToken",
    "hostPID",
    "hostNetwork",
    "hostIPC",
];
const CONTAINER: [&str; 4] = ["name", "image", "securityContext", "volumeMounts"];

/// Returns the pod of each template that has one, by the template's file name.
pub(super) fn pods() -> Vec<(String, PodSpec)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/gpu-operator/templates");
    let read = |path: &Path| without_comments(&fs::read_to_string(path).expect("a text"));
    let helpers = definitions(&read(&folder.join("_helpers.tpl")));
    let values = fs::read_to_string(folder.join("../values.yaml")).expect("a text");
    let values = serde_yaml::from_str(&values).expect("YAML");
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let mut pods = Vec::new();
    for path in files {
        let text = read(&path);
        if path.extension().is_some_and(|kind| kind == "yaml") && text.contains("containers:") {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let pod = pod(&expanded(&text, &helpers, &values)).unwrap_or_else(|| panic!("no pod in {name}"));
            pods.push((name, pod));
        }
    }
    assert!(pods.len() >= 3, "operator, probe and test: {pods:?}");
    pods
}

/// Returns the pod of an expanded template.
fn pod(text: &str) -> Option<PodSpec> {
    let object: Value = serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let spec = object.get("spec")?;
    let mut pod = only(spec.get("template").map_or(spec, |template| &template["spec"]), &POD);
    for list in ["containers", "initContainers"] {
        for container in pod.get_mut(list).and_then(Value::as_sequence_mut).into_iter().flatten() {
            *container = Value::Mapping(only(container, &CONTAINER));
        }
    }
    serde_yaml::from_value(Value::Mapping(pod)).expect("a pod")
}

fn only(object: &Value, keys: &[&str]) -> Mapping {
    let fields = object.as_mapping().into_iter().flatten();
    let kept = fields.filter(|(key, _)| key.as_str().is_some_and(|key| keys.contains(&key)));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn without_comments(text: &str) -> String {
    let mut left = String::new();
    let mut rest = text;
    while let Some(begin) = ["{{/*", "{{- /*"].iter().filter_map(|begin| rest.find(begin)).min() {
        left.push_str(&rest[..begin]);
        let (_, after) = rest[begin..].split_once("*/").expect("the end of a comment");
        rest = after.split_once("}}").expect("the end of a comment").1;
    }
    left + rest
}

/// Returns the lines of each helper.
fn definitions(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in text.split("{{- define \"").skip(1) {
        let (name, rest) = part.split_once('"').expect("a name");
        let body = rest.split_once('\n').map_or("", |(_, body)| body);
        found.insert(name.to_owned(), body.to_owned());
    }
    found
}

/// Returns a template with its helpers in place of calls, defaults in place of values that are blocks, any text in place of other values,
/// and without conditions.
fn expanded(text: &str, helpers: &BTreeMap<String, String>, values: &Value) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let command = line.trim();
        let indent = command.split_once("nindent ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        let helper = command
            .split_once("{{- include \"")
            .and_then(|(before, rest)| before.is_empty().then(|| rest.split_once('"')).flatten().map(|(name, _)| name));
        let body = match helper {
            Some(name) => {
                let body = helpers.get(name).unwrap_or_else(|| panic!("no helper {name}"));
                Some(expanded(body, helpers, values))
            }
            None => default_block(command, values),
        };
        match (body, indent) {
            (Some(body), Some(indent)) => lines.extend(body.lines().map(|line| format!("{:indent$}{line}", ""))),
            _ if command.starts_with("{{") && command.ends_with("}}") => {}
            _ => lines.push(with_values(line)),
        }
    }
    lines.join("\n")
}

/// Returns the default of a value that is included as a block, such as `{{- toYaml .Values.probe.updateStrategy | nindent 4 }}`.
fn default_block(command: &str, values: &Value) -> Option<String> {
    let path = command.strip_prefix("{{- toYaml .Values.")?.split(' ').next()?;
    let value = path.split('.').try_fold(values, |value, name| value.get(name));
    Some(serde_yaml::to_string(value.unwrap_or_else(|| panic!("no default of {path}"))).expect("YAML"))
}

/// Returns a line with any text in place of its values.
fn with_values(line: &str) -> String {
    let mut parts = line.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("any");
        text.push_str(part.split_once("}}").map_or("", |(_, rest)| rest));
    }
    text
}
