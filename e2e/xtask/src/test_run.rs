//! `test`: runs all tests, in stages, and prints the time of each stage.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cluster::{
    diagnosis::diagnosis,
    lifecycle::{self, Extent},
    standin::unanswered,
    state::{Nodes, Purpose, State},
};
use harness::{
    cargo,
    files::create,
    interrupts::{begin_cleanup, interrupted},
    outln,
    paths::Paths,
    process::wait_for,
    progress::{elapsed, heading},
    tools::Kubernetes,
};

use super::{leftovers::DevicesBefore, simulate, test_failures};

/// The number of real nodes of the tests. One of them has the older containerd and is idle except for its own tests. More
/// nodes are too much for two cores.
const NODES: u8 = 6;

/// The package of the end-to-end tests.
const END_TO_END: &str = "e2e";

/// The end-to-end tests on simulated nodes, which need no real ones.
const SIMULATED: &str = "fleet";

/// The end-to-end test that runs after all others.
const PERMISSIONS: &str = "permissions";

/// The result of a stage.
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
    /// Runs a stage and returns whether it succeeded.
    fn stage(&mut self, stage: &'static str, work: impl FnOnce() -> Result<()>) -> bool {
        heading(&format!("stage: {stage}"));
        let started = Instant::now();
        let failure = work().err().map(|error| format!("{error:#}"));
        let time = started.elapsed();
        match &failure {
            None => outln!("▸ {stage}: {}\n", elapsed(time)),
            Some(text) => outln!("▸ {stage}: FAILED after {}\n{text}\n", elapsed(time)),
        }
        let succeeded = failure.is_none();
        self.outcomes.push(Outcome { stage, time, failure });
        succeeded
    }

    /// Prints the times of all stages, and fails if a stage failed.
    fn finish(self) -> Result<()> {
        heading("times");
        for outcome in &self.outcomes {
            let mark = if outcome.failure.is_some() { "✗" } else { "✓" };
            outln!("  {mark} {:<12} {:>8}", outcome.stage, elapsed(outcome.time));
        }
        let total = self.outcomes.iter().map(|outcome| outcome.time).sum();
        outln!("    {:<12} {:>8}", "total", elapsed(total));
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

/// Runs the stages. With `filter` only end-to-end tests run whose names contain it, and with `oldest_kubernetes` only those on simulated
/// nodes.
pub(super) fn run(paths: &Paths, filter: Option<&str>, oldest_kubernetes: bool) -> Result<()> {
    lifecycle::remove_leftover(paths)?;
    let nodes = if oldest_kubernetes { Nodes::Kwok(Kubernetes::Oldest) } else { lifecycle::choose_nodes(NODES) };
    let devices = DevicesBefore::list()?;
    let mut run = Run::default();
    let built = run.stage("tools", || lifecycle::prepare(paths, Purpose::Test, nodes))
        && run.stage("build", || lifecycle::build(paths, Purpose::Test, Extent::Chart, nodes));
    if built {
        if filter.is_none() && !oldest_kubernetes {
            run.stage("unit tests", || unit_tests(paths));
        }
        if run.stage("cluster up", || lifecycle::up(paths, Purpose::Test, Extent::Chart, nodes).map(drop)) {
            let succeeded = run.stage("e2e tests", || e2e_tests(paths, nodes, filter))
                // Only all other tests together use all permissions.
                && (filter.is_some() || run.stage("permissions", || permissions(paths, nodes)));
            if !succeeded && !interrupted() {
                let text = diagnosis(paths, lifecycle::real_nodes(paths));
                outln!("{text}");
                let file = paths.logs().join("diagnosis.txt");
                fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
            }
        }
    }
    begin_cleanup();
    run.stage("down", || {
        lifecycle::down(paths)?;
        devices.ensure_nothing_left(paths)
    });
    run.finish()
}

/// Runs all tests that need no cluster.
fn unit_tests(paths: &Paths) -> Result<()> {
    let tests = cargo::test_targets(&paths.root, |package| package != END_TO_END)?;
    cargo_test(paths, "unit-tests", &["--lib", "--bins"], &tests, &[])
}

/// Runs the end-to-end tests in the running cluster; without real nodes, only those on simulated nodes.
fn e2e_tests(paths: &Paths, nodes: Nodes, filter: Option<&str>) -> Result<()> {
    let mut tests = cargo::test_targets(&paths.root, |package| package == END_TO_END)?;
    tests.retain(|name| if nodes.is_real() { name != PERMISSIONS } else { name == SIMULATED });
    // Every test waits for the nodes that it needs, so all of them can start at once.
    let mut args = vec!["--test-threads=200"];
    args.extend(filter);
    cargo_test(paths, "e2e-tests", &[], &tests, &args)?;
    State::load(paths).map_or(Ok(()), |state| unanswered::ensure_all_known(paths, state.nodes.real()))
}

/// Runs the test that reads the requests of all other end-to-end tests.
fn permissions(paths: &Paths, nodes: Nodes) -> Result<()> {
    if nodes.is_real() { cargo_test(paths, PERMISSIONS, &[], &[PERMISSIONS.to_owned()], &[]) } else { Ok(()) }
}

/// Runs tests of the workspace, and keeps their output in a log. It always runs cargo for the whole workspace, so that every
/// dependency is built only once, with the same features.
fn cargo_test(paths: &Paths, log: &str, kinds: &[&str], tests: &[String], rest: &[&str]) -> Result<()> {
    let log = paths.log(log);
    // Both streams, because cargo writes to standard error which program was ended by a signal.
    let output = create(&log)?;
    let mut command = cargo::command(&paths.root);
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(kinds)
        .args(tests.iter().flat_map(|name| ["--test", name]))
        .arg("--")
        .args(rest)
        .env("E2E_KUBECONFIG", paths.kubeconfig())
        .envs(seed(&paths.root).map(|seed| (simulate::SEED, seed)))
        .stdout(output.try_clone()?)
        .stderr(output);
    let mut printed = File::open(&log)?;
    // Forwards the output as it is written.
    let mut echo = || drop(io::copy(&mut printed, &mut io::stdout()).and_then(|_| io::stdout().flush()));
    let status = wait_for(&mut command, &mut echo)?;
    echo();
    if !status.success() {
        let failures = test_failures::summarize(&String::from_utf8_lossy(&fs::read(&log)?));
        bail!("cargo test failed ({status}); its complete output is in {}\n{}", log.display(), failures.join("\n"));
    }
    Ok(())
}

/// Returns the seed of the random tests: the one in the environment, otherwise that of the commit that is checked out, so that each
/// commit is tested with other cases, and a failing commit fails again; `None` outside a repository.
fn seed(root: &Path) -> Option<String> {
    let of_commit = || {
        let commit = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().ok()?.stdout;
        Some(u32::from_str_radix(str::from_utf8(&commit).ok()?.get(..8)?, 16).ok()?.to_string())
    };
    env::var(simulate::SEED).ok().or_else(of_commit)
}
