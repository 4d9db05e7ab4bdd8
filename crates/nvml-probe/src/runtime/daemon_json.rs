//! Docker's `daemon.json`: what of it is ours, and what it is without that. Pure.

use serde::Serialize;
use serde_json::{Map, Value, ser::PrettyFormatter};

use super::files::{FileError, Ours};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// Whether NVIDIA's runtime is entered.
#[must_use]
pub fn has(text: &str, ours: &Ours) -> bool {
    let Ok(Value::Object(whole)) = serde_json::from_str(text) else { return false };
    runtimes(&whole).and_then(|all| all.get(&ours.handler)).is_some_and(|runtime| is_ours(runtime, ours))
}

/// The file without what is ours, given what it was before anything was; `None` where it was not there and holds nothing
/// else. Where nothing else has changed it is what was found, to the byte; else it is in the installer's own form: sorted,
/// and indented by four.
///
/// # Errors
/// Where it is no JSON object.
pub fn without(text: &str, found: Option<&str>, ours: &Ours) -> Result<Option<String>, FileError> {
    let mut whole = object(text)?;
    let before = found.map(object).transpose()?.unwrap_or_default();
    let removed: Vec<String> = runtimes(&whole)
        .into_iter()
        .flat_map(|all| all.iter())
        .filter(|(name, runtime)| ours.is_name(name) && is_ours(runtime, ours))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(all) = whole.get_mut(RUNTIMES).and_then(Value::as_object_mut) {
        for name in &removed {
            match runtimes(&before).and_then(|all| all.get(name)) {
                Some(other) => all.insert(name.clone(), other.clone()),
                None => all.remove(name),
            };
        }
        if all.is_empty() && !before.contains_key(RUNTIMES) {
            whole.remove(RUNTIMES);
        }
    }
    // A default that is not there any more would keep Docker from starting.
    if whole.get(DEFAULT).and_then(Value::as_str).is_some_and(|name| removed.iter().any(|gone| gone == name)) {
        match before.get(DEFAULT) {
            Some(default) => whole.insert(DEFAULT.to_owned(), default.clone()),
            None => whole.remove(DEFAULT),
        };
    }
    if whole == before {
        return Ok(found.map(str::to_owned));
    }
    let mut bytes = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    whole.serialize(&mut writer).map_err(FileError::Json)?;
    String::from_utf8(bytes).map(Some).map_err(|_| FileError::NotText)
}

fn object(text: &str) -> Result<Map<String, Value>, FileError> {
    // Docker takes an empty file for an empty object.
    if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text).map_err(FileError::Json) }
}

fn runtimes(whole: &Map<String, Value>) -> Option<&Map<String, Value>> {
    whole.get(RUNTIMES)?.as_object()
}

fn is_ours(runtime: &Value, ours: &Ours) -> bool {
    runtime.get("path").and_then(Value::as_str).is_some_and(|path| ours.is_program(path))
}
