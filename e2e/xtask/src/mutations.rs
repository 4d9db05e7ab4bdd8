//! `mutations`: breaks the product on purpose, one rule at a time, and runs the test that must find it.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use harness::{
    cargo,
    files::create,
    interrupts::pause,
    outln,
    paths::Paths,
    process::{output, run_logged, wait_for},
    progress::{Step, elapsed},
};
use toml_edit::{Document, Table};

const LIST: &str = "e2e/xtask/mutations.toml";

/// Which mutations to try.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Only those whose rule, file or test contains this.
    filter: Option<String>,
}

/// A change of the product that breaks one rule.
struct Mutation {
    /// The rule in words.
    name: String,
    file: String,
    from: String,
    to: String,
    /// The arguments of `cargo test` that run the test which finds it.
    test: String,
}

/// How a test ended.
#[derive(PartialEq)]
enum Outcome {
    Passed,
    /// By an assertion.
    Failed,
}

/// Tries the mutations, and fails if one is not found by its test.
pub(super) fn run(paths: &Paths, options: &Options) -> Result<()> {
    let started = Instant::now();
    let list = fs::read_to_string(paths.root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let mut mutations = parse(&list).with_context(|| format!("reading {LIST}"))?;
    if let Some(filter) = &options.filter {
        mutations
            .retain(|Mutation { name, file, test, .. }| [name, file, test].iter().any(|text| text.contains(filter)));
    }
    let copy = Copy::make(paths)?;
    let mut by_test = BTreeMap::<&str, Vec<&Mutation>>::new();
    for mutation in &mutations {
        by_test.entry(&mutation.test).or_default().push(mutation);
    }
    let mut wrong = 0;
    for (test, mutations) in by_test {
        let step = Step::start(format!("without a mutation: {test}"));
        ensure!(copy.test(test, &step)? == Outcome::Passed, "{test} fails: see {}", copy.log().display());
        step.done();
        for Mutation { name, file, from, to, .. } in mutations {
            let step = Step::start(name);
            let outcome = copy.with(file, from, to, || copy.test(test, &step));
            pause(Duration::ZERO)?;
            let why = match outcome {
                Ok(Outcome::Failed) => {
                    step.done();
                    continue;
                }
                Ok(Outcome::Passed) => "not found".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            step.print(&format!("✗ {name}: {why}"));
            wrong += 1;
        }
    }
    let took = elapsed(started.elapsed());
    ensure!(wrong == 0, "{wrong} of {} mutations are not found by their test, in {took}", mutations.len());
    outln!("{} mutations, each found by its test, in {took}", mutations.len());
    Ok(())
}

fn parse(list: &str) -> Result<Vec<Mutation>> {
    let list = Document::parse(list)?;
    let read = |entry: &Table| {
        let field = |name: &str| {
            let text = entry.get(name).and_then(|item| item.as_str());
            text.map(ToOwned::to_owned).with_context(|| format!("a mutation without {name}"))
        };
        let (name, file) = (field("name")?, field("file")?);
        Ok(Mutation { name, file, from: field("from")?, to: field("to")?, test: field("test")? })
    };
    list["mutation"].as_array_of_tables().context("no mutations")?.iter().map(read).collect()
}

/// A copy of the checkout with its own build results: the files and the programs of the checkout stay.
struct Copy<'p> {
    paths: &'p Paths,
    root: PathBuf,
}

impl<'p> Copy<'p> {
    /// Makes the copy, or brings that of an earlier run to what git tracks in the checkout. Only files that differ are written, so that
    /// only what depends on them is compiled again.
    fn make(paths: &'p Paths) -> Result<Self> {
        let root = paths.root.join("target/mutations");
        fs::create_dir_all(&root)?;
        let git = || {
            let mut git = Command::new("git");
            git.current_dir(&paths.root);
            git
        };
        // A commit of what is not committed yet, which changes nothing in the checkout; none if there is nothing.
        let changed = output(git().args(["stash", "create"]))?;
        let commit = if changed.is_empty() { "HEAD" } else { changed.trim() };
        let mut read = git();
        read.env("GIT_INDEX_FILE", root.with_extension("index")).env("GIT_WORK_TREE", &root);
        output(read.args(["read-tree", "--reset", "-u", commit]))?;
        Ok(Self { paths, root })
    }

    fn log(&self) -> PathBuf {
        self.paths.test_log("mutations")
    }

    /// Does something while a text of a file is replaced. What a killed run leaves behind is undone by the next one.
    fn with<T>(&self, file: &str, from: &str, to: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let path = self.root.join(file);
        let original = fs::read_to_string(&path).with_context(|| format!("reading {file}"))?;
        ensure!(original.matches(from).count() == 1, "not exactly once in {file}: {from}");
        fs::write(&path, original.replacen(from, to, 1))?;
        let outcome = work();
        fs::write(&path, original)?;
        outcome
    }

    /// Builds and runs a test, given by the arguments of cargo.
    fn test(&self, args: &str, step: &Step) -> Result<Outcome> {
        let cargo = |more: &[&str]| {
            let mut cargo = cargo::command(&self.root);
            cargo.env_remove("CARGO_TARGET_DIR").arg("test").args(more).args(args.split_whitespace());
            cargo
        };
        run_logged(&mut cargo(&["--no-run"]), &self.log(), || step.tick("building"))?;
        let log = create(&self.log())?;
        let mut test = cargo(&["--no-fail-fast"]);
        let status = wait_for(test.stdout(log.try_clone()?).stderr(log), || step.tick("testing"))?;
        let log = fs::read_to_string(self.log())?;
        let failed = log.contains("\ntest result: FAILED");
        let has_run =
            |line: &str| line.starts_with("test result: ok. ") && !line.starts_with("test result: ok. 0 passed");
        match (status.success(), failed) {
            (true, _) if log.lines().any(has_run) => Ok(Outcome::Passed),
            (true, _) => bail!("no test is called so: {args}"),
            (false, true) => Ok(Outcome::Failed),
            (false, false) => bail!("{status}, without a failed test: see {}", self.log().display()),
        }
    }
}
