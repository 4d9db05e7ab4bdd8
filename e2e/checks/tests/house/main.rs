//! Rules that hold for the sources of every crate of this workspace: how modules depend on each other, how long files are, how
//! modules are laid out, and how long the names of tests are.
//!
//! A module depends on another if a `use` or a path in it leads there. A parent and a child that depend on each other form a
//! circle like any other two modules; declaring a child is no dependency. Tests are left out of these two rules only.

#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod budgets;
mod functions;
mod modules;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use functions::Functions;
use modules::Modules;
use toml_edit::Document;

/// The folders (or single modules) of some crates, in the order in which they may use each other: a module uses only those of
/// its own and of earlier entries. Modules that are not listed are the crate's entry points.
const ORDERS: [(&str, &[&str]); 4] = [
    (
        "crates/plan",
        &[
            "time",
            "settings",
            "sorted",
            "clock",
            "note",
            "container_names",
            "catalogue",
            "world",
            "revision",
            "pool_settings",
            "ground",
            "inventory",
            "desired",
            "summary",
            "assess",
            "rollout",
            "memo",
            "manifests",
            "image_list",
            "output",
            "loop_memory",
            "plan",
        ],
    ),
    ("crates/host", &["process", "root", "observe", "nvml"]),
    ("crates/node-tools", &["mig", "runtime", "gates", "operands", "cli"]),
    ("crates/nvml-probe", &["health", "report", "agent", "cli"]),
];

/// The longest file, in lines.
const LONGEST_FILE: usize = 400;
/// The longest name of a test, in characters.
const LONGEST_NAME: usize = 60;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folders of the workspace's crates.
fn crates() -> Vec<String> {
    let text = fs::read_to_string(workspace().join("Cargo.toml")).expect("Cargo.toml");
    let manifest = Document::parse(text).expect("TOML");
    let members = manifest["workspace"]["members"].as_array().expect("members");
    members.iter().map(|member| member.as_str().expect("a folder").to_owned()).collect()
}

fn sources(of: &str) -> PathBuf {
    workspace().join(of).join("src")
}

/// Returns the files of all crates, tests included, by their paths in the checkout.
fn all_files() -> impl Iterator<Item = (String, PathBuf)> {
    let folders =
        crates().into_iter().flat_map(|name| ["src", "tests"].map(|folder| workspace().join(&name).join(folder)));
    let files = folders.filter(|folder| folder.exists()).flat_map(|folder| modules::files(&folder, true));
    files.map(|file| (file.strip_prefix(workspace()).expect("a file of the checkout").display().to_string(), file))
}

/// Fails if anything was found.
fn none(what: &str, found: impl Iterator<Item = String>) {
    let found: BTreeSet<_> = found.collect();
    assert!(found.is_empty(), "{what}: {found:#?}");
}

#[test]
fn no_modules_depend_on_each_other_in_a_circle() {
    let circles = crates().into_iter().filter(|name| sources(name).exists()).filter(|name| {
        let modules = Modules::read(&sources(name));
        let circles = modules.circles();
        println!("{name}: {circles:#?}");
        !circles.is_empty()
    });
    none("crates with circles of modules", circles);
}

#[test]
fn no_module_uses_one_of_a_later_step() {
    for (name, order) in ORDERS {
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

/// What compares a time with the present. Only the clock of a plan does that, because it has to know when the result changes.
const COMPARISONS: [&str; 6] =
    ["clock.now() <", "clock.now() >", "< clock.now()", "> clock.now()", "= clock.now()", "duration_since("];

#[test]
fn only_the_clock_compares_times_with_the_present() {
    let plan = sources("crates/plan");
    let rooms = ["inventory", "desired", "assess", "rollout", "output"];
    let is_of = |file: &Path, room: &str| {
        file.strip_prefix(&plan).is_ok_and(|file| file.starts_with(room) || file == Path::new(&format!("{room}.rs")))
    };
    let files = modules::files(&plan, false).into_iter().filter(|file| rooms.iter().any(|room| is_of(file, room)));
    let found = files.flat_map(|file| {
        let text = fs::read_to_string(&file).expect("a readable file");
        let body = text.split("#[cfg(test)]").next().unwrap_or_default();
        let compares = |line: &&str| COMPARISONS.iter().any(|comparison| line.contains(comparison));
        body.lines().filter(compares).map(|line| format!("{}: {line}", file.display())).collect::<Vec<_>>()
    });
    none("ask the clock", found);
}

/// What one node should have and how far it is depends on its own facts and the ground alone.
#[test]
fn the_steps_for_one_node_do_not_see_the_world() {
    let plan = sources("crates/plan");
    let folders = ["desired", "assess"].map(|folder| plan.join(folder));
    let files = folders.iter().flat_map(|folder| modules::files(folder, false)).chain([plan.join("desired.rs")]);
    let sees = |file: &PathBuf| fs::read_to_string(file).expect("a readable file").contains("World");
    none("take the node's facts or the ground", files.filter(sees).map(|file| file.display().to_string()));
}

#[test]
fn no_file_is_longer_than_a_reader_wants() {
    let lines = |file: &Path| fs::read_to_string(file).expect("a readable file").lines().count();
    let found = all_files().map(|(name, file)| (name, lines(&file))).filter(|(_, lines)| *lines > LONGEST_FILE);
    none("split these files", found.map(|(name, lines)| format!("{name}: {lines} lines")));
}

/// A file that no module declares is not compiled, and its tests do not run.
#[test]
fn every_file_is_declared_as_a_module() {
    let is_left_out = |file: &Path| {
        let (Some(folder), Some(name)) = (file.parent(), file.file_stem().and_then(|name| name.to_str())) else {
            return false;
        };
        let is_root = ["lib", "main", "build"].contains(&name)
            || folder.ends_with("bin")
            || folder.ends_with("tests") && folder.join("../Cargo.toml").exists();
        let parents = [folder.with_extension("rs"), folder.join("lib.rs"), folder.join("main.rs")];
        let declares =
            |parent: &PathBuf| fs::read_to_string(parent).is_ok_and(|text| text.contains(&format!("mod {name};")));
        !is_root && !parents.iter().any(declares)
    };
    let found = all_files().filter(|(_, file)| is_left_out(file)).map(|(name, _)| name);
    none("declare these files as modules", found);
}

#[test]
fn a_module_is_a_file_beside_its_folder() {
    let deviates = |name: &str, file: &Path| {
        let text = fs::read_to_string(file).expect("a readable file");
        name.ends_with("/mod.rs") || text.contains(concat!("#", "[path"))
    };
    let found = all_files().filter(|(name, file)| deviates(name, file)).map(|(name, _)| name);
    none("no mod.rs, but a file beside its folder; no path, but a library for what is shared", found);
}

#[test]
fn no_tuple_stands_for_several_parameters() {
    let found = all_files().flat_map(|(name, file)| {
        Functions::read(&file).with_tuples.into_iter().map(move |function| format!("{name}: {function}"))
    });
    none("write a struct, or separate parameters", found);
}

#[test]
fn the_name_of_a_test_is_short() {
    let found = all_files().flat_map(|(name, file)| {
        let tests = Functions::read(&file).tests.into_iter().filter(|test| test.chars().count() > LONGEST_NAME);
        tests.map(move |test| format!("{name}: {test}"))
    });
    none("shorten these names", found);
}

/// The list of `cargo xtask mutations`, which would otherwise be noticed to be outdated only when it is run.
#[test]
fn each_mutation_replaces_one_text_and_has_its_own_name() {
    let list = fs::read_to_string(workspace().join("e2e/xtask/mutations.toml")).expect("the list");
    let list = Document::parse(list).expect("TOML");
    let mutations = list["mutation"].as_array_of_tables().expect("mutations");
    let mut names = BTreeSet::new();
    let found = mutations.iter().filter_map(|mutation| {
        let field = |name: &str| mutation[name].as_str().expect("a text");
        let file = fs::read_to_string(workspace().join(field("file"))).unwrap_or_default();
        let times = file.matches(field("from")).count();
        let is_new = names.insert(field("name").to_owned());
        (times != 1 || !is_new).then(|| format!("{}: {times} times in {}", field("name"), field("file")))
    });
    none("mutations to correct", found);
}

#[test]
fn circles_upward_uses_and_tuples_are_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("example");
    let modules = Modules::read(&folder);
    let dependencies: Vec<_> = modules.dependencies().collect();
    let expected =
        [("first", "second::inner"), ("second", "second::inner"), ("second::inner", "first"), ("third", "first")];
    for expected in expected {
        assert!(dependencies.contains(&expected), "{expected:?}: {dependencies:?}");
    }
    assert!(!dependencies.contains(&("second", "first")), "a test's: {dependencies:?}");
    assert_eq!(modules.circles(), [vec!["first", "second::inner"]]);
    let Functions { with_tuples, tests } = Functions::read(&folder.join("second.rs"));
    assert_eq!((with_tuples, tests.len()), (vec!["pair".to_owned()], 0));
}
