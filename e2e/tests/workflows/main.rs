//! Checks the files in .github without the site that reads them: workflows with actionlint, built from its Go module. To run it:
//! `cargo test -p e2e --test workflows`.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use harness::tools::actionlint;
use serde_yaml::Value;

/// Built once for all tests.
static ACTIONLINT: LazyLock<PathBuf> = LazyLock::new(|| actionlint().unwrap_or_else(|error| panic!("{error:#}")));

fn github() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.github")
}

/// Returns the YAML files in a folder of .github.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(github().join(folder)).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "yml" || end == "yaml")).collect();
    assert!(!files.is_empty(), "no files in {folder}");
    files
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns what actionlint finds in workflows. It does not check their shell scripts: that needs shellcheck.
fn problems(workflows: &[PathBuf]) -> String {
    let output = Command::new(&*ACTIONLINT).args(["-shellcheck=", "-pyflakes=", "-oneline"]).args(workflows).output();
    let output = output.expect("actionlint");
    let found = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert_eq!(output.status.success(), found.is_empty(), "{found}");
    found
}

#[test]
fn the_workflows_are_valid() {
    assert_eq!(problems(&files("workflows")), "");
}

#[test]
fn a_misspelled_context_and_an_unknown_permission_are_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("broken.yaml");
    let text = fs::read_to_string(github().join("workflows/ci.yaml")).expect("a workflow");
    let broken = text.replace("github.ref", "github.reff").replace("contents: read", "content: read");
    assert_ne!(broken, text);
    fs::write(&file, broken).expect("written");
    let found = problems(&[file]);
    assert!(found.contains("\"reff\"") && found.contains("\"content\""), "{found}");
}

#[test]
fn the_workflow_of_changes_runs_the_same_checks_as_contributors() {
    let workflow = read(&github().join("workflows/ci.yaml"));
    let steps = workflow["jobs"]["checks"]["steps"].as_sequence().expect("steps");
    let runs: Vec<_> =
        steps.iter().filter_map(|step| step["run"].as_str()).filter(|run| run.contains(".ci/")).collect();
    assert!(matches!(runs[..], [run] if run.trim().ends_with(" .ci/run")), "{runs:?}");
}

#[test]
fn the_update_bot_finds_a_manifest_in_each_of_its_folders() {
    let root = github().join("..");
    for update in read(&github().join("dependabot.yml"))["updates"].as_sequence().expect("updates") {
        let ecosystem = update["package-ecosystem"].as_str().expect("a kind");
        let manifest = match ecosystem {
            "cargo" => "Cargo.lock",
            "gomod" => "go.mod",
            "github-actions" => ".github/workflows",
            "docker" => "Dockerfile",
            other => panic!("{other} is not known here"),
        };
        let several = update["directories"].as_sequence().into_iter().flatten();
        for folder in several.chain(update.get("directory")).map(|folder| folder.as_str().expect("a path")) {
            let parent = root.join(folder.trim_start_matches('/').trim_end_matches('*'));
            let folders: Vec<PathBuf> = if folder.ends_with('*') {
                fs::read_dir(parent).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
            } else {
                vec![parent]
            };
            for folder in folders {
                assert!(folder.join(manifest).exists(), "{ecosystem}: no {manifest} in {}", folder.display());
            }
        }
    }
}

#[test]
fn each_field_of_an_issue_form_has_a_label_and_its_own_id() {
    for file in files("ISSUE_TEMPLATE").iter().filter(|file| !file.ends_with("config.yml")) {
        let form = read(file);
        assert!(form["name"].is_string() && form["description"].is_string(), "{}", file.display());
        let fields = form["body"].as_sequence().expect("fields").iter().filter(|field| field["type"] != "markdown");
        let mut ids: Vec<&str> = Vec::new();
        for field in fields {
            let id = field["id"].as_str().unwrap_or_else(|| panic!("{}: {field:?}", file.display()));
            assert!(field["attributes"]["label"].is_string() && !ids.contains(&id), "{}: {id}", file.display());
            ids.push(id);
        }
    }
}
