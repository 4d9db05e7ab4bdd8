//! Docker's `daemon.json`: detects and removes NVIDIA's entries. Pure.

use serde::Serialize;
use serde_json::{Map, Value, ser::PrettyFormatter};

use super::entries::{FormatError, NvidiaEntries};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// Returns whether NVIDIA's runtime is configured.
pub fn contains_entries(text: &str, entries: &NvidiaEntries) -> bool {
    let Ok(Value::Object(whole)) = serde_json::from_str(text) else { return false };
    runtimes(&whole).and_then(|all| all.get(&entries.handler)).is_some_and(|runtime| is_nvidias(runtime, entries))
}

/// Returns the file without NVIDIA's entries, given its original content; `None` if it did not exist and has no other
/// content. If nothing else has changed, the result is the original, byte for byte; otherwise it has the installer's
/// format: sorted, with an indent of four.
pub fn without_entries(
    text: &str,
    found: Option<&str>,
    entries: &NvidiaEntries,
) -> Result<Option<String>, FormatError> {
    let mut whole = object(text)?;
    let before = found.map(object).transpose()?.unwrap_or_default();
    let removed: Vec<String> = runtimes(&whole)
        .into_iter()
        .flat_map(|all| all.iter())
        .filter(|(name, runtime)| entries.is_name(name) && is_nvidias(runtime, entries))
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
    // Docker would not start with a default that does not exist.
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
    whole.serialize(&mut writer).map_err(FormatError::Json)?;
    String::from_utf8(bytes).map(Some).map_err(|_| FormatError::NotText)
}

/// Returns the file with runc as the default, and with a list of runtimes, so that Docker drops those that it has loaded; `None` if the file
/// names a default.
pub fn with_other_default(text: &str) -> Result<Option<String>, FormatError> {
    let mut whole = object(text)?;
    if whole.contains_key(DEFAULT) {
        return Ok(None);
    }
    whole.insert(DEFAULT.to_owned(), "runc".into());
    whole.entry(RUNTIMES).or_insert_with(|| Map::new().into());
    serde_json::to_string_pretty(&whole).map(Some).map_err(FormatError::Json)
}

fn object(text: &str) -> Result<Map<String, Value>, FormatError> {
    // Docker treats an empty file as an empty object.
    if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text).map_err(FormatError::Json) }
}

fn runtimes(whole: &Map<String, Value>) -> Option<&Map<String, Value>> {
    whole.get(RUNTIMES)?.as_object()
}

fn is_nvidias(runtime: &Value, entries: &NvidiaEntries) -> bool {
    runtime.get("path").and_then(Value::as_str).is_some_and(|path| entries.is_program(path))
}
