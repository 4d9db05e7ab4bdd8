//! `test`: runs all tests, in stages, and prints the time of each stage.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
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

/// The tests of the plan. They only compute, so they may wait for processor time for as long as it takes.
const PLAN: &str = "plan";
const PLAN_LOG: &str = "plan-tests";

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
        // The plan's tests take as long as all other tests without a cluster together, and later stages often wait.
        thread::scope(|scope| {
            let is_whole = filter.is_none() && !oldest_kubernetes;
            let plan = is_whole.then(|| scope.spawn(|| plan_tests(paths)));
            if is_whole {
                run.stage("unit tests", || unit_tests(paths));
            }
            let tested = test_in_cluster(&mut run, paths, nodes, filter);
            if let Some(plan) = plan {
                run.stage("plan tests", || {
                    let outcome = plan.join().map_err(|_| anyhow!("the thread of the plan's tests panicked"))?;
                    io::copy(&mut File::open(paths.test_log(PLAN_LOG))?, &mut io::stdout())?;
                    outcome
                });
            }
            tested
        })?;
    }
    begin_cleanup();
    run.stage("down", || {
        lifecycle::down(paths)?;
        devices.ensure_nothing_left(paths)
    });
    run.finish()
}

/// Starts the cluster and runs the tests that need it.
fn test_in_cluster(run: &mut Run, paths: &Paths, nodes: Nodes, filter: Option<&str>) -> Result<()> {
    if !run.stage("cluster up", || lifecycle::up(paths, Purpose::Test, Extent::Chart, nodes).map(drop)) {
        return Ok(());
    }
    let succeeded = run.stage("e2e tests", || e2e_tests(paths, nodes, filter))
        // Only all other tests together use all permissions.
        && (filter.is_some() || run.stage("permissions", || permissions(paths, nodes)));
    if !succeeded && !interrupted() {
        let text = diagnosis(paths, lifecycle::real_nodes(paths));
        outln!("{text}");
        let file = paths.logs().join("diagnosis.txt");
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Runs all tests that need no cluster, except the plan's.
fn unit_tests(paths: &Paths) -> Result<()> {
    let mut names = cargo::test_targets(&paths.root, |package| package != END_TO_END)?;
    names.retain(|name| name != PLAN);
    cargo_test(paths, &Tests { log: "unit-tests", kinds: &["--lib", "--bins"], names: &names, ..Tests::default() })
}

/// Runs the tests of the plan beside the other stages.
fn plan_tests(paths: &Paths) -> Result<()> {
    cargo_test(paths, &Tests { log: PLAN_LOG, names: &[PLAN.to_owned()], in_background: true, ..Tests::default() })
}

/// Runs the end-to-end tests in the running cluster; without real nodes, only those on simulated nodes.
fn e2e_tests(paths: &Paths, nodes: Nodes, filter: Option<&str>) -> Result<()> {
    let mut tests = cargo::test_targets(&paths.root, |package| package == END_TO_END)?;
    tests.retain(|name| if nodes.is_real() { name != PERMISSIONS } else { name == SIMULATED });
    // Every test waits for the nodes that it needs, so all of them can start at once.
    let mut args = vec!["--test-threads=200"];
    args.extend(filter);
    cargo_test(paths, &Tests { log: "e2e-tests", names: &tests, args: &args, ..Tests::default() })?;
    State::load(paths).map_or(Ok(()), |state| unanswered::ensure_all_known(paths, state.nodes.real()))
}

/// Runs the test that reads the requests of all other end-to-end tests.
fn permissions(paths: &Paths, nodes: Nodes) -> Result<()> {
    if !nodes.is_real() {
        return Ok(());
    }
    cargo_test(paths, &Tests { log: PERMISSIONS, names: &[PERMISSIONS.to_owned()], ..Tests::default() })
}

/// Which tests of the workspace run, and how.
#[derive(Default)]
struct Tests<'a> {
    /// The name of their log.
    log: &'a str,
    /// The options of cargo for other targets than integration tests.
    kinds: &'a [&'a str],
    /// The names of the integration tests.
    names: &'a [String],
    /// The arguments of the test programs.
    args: &'a [&'a str],
    /// Whether they run beside other tests: with the lowest priority, and with their output only in the log.
    in_background: bool,
}

/// Runs tests of the workspace, and keeps their output in a log. It always runs cargo for the whole workspace, so that every
/// dependency is built only once, with the same features.
fn cargo_test(paths: &Paths, tests: &Tests<'_>) -> Result<()> {
    let log = paths.test_log(tests.log);
    // Both streams, because cargo writes to standard error which program was ended by a signal.
    let output = create(&log)?;
    let cargo = if tests.in_background { cargo::background_command } else { cargo::command };
    let mut command = cargo(&paths.root);
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(tests.kinds)
        .args(tests.names.iter().flat_map(|name| ["--test", name]))
        .arg("--")
        .args(tests.args)
        .env("E2E_KUBECONFIG", paths.kubeconfig())
        .envs(seed(&paths.root).map(|seed| (simulate::SEED, seed)))
        .stdout(output.try_clone()?)
        .stderr(output);
    let mut printed = File::open(&log)?;
    // Forwards the output as it is written.
    let mut echo = || drop(io::copy(&mut printed, &mut io::stdout()).and_then(|_| io::stdout().flush()));
    let status = if tests.in_background {
        wait_for(&mut command, || {})?
    } else {
        let status = wait_for(&mut command, &mut echo)?;
        echo();
        status
    };
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
