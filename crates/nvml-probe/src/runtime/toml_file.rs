//! TOML files of containerd and CRI-O: detects and removes NVIDIA's entries. Edits the text, so that comments, order
//! and spacing of other content are kept. Pure.

use std::ops::Range;

use serde_json::{Map, Value as Json};
use toml_edit::{Document, Item, Table, TableLike, Value};

use super::entries::{FormatError, NvidiaEntries};

type Edit = (Range<usize>, String);

/// Returns whether NVIDIA's runtime is configured: in every schema, a string contains the program's path.
#[must_use]
pub fn contains_entries(text: &str, entries: &NvidiaEntries) -> bool {
    Document::parse(text).is_ok_and(|document| {
        let mut found = false;
        visit(document.as_table(), &mut vec![], &mut |path, table| {
            found |= path.last() == Some(&entries.handler.as_str()) && is_nvidias(table, entries);
        });
        found
    })
}

/// Returns the configuration's version as containerd reads it: version 1 if there is none.
#[must_use]
pub fn version(text: &str) -> i64 {
    let document = Document::parse(text).ok();
    document.and_then(|document| document.as_table().get("version")?.as_integer()).unwrap_or(1)
}

/// Returns the file without NVIDIA's entries, given its original content; `None` if it did not exist and has no other
/// content. If nothing else has changed, the result is the original, byte for byte.
///
/// # Errors
/// Returns an error if the file is not TOML.
pub fn without_entries(
    text: &str,
    found: Option<&str>,
    import: Option<&str>,
    entries: &NvidiaEntries,
) -> Result<Option<String>, FormatError> {
    let before = tree(parse(found.unwrap_or_default())?.as_table());
    let mut text = text.to_owned();
    let edits = {
        let document = parse(&text)?;
        let root = document.as_table();
        let mut edits: Vec<Edit> =
            import.and_then(|import| import_edit(&text, root, &before, import)).into_iter().collect();
        edits.extend(runtime_edits(&text, root, &before, entries));
        edits
    };
    apply(&mut text, edits);
    while let Some(edit) = empty_table(&text, &before)? {
        apply(&mut text, vec![edit]);
    }
    let rest = tree(parse(&text)?.as_table());
    // The installer writes a version into a new file.
    let only_version = found.is_none() && rest.as_object().is_some_and(|rest| rest.keys().all(|key| key == "version"));
    if rest == before || only_version {
        return Ok(found.map(str::to_owned));
    }
    Ok(Some(text))
}

fn parse(text: &str) -> Result<Document<&str>, FormatError> {
    Document::parse(text).map_err(FormatError::Toml)
}

/// Removes the installer's pattern from `imports`.
fn import_edit(text: &str, root: &Table, before: &Json, import: &str) -> Option<Edit> {
    if before["imports"].as_array().is_some_and(|imports| imports.iter().any(|known| known == import)) {
        return None;
    }
    let (key, item) = root.get_key_value("imports")?;
    let imports: Vec<&Value> = item.as_array()?.iter().collect();
    let at = imports.iter().position(|value| value.as_str() == Some(import))?;
    let span = |at: usize| imports.get(at).and_then(|value| value.span());
    if imports.len() == 1 && before.get("imports").is_none() {
        return Some((whole_lines(text, key.span()?.start..item.span()?.end), String::new()));
    }
    let range = match at.checked_sub(1) {
        Some(previous) => span(previous)?.end..span(at)?.end,
        None => span(at)?.start..span(at + 1).map_or(span(at)?.end, |next| next.start),
    };
    Some((range, String::new()))
}

/// Removes NVIDIA's runtimes from a file that contains them itself, and restores the default.
fn runtime_edits(text: &str, root: &Table, before: &Json, entries: &NvidiaEntries) -> Vec<Edit> {
    let mut edits = Vec::new();
    visit(root, &mut vec![], &mut |path, table| {
        let [above @ .., runtimes, name] = path else { return };
        let is_added = *runtimes == "runtimes" && entries.is_name(name) && is_nvidias(table, entries);
        if is_added && at(before, path).is_none() {
            sections(text, table, &mut edits);
            let default = at_table(root, above).and_then(|above| above.get_key_value("default_runtime_name"));
            if let Some((key, item)) = default.filter(|(_, item)| item.as_str() == Some(name)) {
                edits.extend(default_edit(text, key.span(), item.span(), at(before, above)));
            }
        }
    });
    edits
}

fn default_edit(
    text: &str,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    before: Option<&Json>,
) -> Option<Edit> {
    let (key, value) = (key?, value?);
    Some(match before.and_then(|before| before.get("default_runtime_name")).and_then(Json::as_str) {
        Some(name) => (value, Json::from(name).to_string()),
        None => (whole_lines(text, key.start..value.end), String::new()),
    })
}

/// Removes the text of a table and of its subtables. Text after a table's last value is kept: it may be a comment on
/// what follows.
fn sections(text: &str, table: &Table, edits: &mut Vec<Edit>) {
    if let Some(header) = table.span() {
        let values = table.iter().filter_map(|(_, item)| item.as_value().and_then(Value::span));
        let end = values.map(|span| span.end).max().unwrap_or(header.end).max(header.end);
        edits.push((whole_lines(text, header.start..end), String::new()));
    }
    for (_, item) in table {
        if let Item::Table(below) = item {
            sections(text, below, edits);
        }
    }
}

/// Returns a table that is empty and was not there before: the installer creates every parent of its own tables.
fn empty_table(text: &str, before: &Json) -> Result<Option<Edit>, FormatError> {
    let document = parse(text)?;
    let mut edit = None;
    visit(document.as_table(), &mut vec![], &mut |path, table| {
        let is_bare = table.is_empty() && path.first() == Some(&"plugins") && at(before, path).is_none();
        if let Some(header) = table.span().filter(|_| is_bare && edit.is_none()) {
            edit = Some((whole_lines(text, header), String::new()));
        }
    });
    Ok(edit)
}

/// Returns whether a runtime's table names one of the installer's programs, in itself or among its options.
fn is_nvidias(table: &Table, entries: &NvidiaEntries) -> bool {
    table.iter().any(|(_, item)| match item {
        Item::Value(value) => value.as_str().is_some_and(|path| entries.is_program(path)),
        Item::Table(below) => is_nvidias(below, entries),
        _ => false,
    })
}

/// Visits every subtable with its path.
fn visit<'t>(table: &'t Table, path: &mut Vec<&'t str>, seen: &mut impl FnMut(&[&'t str], &'t Table)) {
    for (key, item) in table {
        if let Item::Table(below) = item {
            path.push(key);
            seen(path, below);
            visit(below, path, seen);
            path.pop();
        }
    }
}

fn at_table<'t>(root: &'t Table, path: &[&str]) -> Option<&'t Table> {
    path.iter().try_fold(root, |table, key| table.get(key)?.as_table())
}

fn at<'j>(tree: &'j Json, path: &[&str]) -> Option<&'j Json> {
    path.iter().try_fold(tree, |tree, key| tree.get(key))
}

/// Extends a range to whole lines, assuming that nothing else is on them.
fn whole_lines(text: &str, range: Range<usize>) -> Range<usize> {
    let (head, tail) = (text.get(..range.start).unwrap_or_default(), text.get(range.end..).unwrap_or_default());
    let start = head.rfind('\n').map_or(0, |newline| newline + 1);
    let end = range.end + tail.find('\n').map_or(tail.len(), |newline| newline + 1);
    start..end
}

/// Applies edits that do not overlap.
fn apply(text: &mut String, mut edits: Vec<Edit>) {
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    for (range, new) in edits {
        text.replace_range(range, &new);
    }
}

/// Returns the content of a file independent of its formatting. Empty tables are dropped.
fn tree(table: &dyn TableLike) -> Json {
    let entries = table.iter().map(|(key, item)| (key.to_owned(), json(item)));
    Json::Object(entries.filter(|(_, value)| *value != Json::Object(Map::new())).collect())
}

fn json(item: &Item) -> Json {
    match item {
        Item::None => Json::Null,
        Item::Table(table) => tree(table),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| tree(table)).collect(),
        Item::Value(Value::InlineTable(table)) => tree(table),
        Item::Value(Value::Array(array)) => array.iter().map(|value| json(&Item::Value(value.clone()))).collect(),
        Item::Value(Value::String(text)) => Json::from(text.value().as_str()),
        Item::Value(Value::Integer(number)) => Json::from(*number.value()),
        Item::Value(Value::Float(number)) => Json::from(*number.value()),
        Item::Value(Value::Boolean(value)) => Json::from(*value.value()),
        Item::Value(Value::Datetime(time)) => Json::from(time.value().to_string()),
    }
}
