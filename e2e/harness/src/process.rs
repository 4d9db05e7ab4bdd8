//! Running commands to their end.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::{
    files::{create, tail},
    interrupts::{self, interrupted},
};

/// Runs a command to its end and calls `tick` meanwhile. If interrupts are caught, the command gets its own process group, so
/// that they reach it only through this process; otherwise, as in a test, they end it together with its parent.
pub fn wait_for(command: &mut Command, mut tick: impl FnMut()) -> Result<ExitStatus> {
    if interrupts::are_caught() {
        command.process_group(0);
    }
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupted() {
            end_group(&mut child)?;
            bail!("interrupted");
        }
        tick();
        sleep(Duration::from_millis(20));
    }
}

fn end_group(child: &mut Child) -> Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let started = Instant::now();
    let mut signal = Signal::SIGINT;
    while child.try_wait()?.is_none() {
        let _ = killpg(group, signal);
        if started.elapsed() > Duration::from_secs(5) {
            signal = Signal::SIGKILL;
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs a command with its output in `log`, and calls `tick` meanwhile. If the command fails, the error has the end of the
/// output.
pub fn run_logged(command: &mut Command, log: &Path, tick: impl FnMut()) -> Result<()> {
    let file = create(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let status = wait_for(command, tick)?;
    if !status.success() {
        bail!("{} failed ({status}); the end of {}:\n{}", command_line(command), log.display(), tail(log, 4_000));
    }
    Ok(())
}

/// Lets a program that is written in Go, and what it starts, collect garbage seldom. For programs whose heaps are small: two cores are then
/// the scarcer resource.
pub fn collect_seldom(command: &mut Command) -> &mut Command {
    command.env("GOGC", "400")
}

/// Starts a process that outlives this one, in a process group of its own and with its output in a file, and returns its id.
pub fn spawn_detached(command: &mut Command, output: File) -> Result<u32> {
    let command = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let child = command.process_group(0).spawn();
    Ok(child.with_context(|| format!("starting {}", command.get_program().display()))?.id())
}

/// Returns a command for a program that rereads its configuration on SIGHUP. If this process was started with SIGHUP ignored, as by nohup,
/// the program would inherit that.
pub fn reloadable(program: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(program);
    command
}

/// Runs a command and returns its standard output. If the command fails, the error has its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let mut out = tempfile::tempfile()?;
    let mut err = tempfile::tempfile()?;
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    let status = wait_for(command, || {})?;
    let file = if status.success() { &mut out } else { &mut err };
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if !status.success() {
        bail!("{} failed ({status}): {}", command_line(command), text.trim());
    }
    Ok(text)
}

/// Formats a command for messages, without the folder of its program.
fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}
