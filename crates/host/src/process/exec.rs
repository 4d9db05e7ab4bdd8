//! Replaces this process by another program.

use std::{io, os::unix::process::CommandExt, process::Command};

/// The other program could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {0}")]
pub struct ExecError(String, #[source] io::Error);

/// Becomes another program. Returns only on failure.
pub fn become_program(command: &[String]) -> ExecError {
    let Some((program, args)) = command.split_first() else {
        return ExecError(String::new(), io::ErrorKind::InvalidInput.into());
    };
    ExecError(program.clone(), Command::new(program).args(args).exec())
}
