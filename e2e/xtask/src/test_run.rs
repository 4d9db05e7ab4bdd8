//! `test`: runs all tests, in stages, and prints the time of each stage.

use std::{
    fs::{self, File},
    io::{self, Write},
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use cluster::{
    diagnosis::diagnosis,
    lifecycle::{self, Extent},
    standin::unanswered,
    state::{Nodes, Purpose, State},
};
use harness::{
    cargo, errln,
    files::create,
    interrupts::{begin_cleanup, interrupted},
    outln,
    paths::Paths,
    process::wait_for,
    progress::{elapsed, heading},
    tools::Kubernetes,
};

use super::{leftovers::DevicesBefore, test_failures};

/// The number of real nodes of the tests. One of them has the older containerd and is idle except for its own tests. More
/// nodes are too much for two cores.
const NODES: u8 = 6;

/// The package of the end-to-end tests.
const END_TO_END: &str = "e2e";

/// The end-to-end tests on simulated nodes, which need no real ones.
const SIMULATED: &str = "fleet";

/// The package of the plan. Its tests only compute, so they may wait for processor time for as long as it takes.
const PLAN: &str = "gpu-operator-plan";
const PLAN_LOG: &str = "plan-tests";
const FLEET_LOG: &str = "fleet-tests";

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
        let outcome = work();
        self.end(stage, started.elapsed(), outcome)
    }

    /// Prints and keeps the outcome of a stage, and returns whether it succeeded.
    fn end(&mut self, stage: &'static str, time: Duration, outcome: Result<()>) -> bool {
        let failure = outcome.err().map(|error| format!("{error:#}"));
        match &failure {
            None => outln!("▸ {stage}: {}\n", elapsed(time)),
            Some(text) => outln!("▸ {stage}: FAILED after {}\n{text}\n", elapsed(time)),
        }
        let succeeded = failure.is_none();
        self.outcomes.push(Outcome { stage, time, failure });
        succeeded
    }

    /// Prints the times of all stages, some of which ran beside each other, and fails if a stage failed.
    fn finish(self, total: Duration) -> Result<()> {
        heading("times");
        for outcome in &self.outcomes {
            let mark = if outcome.failure.is_some() { "✗" } else { "✓" };
            outln!("  {mark} {:<12} {:>8}", outcome.stage, elapsed(outcome.time));
        }
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

/// A stage that runs beside others, with its output only in a log.
struct Background<'scope> {
    stage: &'static str,
    log: &'static str,
    thread: ScopedJoinHandle<'scope, (Result<()>, Duration)>,
}

impl<'scope> Background<'scope> {
    fn start(
        scope: &'scope Scope<'scope, '_>,
        stage: &'static str,
        log: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'scope,
    ) -> Self {
        let timed = || {
            let started = Instant::now();
            (work(), started.elapsed())
        };
        Self { stage, log, thread: scope.spawn(timed) }
    }

    /// Waits for its end, and prints its output.
    fn finish(self, run: &mut Run, paths: &Paths) -> bool {
        heading(&format!("stage: {}, beside the others", self.stage));
        let panicked = |_| (Err(anyhow!("the thread of the stage panicked")), Duration::ZERO);
        let (outcome, time) = self.thread.join().unwrap_or_else(panicked);
        // Whether it succeeded counts, even if its log cannot be read.
        if let Err(error) = File::open(paths.test_log(self.log)).and_then(|mut log| print_all(&mut log)) {
            errln!("cannot print the log {}: {error}", self.log);
        }
        run.end(self.stage, time, outcome)
    }
}

/// Runs the stages. With `filter` only end-to-end tests run whose names contain it, and with `oldest_kubernetes` only those on simulated
/// nodes.
pub(super) fn run(paths: &Paths, filter: Option<&str>, oldest_kubernetes: bool) -> Result<()> {
    let started = Instant::now();
    lifecycle::remove_leftover(paths)?;
    let nodes = if oldest_kubernetes { Nodes::Kwok(Kubernetes::Oldest) } else { lifecycle::choose_nodes(NODES) };
    let devices = DevicesBefore::list()?;
    let mut run = Run::default();
    if run.stage("build", || lifecycle::build(paths, Purpose::Test, Extent::Chart, nodes)) {
        thread::scope(|scope| {
            let is_whole = filter.is_none() && !oldest_kubernetes;
            // The plan's tests take as long as all other tests without a cluster together, and later stages often wait.
            let plan = is_whole.then(|| Background::start(scope, "plan tests", PLAN_LOG, || plan_tests(paths)));
            if is_whole {
                run.stage("unit tests", || unit_tests(paths));
            }
            test_in_clusters(&mut run, paths, nodes, filter);
            if let Some(plan) = plan {
                plan.finish(&mut run, paths);
            }
        });
    }
    begin_cleanup();
    run.stage("down", || {
        lifecycle::down(paths)?;
        devices.ensure_nothing_left(paths)
    });
    run.finish(started.elapsed())
}

/// Starts the clusters and runs the tests that need one: those on real nodes and, beside them in a cluster of their own, those on simulated
/// nodes.
fn test_in_clusters(run: &mut Run, paths: &Paths, nodes: Nodes, filter: Option<&str>) {
    if !run.stage("cluster up", || lifecycle::start(paths, Purpose::Test, Extent::Chart, nodes).map(drop)) {
        return;
    }
    let succeeded = thread::scope(|scope| {
        let fleet = nodes
            .is_real()
            .then(|| Background::start(scope, "fleet tests", FLEET_LOG, || fleet_tests(&Paths::simulated(), filter)));
        let tested = run.stage("e2e tests", || e2e_tests(paths, nodes, filter));
        fleet.is_none_or(|fleet| fleet.finish(run, paths)) && tested
    });
    // Only all other tests together use all permissions.
    let succeeded = succeeded && (filter.is_some() || run.stage("permissions", || permissions(paths, nodes)));
    if !succeeded && !interrupted() {
        let text = diagnosis(paths, lifecycle::real_nodes(paths));
        outln!("{text}");
        if let Err(error) = fs::write(paths.logs().join("diagnosis.txt"), text) {
            errln!("cannot keep the diagnosis: {error}");
        }
    }
}

/// Runs all tests that need no cluster, except the plan's.
fn unit_tests(paths: &Paths) -> Result<()> {
    let names = cargo::test_targets(&paths.root, |package| ![END_TO_END, PLAN].contains(&package))?;
    cargo_test(paths, &Tests { log: "unit-tests", kinds: &["--lib", "--bins"], names: &names, ..Tests::default() })
}

/// Runs the tests of the plan beside the other stages.
fn plan_tests(paths: &Paths) -> Result<()> {
    let names = cargo::test_targets(&paths.root, |package| package == PLAN)?;
    cargo_test(paths, &Tests { log: PLAN_LOG, names: &names, quiet: true, idle: true, ..Tests::default() })
}

/// Runs the end-to-end tests in the running cluster; without real nodes, only those on simulated nodes.
fn e2e_tests(paths: &Paths, nodes: Nodes, filter: Option<&str>) -> Result<()> {
    let mut tests = cargo::test_targets(&paths.root, |package| package == END_TO_END)?;
    tests.retain(|name| if nodes.is_real() { ![PERMISSIONS, SIMULATED].contains(&&**name) } else { name == SIMULATED });
    // Every test waits for the nodes that it needs, so all of them can start at once.
    let mut args = vec!["--test-threads=200"];
    args.extend(filter);
    cargo_test(paths, &Tests { log: "e2e-tests", names: &tests, args: &args, ..Tests::default() })?;
    State::load(paths).map_or(Ok(()), |state| unanswered::ensure_all_known(paths, state.nodes.real()))
}

/// Runs the end-to-end tests on simulated nodes in a cluster of their own, which it starts.
fn fleet_tests(paths: &Paths, filter: Option<&str>) -> Result<()> {
    lifecycle::start(paths, Purpose::Test, Extent::Chart, Nodes::Kwok(Kubernetes::Newest))?;
    let args: Vec<&str> = filter.into_iter().collect();
    cargo_test(
        paths,
        &Tests { log: FLEET_LOG, names: &[SIMULATED.to_owned()], args: &args, quiet: true, ..Tests::default() },
    )
}

/// Runs the test that reads the requests of all other end-to-end tests.
fn permissions(paths: &Paths, nodes: Nodes) -> Result<()> {
    if !nodes.is_real() {
        return Ok(());
    }
    cargo_test(paths, &Tests { log: PERMISSIONS, names: &[PERMISSIONS.to_owned()], ..Tests::default() })
}

/// Prints what is left of a log.
fn print_all(log: &mut File) -> io::Result<()> {
    io::copy(log, &mut io::stdout())?;
    io::stdout().flush()
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
    /// Whether they run beside others, with their output only in the log.
    quiet: bool,
    /// Whether they use only the processor time that others leave.
    idle: bool,
}

/// Runs tests of the workspace, and keeps their output in a log. It always runs cargo for the whole workspace, so that every
/// dependency is built only once, with the same features.
fn cargo_test(paths: &Paths, tests: &Tests<'_>) -> Result<()> {
    let log = paths.test_log(tests.log);
    // Both streams, because cargo writes to standard error which program was ended by a signal.
    let output = create(&log)?;
    let cargo = if tests.idle { cargo::background_command } else { cargo::command };
    let mut command = cargo(&paths.root);
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(tests.kinds)
        .args(tests.names.iter().flat_map(|name| ["--test", name]))
        .arg("--")
        .args(tests.args)
        .stdout(output.try_clone()?)
        .stderr(output);
    let mut written = File::open(&log)?;
    // Forwards the output as it is written. A closed terminal is not an error.
    let mut forward = || {
        if !tests.quiet {
            drop(print_all(&mut written));
        }
    };
    let status = wait_for(&mut command, &mut forward)?;
    forward();
    if !status.success() {
        let failures = test_failures::summarize(&String::from_utf8_lossy(&fs::read(&log)?));
        bail!("cargo test failed ({status}); its complete output is in {}\n{}", log.display(), failures.join("\n"));
    }
    Ok(())
}
