//! The YAML in README, docs and examples, as objects for the API server. A block that is not an object is listed here, with
//! the reason.

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
pub const NOT_APPLIED: [(&str, &str, &str); 6] = [
    ("docs/guides/autoscalers.md", "apiVersion: karpenter.sh/v1", "an object of Karpenter"),
    (
        "docs/guides/autoscalers.md",
        "apiVersion: readiness.node.x-k8s.io/v1alpha1",
        "an object of node-readiness-controller",
    ),
    ("docs/reference/reasons.md", "affinity:", "a part of a DaemonSet's pod template"),
    ("docs/operate/metrics.md", "affinity:", "a part of the values of another chart"),
    ("docs/guides/gitops.md", "data:", "a part of a ConfigMap of Argo CD"),
    ("docs/guides/gitops.md", "apiVersion: kustomize.toolkit.fluxcd.io/v1", "an object of Flux"),
];

/// The API versions of objects that the tests' cluster accepts.
const API_VERSIONS: [&str; 3] = ["gpu.nodestack.dev/v1alpha1", "v1", "resource.k8s.io/v1"];

/// The languages of blocks other than YAML.
const OTHER_LANGUAGES: [&str; 2] = ["sh", "text"];

/// An object and its location.
pub struct Written {
    /// The page, and the line at which the object's block begins.
    pub at: String,
    /// The object, completed if the page shows only a part of it.
    pub object: Value,
}

/// Returns all objects in the pages and examples under the repository's root.
///
/// # Panics
/// Panics as [`objects_of`] does.
pub fn objects(root: &Path) -> Vec<Written> {
    let text = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let pages: Vec<_> = pages(root).into_iter().map(|(page, path)| (page, text(path))).collect();
    objects_of(&pages, &NOT_APPLIED)
}

/// Returns all objects in these pages, which are given by name and text.
///
/// # Panics
/// Panics if a block is neither an object nor a part of a policy and is not listed, if a listed block is missing or is an
/// object, or if a block has no language.
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
                (Ok(_), Some(_)) => {
                    panic!("{at}: the block is listed as not applied but can be applied: remove it from NOT_APPLIED")
                }
                (Err(_), Some(index)) => drop(listed.remove(index)),
                (Ok(objects), None) => {
                    all.extend(objects.into_iter().map(|object| Written { at: at.clone(), object }));
                }
                (Err(why), None) => panic!("{at}: {why}; correct the block, or add it to NOT_APPLIED with a reason"),
            }
        }
    }
    assert!(listed.is_empty(), "these blocks are listed but missing: {listed:?}");
    all
}

/// Returns the pages, by name, with their files.
///
/// # Panics
/// Panics if a folder cannot be read.
pub fn pages(root: &Path) -> Vec<(String, PathBuf)> {
    let mut pages = vec![("README.md".to_owned(), root.join("README.md"))];
    let mut folders = vec!["docs".to_owned(), "examples".to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let name = format!("{folder}/{}", path.file_name().expect("a name").to_string_lossy());
            if path.is_dir() {
                folders.push(name);
            } else if is(&path, "md") || is(&path, "yaml") {
                pages.push((name, path));
            }
        }
    }
    pages.sort();
    pages
}

/// Returns whether a file's name has this extension.
fn is(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension == ending)
}

/// A block of YAML in a page.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// The line at which it begins.
    pub line: usize,
    /// Its content.
    pub text: String,
}

/// Returns the blocks of YAML in a Markdown page.
///
/// # Panics
/// Panics if the language of a block is missing or unknown, or if a part of a policy is an indented block.
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
                    assert!(
                        OTHER_LANGUAGES.contains(&other),
                        "{page}:{line_number}: a block with unknown language {other:?}"
                    );
                }
            }
        } else if after_blank && line.starts_with("    ") {
            let mut text = format!("{line}\n");
            while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with("    ")) {
                text = text + more + "\n";
            }
            assert!(
                complete(&text).is_err(),
                "{page}:{line_number}: the block is part of a policy: put it between ```yaml and ```"
            );
        }
        after_blank = line.trim().is_empty();
    }
    blocks
}

/// Returns the complete objects of a block. A policy's spec, or a part of it, becomes a policy; fields of a pool or of
/// `defaults`, such as `driver`, become part of `defaults`.
pub fn complete(text: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| error.to_string())?;
        let Some(map) = value.as_object().filter(|map| !map.is_empty()) else {
            return Err("the block is not a mapping".to_owned());
        };
        let all_are = |known: &Value| map.keys().all(|key| known.get(key).is_some());
        let version = value["apiVersion"].as_str().filter(|_| map.contains_key("kind"));
        if let Some(version) = version.filter(|version| !API_VERSIONS.contains(version)) {
            return Err(format!("{version} is not an API version of the tests' cluster"));
        }
        let spec = &*PROPERTIES;
        objects.push(if version.is_some() {
            value
        } else if map.keys().eq(["spec"]) {
            policy(&value["spec"])
        } else if all_are(spec) {
            policy(&value)
        } else if all_are(&spec["defaults"]["properties"]) {
            policy(&json!({"defaults": value}))
        } else {
            let keys: Vec<_> = map.keys().collect();
            return Err(format!("{keys:?} are not keys of an object, of a policy's spec, or of its defaults"));
        });
    }
    if objects.is_empty() { Err("the block is empty".to_owned()) } else { Ok(objects) }
}

/// The properties of a policy's spec, as in the CRD.
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
