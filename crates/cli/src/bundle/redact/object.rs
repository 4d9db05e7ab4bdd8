//! Removal of credentials from objects.

use gpu_operator_crd::keys;
use serde_json::{Map, Value};

use super::{
    names::{is_sensitive, is_sensitive_variable},
    text::{HIDDEN, text},
};

/// The prefixes of annotations whose values are shown. All others may contain anything.
const SHOWN: [&str; 3] = [keys::PREFIX, "deployment.kubernetes.io/", "meta.helm.sh/"];
/// An annotation that repeats the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub fn object(value: &mut Value) {
    walk(value, "");
}

/// `field` is the name of the field of the value, or of the list that contains it.
fn walk(value: &mut Value, field: &str) {
    match value {
        Value::String(string) => *string = shown(field, string),
        Value::Array(items) => list(items, field),
        Value::Object(map) => {
            match field {
                "metadata" => metadata(map),
                "env" => variables(map),
                "imagePullSecrets" | "pullSecrets" => map.retain(|key, _| key == "name"),
                _ => {}
            }
            for (key, value) in map {
                walk(value, key);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn shown(field: &str, string: &str) -> String {
    match field {
        _ if is_sensitive(field) => HIDDEN.to_owned(),
        _ if is_proxy(field) => proxy(string),
        _ => text(string),
    }
}

fn is_proxy(name: &str) -> bool {
    name.to_ascii_lowercase().contains("proxy")
}

/// Returns a proxy without user and password. It may have no scheme, and its password may contain any character.
fn proxy(value: &str) -> String {
    let Some((before, host)) = value.rsplit_once('@') else { return text(value) };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
    text(&format!("{scheme}{HIDDEN}@{host}"))
}

fn metadata(map: &mut Map<String, Value>) {
    map.remove("managedFields");
    let Some(annotations) = map.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.remove(LAST_APPLIED);
    for (key, value) in annotations {
        if !SHOWN.iter().any(|prefix| key.starts_with(prefix)) {
            *value = HIDDEN.into();
        }
    }
}

/// Removes credentials from an item of a list of variables, or from a map of them.
fn variables(map: &mut Map<String, Value>) {
    let name = map.get("name").and_then(Value::as_str).map(str::to_owned);
    let item = name.filter(|_| map.contains_key("value") || map.contains_key("valueFrom"));
    for (key, value) in map {
        // Of an item, `value` belongs to `name`; of a map, each value to its own key.
        let name = match &item {
            Some(_) if key != "value" => continue,
            Some(name) => name,
            None => key,
        };
        if let Value::String(string) = value {
            *string = if is_sensitive_variable(name) { HIDDEN.to_owned() } else { shown(name, string) };
        }
    }
}

/// Removes credentials from a list. In a list of arguments, the value of a flag may be the next item.
fn list(items: &mut [Value], field: &str) {
    let mut is_value = false;
    for item in items {
        let Value::String(argument) = item else {
            is_value = false;
            walk(item, field);
            continue;
        };
        let is_flag = argument.starts_with('-');
        let hides = is_value && !argument.starts_with("--");
        is_value = is_flag && !argument.contains('=') && is_sensitive(argument);
        *argument = match argument.split_once('=') {
            _ if hides => HIDDEN.to_owned(),
            Some((flag, _)) if is_flag && is_sensitive(flag) => format!("{flag}={HIDDEN}"),
            Some((flag, value)) if is_flag && is_proxy(flag) => format!("{flag}={}", proxy(value)),
            _ => shown(field, argument),
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut value: Value) -> Value {
        object(&mut value);
        value
    }

    #[test]
    fn metadata_keeps_known_annotations_and_all_labels() {
        let annotations = json!({
            "gpu.nodestack.dev/retry": "1", "example.com/x": "canary",
            "kubectl.kubernetes.io/last-applied-configuration": "canary",
        });
        let found = redacted(json!({"metadata": {
            "name": "a", "labels": {"a": "b"}, "annotations": annotations, "managedFields": [{"manager": "canary"}],
        }}));
        let annotations = json!({"gpu.nodestack.dev/retry": "1", "example.com/x": "***"});
        let shown = json!({"metadata": {"name": "a", "labels": {"a": "b"}, "annotations": annotations}});
        assert_eq!(found, shown);
    }

    #[test]
    fn variables_lose_credentials_and_keep_the_others() {
        let found = redacted(json!({"env": [
            {"name": "NGC_API_KEY", "value": "canary"},
            {"name": "SSL_KEY", "value": "canary"},
            {"name": "HTTPS_PROXY", "value": "me:can/a:r@y@proxy:3128"},
            {"name": "PLAIN", "value": "http://me:canary@host"},
            {"name": "NODE", "value": "a"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]}));
        let shown = json!({"env": [
            {"name": "NGC_API_KEY", "value": "***"},
            {"name": "SSL_KEY", "value": "***"},
            {"name": "HTTPS_PROXY", "value": "***@proxy:3128"},
            {"name": "PLAIN", "value": "http://***@host"},
            {"name": "NODE", "value": "a"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]});
        assert_eq!(found, shown);
        let found = redacted(json!({"env": {"SSL_KEY": "canary", "NODE": "a", "name": "b"}}));
        assert_eq!(found, json!({"env": {"SSL_KEY": "***", "NODE": "a", "name": "b"}}));
    }

    #[test]
    fn flags_lose_their_values() {
        let arguments = ["--token=canary", "--password", "canary", "--listen", ":80", "--api-key", "--verbose"];
        let more = ["--https-proxy=me:canary@p", "-c", "curl --secret canary -u me:canary https://h?x=canary"];
        let found = redacted(json!({"args": arguments.iter().chain(&more).collect::<Vec<_>>()}));
        let arguments = ["--token=***", "--password", "***", "--listen", ":80", "--api-key", "--verbose"];
        let more = ["--https-proxy=***@p", "-c", "curl --secret *** -u *** https://h?***"];
        assert_eq!(found, json!({"args": arguments.iter().chain(&more).collect::<Vec<_>>()}));
    }

    #[test]
    fn names_of_secrets_and_keys_of_taints_are_kept() {
        let value = json!({"spec": {
            "imagePullSecrets": [{"name": "regcred"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "volumes": [{"secret": {"secretName": "certificate"}}],
            "affinity": {"topologyKey": "kubernetes.io/hostname"},
            "driver": {"url": "https://mirror/a.run"},
            "image": "nvcr.io/nvidia/driver:595@sha256:0123",
        }});
        assert_eq!(redacted(value.clone()), value);
        let found = redacted(json!({"pullSecrets": [{"name": "a", "auth": "canary"}], "password": "canary"}));
        assert_eq!(found, json!({"pullSecrets": [{"name": "a"}], "password": "***"}));
    }
}
