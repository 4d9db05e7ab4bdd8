//! `cargo xtask up | down | demo | test`: see `cargo xtask --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::cli::main()
}
