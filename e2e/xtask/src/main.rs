//! `cargo xtask up | down | demo | test`: see `cargo xtask --help`.

mod cli;
mod demo;
mod leftovers;
mod mutations;
mod release;
mod simulate;
mod test_failures;
mod test_run;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
