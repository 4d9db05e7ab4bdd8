//! The YAML in README, docs and examples: every block is found, completed to an object, and valid according to the schema
//! and its rules. An end-to-end test applies the same objects.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use gpu_operator_crd::{ClusterGpuPolicy, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    CustomResourceExt,
    core::cel::{CompiledSchema, ValidationErrors, Validator, compile_schema},
};
use serde_json::{Value, json};
use strum::IntoEnumIterator;
use test_support::yaml_blocks::{Block, Written, blocks, complete, objects, objects_of, pages};

/// The schema, as in the CRD.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut crd = serde_json::to_value(ClusterGpuPolicy::crd()).expect("JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
});
static RULES: LazyLock<CompiledSchema> = LazyLock::new(|| compile_schema(&SCHEMA));

/// Returns the fields of an object that its schema lacks.
fn unknown(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let of_key = |key: &String| schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
            map.iter()
                .flat_map(|(key, value)| match of_key(key) {
                    Some(schema) => unknown(schema, value, &format!("{path}.{key}")),
                    None => vec![format!("{path}.{key}")],
                })
                .collect()
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.flat_map(|(index, item)| unknown(&schema["items"], item, &format!("{path}[{index}]"))).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the errors for which the API server would reject an object.
fn complaints(object: &Value) -> Vec<String> {
    let kind = (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
    let types = match kind {
        ("gpu.nodestack.dev/v1alpha1", "ClusterGpuPolicy") => {
            serde_json::from_value::<ClusterGpuPolicy>(object.clone()).map(drop)
        }
        ("v1", "Pod") => serde_json::from_value::<Pod>(object.clone()).map(drop),
        // Only by the end-to-end test: the bindings of Kubernetes' API are those of a version before it.
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => Ok(()),
        (version, kind) => return vec![format!("{version} {kind} is not checked here: add it")],
    };
    let mut complaints: Vec<String> = types.err().iter().map(ToString::to_string).collect();
    if kind.1 == "ClusterGpuPolicy" {
        complaints.extend(unknown(&SCHEMA["properties"]["spec"], &object["spec"], "spec"));
        let broken = Validator::new().validate_compiled(&RULES, object, None).err();
        complaints.extend(broken.into_iter().flat_map(ValidationErrors::into_vec).map(|error| format!("{error:?}")));
    }
    complaints
}

#[test]
fn every_documented_object_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = objects(&root);
    for Written { at, object } in &all {
        assert_eq!(complaints(object), Vec::<String>::new(), "{at}");
    }
    let pages: BTreeSet<_> = all.iter().filter_map(|written| written.at.split(':').next()).collect();
    assert!(pages.contains("README.md") && pages.contains("docs/operate/health.md"), "{pages:?}");
    assert!(all.len() > 25, "only {} objects", all.len());
}

#[test]
fn invalid_objects_are_found() {
    for (spec, expected) in [
        (json!({}), 0),
        (json!({"driver": {}}), 1),
        (json!({"defaults": {"driver": {"versoin": "580.173.02"}}}), 1),
        (json!({"pools": [{"name": "a", "models": []}]}), 1),
        (json!({"nodeLabels": "accelerator"}), 1),
        (json!({"defaults": {"driver": {"version": "580"}}}), 1),
    ] {
        let object = json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "ClusterGpuPolicy", "metadata": {"name": "a"}, "spec": spec,
        });
        let found = complaints(&object);
        assert_eq!(found.is_empty(), expected == 0, "{spec}: {found:?}");
    }
}

#[test]
fn every_block_is_applied_or_listed() {
    let policy = "```yaml\nnodeLabels: [{key: accelerator}]\n```\n";
    let config = "```yaml\nversion: 3\nplugins: {}\n```\n";
    let listed = [("page.md", "version: 3", "of containerd")];
    for (text, not_applied, expected) in [
        (policy, &[][..], Ok(1)),
        (config, &listed[..], Ok(0)),
        (config, &[], Err("add it to NOT_APPLIED with a reason")),
        ("no block", &listed, Err("listed but missing")),
        (policy, &[("page.md", "nodeLabels: [{key: accelerator}]", "")], Err("remove it from NOT_APPLIED")),
    ] {
        let pages = [("page.md".to_owned(), text.to_owned())];
        let found = std::panic::catch_unwind(|| objects_of(&pages, not_applied).len());
        match (found, expected) {
            (Ok(count), Ok(expected)) => assert_eq!(count, expected, "{text}"),
            (Err(said), Err(words)) => {
                let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
                assert!(said.contains(words), "{text}: {said}");
            }
            (found, expected) => panic!("{text}: expected {expected:?}, got {found:?}"),
        }
    }
}

#[test]
fn blocks_of_yaml_are_found_and_others_are_not() {
    let page = "# Title\n\n```sh\nls: here\n```\n\n```yaml\na: 1\n---\nb: 2\n```\n\n    kubectl get gpunodes\n\n- item\n\n      text\n";
    assert_eq!(blocks("page", page), [Block { line: 7, text: "a: 1\n---\nb: 2\n".into() }]);
    for (bad, words) in [
        ("```\nwhat: is this\n```\n", "unknown language \"\""),
        ("Text.\n\n    defaults: {driver: {source: Auto}}\n", "put it between"),
    ] {
        let bad = bad.to_owned();
        let error = std::panic::catch_unwind(move || blocks("page", &bad)).expect_err("the block is rejected");
        let said = error.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_part_of_a_policy_is_completed() {
    for (written, spec) in [
        ("spec: {nodeLabels: [{key: a}]}", json!({"nodeLabels": [{"key": "a"}]})),
        ("nodeLabels: [{key: a}]", json!({"nodeLabels": [{"key": "a"}]})),
        ("pools: [{name: a}]", json!({"pools": [{"name": "a"}]})),
        ("driver: {source: Auto}", json!({"defaults": {"driver": {"source": "Auto"}}})),
        (
            "devicePlugin: {flavor: Google}\ntoolkit: {}",
            json!({"defaults": {"devicePlugin": {"flavor": "Google"}, "toolkit": {}}}),
        ),
    ] {
        let objects = complete(written).unwrap_or_else(|error| panic!("{written}: {error}"));
        let specs: Vec<_> = objects.iter().map(|object| &object["spec"]).collect();
        assert_eq!(specs, [&spec], "{written}");
    }
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
    assert_eq!(complete(&format!("{pod}---\n{pod}")).map(|objects| objects.len()), Ok(2));
    for written in [
        "",
        "[a]",
        "text",
        "{}",
        "image: {repository: a}",
        "version: 2\nplugins: {}",
        "a: [",
        "nodeLabels: [{key: a}]\nkind: b",
        "apiVersion: example.com/v1\nkind: Other",
    ] {
        assert!(complete(written).is_err(), "{written}");
    }
}

/// Parts that are described on other pages or by Kubernetes.
const ELSEWHERE: [&str; 7] = ["health", "tolerations", "nodeSelector", "waitForJobs", "resources", "env", "valueFrom"];

/// Collects the names of all fields of a schema and the values of its enumerations.
fn vocabulary(schema: &Value, words: &mut BTreeSet<String>) {
    words.extend(schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        words.insert(name.clone());
        if !ELSEWHERE.contains(&name.as_str()) {
            vocabulary(property, words);
            vocabulary(&property["items"], words);
        }
    }
}

#[test]
fn the_complete_example_sets_every_field() {
    let mut words = BTreeSet::new();
    vocabulary(&SCHEMA["properties"]["spec"], &mut words);
    assert!(words.contains("RunFile") && words.contains("hostPaths") && words.len() > 80, "{words:?}");
    let page = include_str!("../../../docs/reference/policy.md");
    let everything = blocks("policy.md", page).into_iter().find(|block| block.text.contains("name: everything"));
    let text = everything.expect("a block").text;
    let said: BTreeSet<&str> = text.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let missing: Vec<_> = words.iter().filter(|word| !said.contains(word.as_str())).collect();
    assert!(missing.is_empty(), "policy `everything` lacks {missing:?}");
}

/// Returns the links of a page that are not addresses of the web.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).collect()
}

/// Returns the anchors of a page's headings, as they are formed on GitHub and by mdBook.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns the pages beside the README, whose blocks are not applied.
fn for_contributors(root: &Path) -> [(String, PathBuf); 4] {
    ["CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "SECURITY.md"].map(|page| (page.to_owned(), root.join(page)))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut broken, mut checked) = (Vec::new(), 0);
    let is_page = |(_, file): &(String, PathBuf)| file.extension().is_some_and(|extension| extension == "md");
    for (page, file) in pages(&root).into_iter().filter(is_page).chain(for_contributors(&root)) {
        let written = text(&file);
        for link in links(&written) {
            let (target, anchor) = link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
            let target = if target.is_empty() { file.clone() } else { file.with_file_name("").join(target) };
            let found = target.exists() && anchor.is_none_or(|anchor| anchors(&text(&target)).contains(anchor));
            broken.extend((!found).then(|| format!("{page}: {link}")));
            checked += 1;
        }
    }
    assert!(broken.is_empty() && checked > 100, "{checked} checked: {broken:#?}");
}

#[test]
fn the_book_contains_every_page_and_no_page_is_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let summary = include_str!("../../../docs/SUMMARY.md");
    let listed: BTreeSet<_> = links(summary).into_iter().map(|link| format!("docs/{link}")).collect();
    let is_chapter = |page: &String| page.starts_with("docs/") && page != "docs/SUMMARY.md";
    let chapters: BTreeSet<_> = pages(&root).into_iter().map(|(page, _)| page).filter(is_chapter).collect();
    assert_eq!(listed, chapters);
    for (page, most) in chapters.iter().map(|page| (page.as_str(), 250)).chain([("README.md", 120)]) {
        let lines = std::fs::read_to_string(root.join(page)).expect("a page").lines().count();
        assert!(lines <= most, "{page} has {lines} lines, of at most {most}");
    }
}

#[test]
fn every_reason_is_in_the_docs() {
    let pages = concat!(
        include_str!("../../../docs/reference/reasons.md"),
        include_str!("../../../docs/reference/failures.md")
    );
    for reason in Reason::iter() {
        let is_described = ["`: ", "` ("].iter().any(|next| pages.contains(&format!("\n- `{reason}{next}")));
        assert!(is_described, "{reason} is neither in reasons.md nor in failures.md");
    }
}

/// The longest row of a table, in characters: a longer one is neither readable as text nor, on a narrow screen, as a table.
const MAX_ROW: usize = 200;

/// Returns the lines with rows that are too long.
fn long_rows(text: &str) -> Vec<usize> {
    let is_long = |line: &str| line.trim_start().starts_with('|') && line.chars().count() > MAX_ROW;
    text.lines().enumerate().filter(|(_, line)| is_long(line)).map(|(index, _)| index + 1).collect()
}

#[test]
fn no_row_of_a_table_is_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut long, mut checked) = (Vec::new(), 0);
    for (page, file) in pages(&root).into_iter().chain(for_contributors(&root)) {
        let text = std::fs::read_to_string(file).expect("a page");
        checked += text.lines().filter(|line| line.starts_with('|')).count();
        long.extend(long_rows(&text).into_iter().map(|line| format!("{page}:{line}")));
    }
    assert!(long.is_empty(), "longer than {MAX_ROW} characters; write a list instead, or shorten them: {long:#?}");
    assert!(checked > 200, "only {checked} rows");
    let (short, long) = ("|".repeat(MAX_ROW), "|".repeat(MAX_ROW + 1));
    assert_eq!(long_rows(&format!("{short}\n{long}\n{}\n  {long}\n", "-".repeat(MAX_ROW + 1))), [2, 4]);
}
