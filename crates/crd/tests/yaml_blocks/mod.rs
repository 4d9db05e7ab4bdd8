//! The YAML of README, docs and examples, as objects for the API server: every block is one, or is listed here with the
//! reason why not.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use gpu_operator_crd::ClusterGpuPolicy;
use kube::CustomResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};

/// Blocks that are not for the API server: the page, the first line of the block, and the reason.
pub const NOT_APPLIED: [(&str, &str, &str); 0] = [];

/// The languages that mark a block as something else than YAML.
const OTHER_LANGUAGES: [&str; 2] = ["sh", "text"];

/// An object, and where it is written.
pub struct Written {
    /// The page and the line in which its block begins.
    pub at: String,
    /// The object: whole, if the page shows a part of it.
    pub object: Value,
}

/// All objects of the pages and examples under the repository's root.
///
/// # Panics
/// As [`objects_of`].
pub fn objects(root: &Path) -> Vec<Written> {
    let text = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let pages: Vec<_> = pages(root).into_iter().map(|(page, path)| (page, text(path))).collect();
    objects_of(&pages, &NOT_APPLIED)
}

/// All objects of these pages, by name and text.
///
/// # Panics
/// If a block is neither an object, nor a part of a policy, nor listed; if a listed one is not there, or is an object; and if a
/// block has no language, so that nobody can tell.
pub fn objects_of(pages: &[(String, String)], not_applied: &[(&str, &str, &str)]) -> Vec<Written> {
    let mut listed: Vec<_> = not_applied.iter().collect();
    let mut all = Vec::new();
    for (page, text) in pages {
        let whole = || vec![Block { line: 1, text: text.clone() }];
        let blocks = if is(Path::new(page), "yaml") { whole() } else { blocks(page, text) };
        for block in blocks {
            let at = format!("{page}:{}", block.line);
            let first = block.text.lines().next().unwrap_or_default();
            let is_listed = listed.iter().position(|(of, begins, _)| of == page && *begins == first);
            match (complete(&block.text), is_listed) {
                (Ok(_), Some(_)) => panic!("{at}: it is listed as not applied and can be applied: remove it there"),
                (Err(_), Some(index)) => drop(listed.remove(index)),
                (Ok(objects), None) => {
                    all.extend(objects.into_iter().map(|object| Written { at: at.clone(), object }));
                }
                (Err(why), None) => panic!("{at}: {why}; correct it, or list it in NOT_APPLIED with a reason"),
            }
        }
    }
    assert!(listed.is_empty(), "these blocks are listed and not there: {listed:?}");
    all
}

/// The pages by their names, and the files that they are in.
fn pages(root: &Path) -> Vec<(String, PathBuf)> {
    let mut pages = vec![("README.md".to_owned(), root.join("README.md"))];
    for folder in ["docs", "examples"] {
        let entries = fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if is(&path, "md") || is(&path, "yaml") {
                pages.push((format!("{folder}/{name}"), path));
            }
        }
    }
    pages.sort();
    pages
}

/// Whether a file's name has this ending.
fn is(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension == ending)
}

/// A block of YAML in a page.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// The line in which it begins.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// The blocks of YAML in a page of Markdown.
///
/// # Panics
/// If a block has no language, or is indented in place of one and a part of a policy.
pub fn blocks(page: &str, markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines().enumerate().peekable();
    let mut after_blank = true;
    while let Some((index, line)) = lines.next() {
        let line_number = index + 1;
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let text = inside.fold(String::new(), |text, line| text + line + "\n");
            match language.trim() {
                "yaml" => blocks.push(Block { line: line_number, text }),
                other => {
                    assert!(OTHER_LANGUAGES.contains(&other), "{page}:{line_number}: a block of {other:?}");
                }
            }
        } else if after_blank && line.starts_with("    ") {
            let mut text = format!("{line}\n");
            while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with("    ")) {
                text = text + more + "\n";
            }
            assert!(complete(&text).is_err(), "{page}:{line_number}: write it between ```yaml and ```");
        }
        after_blank = line.trim().is_empty();
    }
    blocks
}

/// The objects of a block, made whole: what is a policy's spec, or a part of it, becomes a policy; what stands in a pool or in
/// `defaults`, such as `driver`, is put into `defaults`.
///
/// # Errors
/// If it is no YAML, or not recognised as any of these by its keys.
pub fn complete(text: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| error.to_string())?;
        let Some(map) = value.as_object().filter(|map| !map.is_empty()) else {
            return Err("it is no mapping".to_owned());
        };
        let all_are = |known: &Value| map.keys().all(|key| known.get(key).is_some());
        let spec = &*PROPERTIES;
        objects.push(if map.contains_key("apiVersion") && map.contains_key("kind") {
            value
        } else if map.keys().eq(["spec"]) {
            policy(&value["spec"])
        } else if all_are(spec) {
            policy(&value)
        } else if all_are(&spec["defaults"]["properties"]) {
            policy(&json!({"defaults": value}))
        } else {
            let keys: Vec<_> = map.keys().collect();
            return Err(format!("{keys:?} are no keys of an object, of a policy's spec, or of its defaults"));
        });
    }
    if objects.is_empty() { Err("it is empty".to_owned()) } else { Ok(objects) }
}

/// The properties of a policy's spec, as the API server has them.
static PROPERTIES: LazyLock<Value> = LazyLock::new(|| {
    let mut crd = serde_json::to_value(ClusterGpuPolicy::crd()).expect("JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].take()
});

fn policy(spec: &Value) -> Value {
    json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "ClusterGpuPolicy", "metadata": {"name": "from-docs"},
        "spec": spec,
    })
}
