//! Rules that hold for the sources of every crate of this workspace: how modules depend on each other, and how long files are.
//!
//! A module depends on another if a `use` or a path in it leads there. A parent and a child that depend on each other form a
//! circle like any other two modules; declaring a child is no dependency. Tests are left out.

#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod modules;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use modules::Modules;

/// The workspace's crates, each with its folders (or single modules) in the order in which they may use each other: a module
/// uses only those of its own and of earlier entries. Modules that are not listed are the crate's entry points.
const CRATES: [(&str, &[&str]); 9] = [
    ("crates/common", &[]),
    ("crates/crd", &[]),
    (
        "crates/plan",
        &[
            "time",
            "settings",
            "note",
            "container_names",
            "int_or_percent",
            "catalogue",
            "world",
            "revision",
            "inventory",
            "desired",
            "assess",
            "rollout",
            "manifests",
            "image_list",
            "output",
            "carry",
            "plan",
        ],
    ),
    ("crates/diagnose", &[]),
    ("crates/operator", &[]),
    ("crates/host", &["process", "root", "observe", "nvml"]),
    ("crates/node-tools", &["mig", "runtime", "gates", "operands", "cli"]),
    ("crates/nvml-probe", &["health", "report", "agent", "cli"]),
    ("e2e", &["harness", "standin", "cluster", "fleet", "benchmark", "xtask"]),
];

/// The longest file, in lines.
const LONGEST: usize = 400;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(of: &str) -> PathBuf {
    workspace().join(of).join("src")
}

#[test]
fn no_modules_depend_on_each_other_in_a_circle() {
    for (name, _) in CRATES {
        let modules = Modules::read(&sources(name));
        let circles = modules.circles();
        assert!(circles.is_empty(), "{name}: {circles:#?}");
    }
}

#[test]
fn no_module_uses_one_of_a_later_step() {
    for (name, order) in CRATES {
        let modules = Modules::read(&sources(name));
        let place = |module: &str| {
            order.iter().position(|entry| module.split("::").next().is_some_and(|first| first == *entry))
        };
        let is_upward = |(from, to): &(&str, &str)| place(from).zip(place(to)).is_some_and(|(from, to)| to > from);
        let upward: Vec<_> = modules.dependencies().filter(is_upward).collect();
        assert!(upward.is_empty(), "{name}: {upward:#?}");
        let listed: BTreeSet<&str> = order.iter().copied().collect();
        let missing: Vec<_> = listed.iter().filter(|entry| !modules.contains(entry)).collect();
        assert!(missing.is_empty(), "{name} has no {missing:?}");
    }
}

#[test]
fn no_tuple_stands_for_several_parameters() {
    for (name, _) in CRATES {
        let found = Modules::read(&sources(name)).tuple_parameters();
        assert!(found.is_empty(), "{name}: write a struct, or separate parameters: {found:#?}");
    }
}

#[test]
fn no_file_is_longer_than_a_reader_wants() {
    for (name, _) in CRATES {
        for file in modules::files(&sources(name)) {
            let lines = fs::read_to_string(&file).expect("a readable file").lines().count();
            assert!(lines <= LONGEST, "{}: {lines} lines, and at most {LONGEST} are wanted", file.display());
        }
    }
}

#[test]
fn circles_upward_uses_and_tuples_are_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/house/example");
    let modules = Modules::read(&folder);
    let dependencies: Vec<_> = modules.dependencies().collect();
    let expected =
        [("first", "second::inner"), ("second", "second::inner"), ("second::inner", "first"), ("third", "first")];
    for expected in expected {
        assert!(dependencies.contains(&expected), "{expected:?}: {dependencies:?}");
    }
    assert!(!dependencies.contains(&("second", "first")), "a test's: {dependencies:?}");
    assert_eq!(modules.circles(), [vec!["first", "second::inner"]]);
    assert_eq!(modules.tuple_parameters(), ["second: pair"]);
}
