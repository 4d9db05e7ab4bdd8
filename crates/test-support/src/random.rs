//! The configuration of all random tests.

use proptest::{prelude::*, test_runner::RngSeed};

/// The environment variable with the seed.
const SEED: &str = "PROPTEST_RNG_SEED";
const CASES: &str = "PROPTEST_CASES";

/// The seed of runs without [`SEED`].
const DEFAULT_SEED: u64 = 20;

/// Returns a configuration with this number of cases, unless the environment sets another. No case is stored and replayed: one that
/// must never fail again becomes a test.
pub fn config(cases: u32) -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let is_set = |name| std::env::var_os(name).is_some();
    let cases = if is_set(CASES) { from_environment.cases } else { cases };
    let rng_seed = if is_set(SEED) { from_environment.rng_seed } else { RngSeed::Fixed(DEFAULT_SEED) };
    if let RngSeed::Fixed(seed) = rng_seed {
        println!(
            "Again: {SEED}={seed} {CASES}={cases} cargo test, or with all of the plan: cargo xtask simulate --first {seed} --seeds 1 --cases {cases}"
        );
    }
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..from_environment }
}
