//! `simulate`: the plan's tests over random fleets and random orders of steps, with many seeds.

use std::{
    fs,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, bail};
use harness::{
    cargo,
    files::create,
    interrupts::pause,
    outln,
    paths::Paths,
    process::wait_for,
    progress::{Step, elapsed},
};

use super::test_failures;

/// The environment variables of the library that generates the tests' cases.
const SEED: &str = "PROPTEST_RNG_SEED";
const CASES: &str = "PROPTEST_CASES";

/// What to simulate.
#[derive(clap::Args)]
pub(super) struct Options {
    /// The number of seeds.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first seed; by default another one each time.
    #[arg(long)]
    first: Option<u64>,
    /// The number of cases of each test and seed.
    #[arg(long, default_value_t = 64)]
    cases: u32,
}

/// Runs the tests with each seed, and reports each seed on its own.
pub(super) fn run(paths: &Paths, options: &Options) -> Result<()> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let first = options.first.unwrap_or(since_1970.as_secs());
    let (cases, started) = (options.cases, Instant::now());
    let mut failed = Vec::new();
    for seed in first..first.saturating_add(options.seeds) {
        let step = Step::start(format!("seed {seed}"));
        let log = paths.log("simulate");
        let mut command = cargo::command(&paths.root);
        command.args([
            "test",
            "--profile=search",
            "--package=gpu-operator-plan",
            "--test=plan",
            "--",
            "properties",
            "schedules",
            "unreadable",
            "running_work",
        ]);
        command.env(SEED, seed.to_string()).env(CASES, cases.to_string());
        command.stdout(create(&log)?);
        let status = wait_for(&mut command, || step.tick(""))?;
        pause(Duration::ZERO)?;
        if status.success() {
            step.done();
        } else {
            outln!("{}", test_failures::summarize(&String::from_utf8_lossy(&fs::read(&log)?)).join("\n"));
            outln!("seed {seed} fails. Again: cargo xtask simulate --first {seed} --seeds 1 --cases {cases}\n");
            failed.push(seed);
        }
    }
    let took = elapsed(started.elapsed());
    if !failed.is_empty() {
        bail!(
            "{} of {} seeds fail with {cases} cases of each test, in {took}: {failed:?}",
            failed.len(),
            options.seeds
        );
    }
    outln!("{} seeds, {cases} cases of each test: no failure in {took}", options.seeds);
    Ok(())
}
