//! `test`: all tests, in stages, each with the time it took.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    asked, chart,
    failures::failures,
    images,
    lifecycle::{self, Extent},
    paths::Paths,
    process::{self, begin_cleaning, create, interrupted, wait_for},
    progress::{elapsed, heading},
    state::{Purpose, State},
    traces::Before,
};

/// How many real nodes the tests have, one of which is of an older time and idle but for the tests of that: with more of them
/// two cores have too much to do.
const NODES: u8 = 6;

/// How a stage ended.
struct Outcome {
    stage: &'static str,
    time: Duration,
    failure: Option<String>,
}

/// The stages so far.
#[derive(Default)]
struct Run {
    outcomes: Vec<Outcome>,
}

impl Run {
    /// Runs a stage and says whether it went well.
    fn stage(&mut self, stage: &'static str, work: impl FnOnce() -> Result<()>) -> bool {
        heading(&format!("stage: {stage}"));
        let started = Instant::now();
        let failure = work().err().map(|error| format!("{error:#}"));
        let time = started.elapsed();
        match &failure {
            None => say!("▸ {stage}: {}\n", elapsed(time)),
            Some(text) => say!("▸ {stage}: FAILED after {}\n{text}\n", elapsed(time)),
        }
        let well = failure.is_none();
        self.outcomes.push(Outcome { stage, time, failure });
        well
    }

    fn finish(self) -> Result<()> {
        heading("times");
        for outcome in &self.outcomes {
            let mark = if outcome.failure.is_some() { "✗" } else { "✓" };
            say!("  {mark} {:<12} {:>8}", outcome.stage, elapsed(outcome.time));
        }
        let total = self.outcomes.iter().map(|outcome| outcome.time).sum();
        say!("    {:<12} {:>8}", "total", elapsed(total));
        let failed: Vec<String> = self
            .outcomes
            .iter()
            .filter_map(|outcome| Some(format!("{}: {}", outcome.stage, outcome.failure.as_ref()?)))
            .collect();
        if !failed.is_empty() {
            bail!("failed\n\n{}", failed.join("\n\n"));
        }
        Ok(())
    }
}

/// Runs the stages. `filter` picks end-to-end tests by a part of their name; then, and only then, the others are left out.
pub(crate) fn run(paths: &Paths, filter: Option<&str>) -> Result<()> {
    lifecycle::vacate(paths)?;
    let kind = lifecycle::nodes(NODES);
    let real = kind.is_real();
    let before = Before::look()?;
    let mut run = Run::default();
    let built = run.stage("tools", || lifecycle::prepare(paths, Purpose::Test, kind))
        && run.stage("build", || {
            lifecycle::build_workspace(paths, true)?;
            if real { images::build(paths, true) } else { Ok(()) }
        });
    if built {
        if filter.is_none() {
            run.stage("unit tests", || {
                let folders =
                    ["crates/crd", "crates/nvml-probe", "crates/operator", "e2e/standins/nvml", "e2e/standins/node"];
                let tests: Vec<String> =
                    folders.iter().flat_map(|folder| targets(&paths.root.join(folder).join("tests"))).collect();
                cargo(paths, "unit-tests", &["--lib", "--bins"], &tests, &[])
            });
        }
        if run.stage("cluster up", || lifecycle::up(paths, Purpose::Test, Extent::Chart, kind).map(drop)) {
            let well = run.stage("e2e tests", || {
                if !real {
                    say!("left out: they need a real node, and so root");
                    return Ok(());
                }
                let tests = targets(&paths.root.join("e2e/tests"));
                if tests.is_empty() {
                    say!("there are none");
                    return Ok(());
                }
                // Tests wait for the nodes that they need, and so all of them begin at once.
                let mut args = vec!["--test-threads=200"];
                args.extend(filter);
                cargo(paths, "e2e-tests", &[], &tests, &args)?;
                State::load(paths).map_or(Ok(()), |state| asked::all_is_known(paths, &state))
            });
            if !well && !interrupted() {
                let text = chart::diagnosis(paths, lifecycle::real_nodes(paths));
                say!("{text}");
                let file = paths.logs().join("diagnosis.txt");
                fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
            }
        }
    }
    begin_cleaning();
    run.stage("down", || {
        lifecycle::down(paths)?;
        before.nothing_is_left(paths)
    });
    run.finish()
}

/// Runs tests of the workspace, and keeps what they print in a log. Always of the whole workspace, so that every dependency
/// is built with the same features, and so once.
fn cargo(paths: &Paths, log: &str, kinds: &[&str], tests: &[String], rest: &[&str]) -> Result<()> {
    let log = paths.log(log);
    let mut command = process::cargo(&paths.root);
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(kinds)
        .args(tests.iter().flat_map(|name| ["--test", name]))
        .arg("--")
        .args(rest)
        .env("E2E_KUBECONFIG", paths.kubeconfig())
        .stdout(create(&log)?);
    let mut printed = File::open(&log)?;
    // What is written goes on to where we print, as it comes.
    let mut echo = || drop(io::copy(&mut printed, &mut io::stdout()).and_then(|_| io::stdout().flush()));
    let status = wait_for(&mut command, &mut echo)?;
    echo();
    if !status.success() {
        let told = failures(&String::from_utf8_lossy(&fs::read(&log)?));
        bail!("cargo test ended with {status}; all its output is in {}\n{}", log.display(), told.join("\n"));
    }
    Ok(())
}

/// The names of a package's integration tests: files, and folders with a `main.rs`.
fn targets(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = entries
        .filter(|path| path.join("main.rs").is_file() || path.extension().is_some_and(|ending| ending == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_beside_the_tests_are_no_tests() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["b.rs", "a/main.rs", "common/mod.rs", "data.json"] {
            drop(create(&dir.path().join(file)).unwrap());
        }
        assert_eq!(targets(dir.path()), ["a", "b"]);
    }
}
