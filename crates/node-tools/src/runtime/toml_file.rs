//! TOML files of containerd and CRI-O: detects and removes NVIDIA's entries. Pure.
//!
//! Edits the text, so that every byte of other content is kept. `DocumentMut` of `toml_edit` (0.25.18) changes other content
//! when it writes a file, even without an edit: it groups dotted keys (`a.b`, `c`, `a.d` becomes `a.b`, `a.d`, `c`), writes CRLF
//! as LF, adds a missing last newline and drops a byte order mark. It is therefore used only to parse, for the positions.

use std::ops::Range;

use serde_json::{Map, Value as Json};
use toml_edit::{Document, Item, Table, TableLike, Value};

use super::entries::{FormatError, NvidiaEntries};

/// The key that enables CDI in containerd 1.7.
const CDI: &str = "enable_cdi";

type Edit = (Range<usize>, String);

/// Returns whether NVIDIA's runtime is configured: in every schema, a string contains the program's path.
pub fn contains_entries(text: &str, entries: &NvidiaEntries) -> bool {
    Document::parse(text).is_ok_and(|document| contains_handler(document.as_table(), entries))
}

fn contains_handler(table: &Table, entries: &NvidiaEntries) -> bool {
    let mut tables = table.iter().filter_map(|(key, item)| Some((key, item.as_table()?)));
    tables
        .any(|(key, below)| key == entries.handler && names_program(below, entries) || contains_handler(below, entries))
}

/// Returns the configuration's version as containerd reads it: version 1 if there is none.
pub fn version(text: &str) -> i64 {
    let document = Document::parse(text).ok();
    document.and_then(|document| document.as_table().get("version")?.as_integer()).unwrap_or(1)
}

/// Returns a version 1 configuration with `enable_cdi` in the table of the CRI, from which containerd reads it. The
/// installer sets it one table below (nvidia-container-toolkit v1.20.1, `pkg/config/engine/containerd/config_v1.go`).
pub fn with_cdi_in_cri_table(text: &str) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let cri = document.as_table().get("plugins")?.get("cri")?.as_table()?;
    let line = cdi_line(text, cri.get("containerd")?.as_table()?)?;
    let below_header = whole_lines(text, cri.span()?).end;
    let moved = text.get(line.clone())?.to_owned();
    Some(apply(text, vec![(below_header..below_header, moved), (line, String::new())]))
}

fn cdi_line(text: &str, table: &Table) -> Option<Range<usize>> {
    let (key, value) = table.get_key_value(CDI)?;
    Some(whole_lines(text, key.span()?.start..value.span()?.end))
}

/// Returns the file without NVIDIA's entries, given its original content; `None` if it did not exist and has no other
/// content. If nothing else has changed, the result is the original, byte for byte.
pub fn without_entries(
    text: &str,
    found: Option<&str>,
    import: Option<&str>,
    entries: &NvidiaEntries,
) -> Result<Option<String>, FormatError> {
    let before = parse(found.unwrap_or_default())?;
    let document = parse(text)?;
    let mut edits = Vec::from_iter(import.and_then(|import| import_edit(text, &document, &before, import)));
    runtime_edits(text, document.as_table(), Some(before.as_table()), entries, &mut edits);
    let text = apply(text, edits);
    let (rest, before) = (tree(parse(&text)?.as_table()), tree(before.as_table()));
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
fn import_edit(text: &str, root: &Table, before: &Table, import: &str) -> Option<Edit> {
    let known = before.get("imports").and_then(Item::as_array);
    if known.is_some_and(|known| known.iter().any(|known| known.as_str() == Some(import))) {
        return None;
    }
    let (key, item) = root.get_key_value("imports")?;
    let imports: Vec<&Value> = item.as_array()?.iter().collect();
    let at = imports.iter().position(|value| value.as_str() == Some(import))?;
    let span = |at: usize| imports.get(at).and_then(|value| value.span());
    if imports.len() == 1 && known.is_none() {
        return Some((whole_lines(text, key.span()?.start..item.span()?.end), String::new()));
    }
    let range = match at.checked_sub(1) {
        Some(previous) => span(previous)?.end..span(at)?.end,
        None => span(at)?.start..span(at + 1).map_or(span(at)?.end, |next| next.start),
    };
    Some((range, String::new()))
}

/// Removes NVIDIA's runtimes from a file that contains them itself, with the parents that the installer created for
/// them, and restores the default. Returns whether the table had nothing else.
fn runtime_edits(
    text: &str,
    table: &Table,
    before: Option<&dyn TableLike>,
    entries: &NvidiaEntries,
    edits: &mut Vec<Edit>,
) -> bool {
    let mut has_only_nvidias = !table.is_empty();
    for (key, item) in table {
        let known = before.and_then(|before| before.get(key));
        has_only_nvidias &= known.is_none();
        match item {
            // The installer writes no dotted keys.
            Item::Table(runtime) if known.is_none() && !runtime.is_dotted() && is_nvidias(key, runtime, entries) => {
                sections(text, runtime, edits);
            }
            Item::Table(below) => {
                let is_bare = runtime_edits(text, below, known.and_then(Item::as_table_like), entries, edits);
                if is_bare && known.is_none() && !below.is_dotted() {
                    edits.extend(below.span().map(|header| (table_lines(text, header), String::new())));
                }
                has_only_nvidias &= is_bare;
            }
            _ if key == "default_runtime_name" && names_added(item, table, before, entries) => {
                edits.extend(default_edit(text, table, known));
            }
            _ if key == CDI && known.is_none() && has_added(table, entries) => {
                edits.extend(cdi_line(text, table).map(|line| (line, String::new())));
            }
            _ => has_only_nvidias = false,
        }
    }
    has_only_nvidias
}

/// Returns whether a default is one of the runtimes that are removed.
fn names_added(default: &Item, table: &Table, before: Option<&dyn TableLike>, entries: &NvidiaEntries) -> bool {
    default.as_str().is_some_and(|name| {
        let runtime = table.get("runtimes").and_then(|runtimes| runtimes.get(name)?.as_table());
        let known = before.and_then(|before| before.get("runtimes")?.get(name));
        known.is_none() && runtime.is_some_and(|runtime| !runtime.is_dotted() && is_nvidias(name, runtime, entries))
    })
}

/// Returns whether the CRI's table contains one of the installer's runtimes.
fn has_added(cri: &Table, entries: &NvidiaEntries) -> bool {
    let containerd = cri.get("containerd").and_then(Item::as_table);
    containerd.is_some_and(|containerd| contains_handler(containerd, entries))
}

fn default_edit(text: &str, table: &Table, before: Option<&Item>) -> Option<Edit> {
    let (key, value) = table.get_key_value("default_runtime_name")?;
    Some(match before.and_then(Item::as_str) {
        Some(name) => (value.span()?, Json::from(name).to_string()),
        None => (whole_lines(text, key.span()?.start..value.span()?.end), String::new()),
    })
}

/// Removes the text of a table and of its subtables. Text after a table's last value is kept: it may be a comment on
/// what follows.
fn sections(text: &str, table: &Table, edits: &mut Vec<Edit>) {
    if let Some(header) = table.span() {
        let end = end_of_values(table).unwrap_or(header.end).max(header.end);
        edits.push((table_lines(text, header.start..end), String::new()));
    }
    for below in table.iter().filter_map(|(_, item)| item.as_table()).filter(|below| !below.is_dotted()) {
        sections(text, below, edits);
    }
}

/// Returns where the last value below a table's header ends.
fn end_of_values(table: &Table) -> Option<usize> {
    let end = |(_, item): (_, &Item)| match item {
        Item::Table(below) if below.is_dotted() => end_of_values(below),
        item => item.as_value()?.span().map(|span| span.end),
    };
    table.iter().filter_map(end).max()
}

/// Returns whether a table is one of the installer's runtimes.
fn is_nvidias(name: &str, runtime: &Table, entries: &NvidiaEntries) -> bool {
    entries.is_name(name) && names_program(runtime, entries)
}

/// Returns whether a runtime's table names one of the installer's programs, in itself or among its options.
fn names_program(runtime: &Table, entries: &NvidiaEntries) -> bool {
    runtime.iter().any(|(_, item)| match item {
        Item::Value(value) => value.as_str().is_some_and(|path| entries.is_program(path)),
        Item::Table(below) => names_program(below, entries),
        _ => false,
    })
}

/// Extends a range to whole lines, assuming that nothing else is on them.
fn whole_lines(text: &str, range: Range<usize>) -> Range<usize> {
    let (head, tail) = (text.get(..range.start).unwrap_or_default(), text.get(range.end..).unwrap_or_default());
    let start = head.rfind('\n').map_or(0, |newline| newline + 1);
    let end = range.end + tail.find('\n').map_or(tail.len(), |newline| newline + 1);
    start..end
}

/// Extends a table's range to whole lines, and to the empty line that the installer writes before each table.
fn table_lines(text: &str, range: Range<usize>) -> Range<usize> {
    let Range { start, end } = whole_lines(text, range);
    let above = text.get(..start).and_then(|head| head.split_inclusive('\n').next_back());
    let empty = above.filter(|line| ["\n", "\r\n"].contains(line));
    start - empty.map_or(0, str::len)..end
}

/// Applies edits. They may overlap, because a table without a header of its own has the span of the table below it.
fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let (mut edited, mut end) = (String::with_capacity(text.len()), 0);
    for (range, new) in edits {
        edited.push_str(text.get(end..range.start).unwrap_or_default());
        edited.push_str(&new);
        end = end.max(range.end);
    }
    edited.push_str(text.get(end..).unwrap_or_default());
    edited
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
