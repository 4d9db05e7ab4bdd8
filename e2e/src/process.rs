//! Starting, recognising and ending processes. A process is recognised by its id and start time together, so that one
//! that has inherited the number of a process of ours is never touched.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        signal::{Signal, kill, killpg},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

/// Whether interrupts come here, and go on to the commands that run.
static CATCHING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static CLEANING: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and its kin ask the running command to stop and clean up, instead of ending it at once.
pub(crate) fn catch_interrupts() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Registered before this returns, so that no signal falls between.
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    CATCHING.store(true, Ordering::SeqCst);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                INTERRUPTED.store(true, Ordering::SeqCst);
                warn!("\n  ! interrupted: cleaning up, this takes a few seconds");
            }
        });
    });
    Ok(())
}

/// Whether someone asked to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst) && !CLEANING.load(Ordering::SeqCst)
}

/// From now on nothing is cut short by an interrupt: what runs now is the cleaning up.
pub(crate) fn begin_cleaning() {
    CLEANING.store(true, Ordering::SeqCst);
}

/// A pause that ends early, with an error, when someone asked to stop.
pub(crate) fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        if interrupted() {
            bail!("interrupted");
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left.min(Duration::from_millis(50)));
    }
}

/// Asks again and again until there is an answer. After `deadline` the error names `what` and the last thing seen.
pub(crate) fn poll<T>(
    what: &str,
    deadline: Duration,
    mut ask: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match ask()? {
            Ok(answer) => return Ok(answer),
            Err(state) if Instant::now() > end => {
                bail!("{what}: not within {} s; last seen: {state}", deadline.as_secs())
            }
            Err(_) => pause(Duration::from_millis(100))?,
        }
    }
}

/// Runs a command to its end. Where interrupts are caught it has a process group of its own, so that they reach it through
/// us only; elsewhere, as in a test, they end it with its parent.
pub(crate) fn wait_for(command: &mut Command, mut tick: impl FnMut()) -> Result<ExitStatus> {
    if CATCHING.load(Ordering::SeqCst) {
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
    let group = pid(child.id())?;
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

/// A command for cargo in the checkout, without what the cargo that runs xtask has told it of this package: build scripts
/// that look at it would run again, and all that stands on them be built again, whenever one is called by a person and then
/// the other.
pub(crate) fn cargo(checkout: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(checkout);
    let is_told = |name: &str| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix));
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_told(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs a command, with its output in `log`; when it fails, the end of that output becomes the error.
pub(crate) fn run_logged(command: &mut Command, log: &Path, tick: impl FnMut()) -> Result<()> {
    let file = create(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let status = wait_for(command, tick)?;
    if !status.success() {
        bail!("{} failed ({status}); the end of {}:\n{}", shown(command), log.display(), tail(log, 4_000));
    }
    Ok(())
}

/// Runs a command and returns what it printed; when it fails, what it wrote to standard error becomes the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let mut out = tempfile::tempfile()?;
    let mut err = tempfile::tempfile()?;
    command.stdout(out.try_clone()?).stderr(err.try_clone()?);
    let status = wait_for(command, || {})?;
    let mut text = String::new();
    let file = if status.success() { &mut out } else { &mut err };
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    text.push_str(&String::from_utf8_lossy(&bytes));
    if !status.success() {
        bail!("{} failed ({status}): {}", shown(command), text.trim());
    }
    Ok(text)
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}

/// The last `bytes` of a file, as text.
pub(crate) fn tail(path: &Path, bytes: usize) -> String {
    let content = fs::read(path).unwrap_or_default();
    let from = content.len().saturating_sub(bytes);
    String::from_utf8_lossy(&content[from..]).into_owned()
}

/// Makes a file, and the folders above it.
pub(crate) fn create(path: &Path) -> Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::create(path).with_context(|| format!("writing {}", path.display()))
}

/// A process that outlives the command that started it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Recorded {
    pid: u32,
    /// Clock ticks since boot, from /proc.
    start_time: u64,
}

/// The processes on record, one file for each under a folder.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Starts a process that outlives us and records it.
    pub(crate) fn spawn(&self, name: &str, command: &mut Command, log: &Path) -> Result<()> {
        let file = append(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        self.record(name, child.id())
    }

    /// Records a process that runs already.
    pub(crate) fn record(&self, name: &str, pid: u32) -> Result<()> {
        let start_time = start_time(pid).with_context(|| format!("{name} ended as soon as it was started"))?;
        fs::create_dir_all(&self.dir)?;
        let text = serde_json::to_string(&Recorded { pid, start_time })?;
        fs::write(self.file(name), text)?;
        Ok(())
    }

    /// The id of a recorded process that still runs.
    pub(crate) fn alive(&self, name: &str) -> Option<u32> {
        let recorded: Recorded = serde_json::from_slice(&fs::read(self.file(name)).ok()?).ok()?;
        (start_time(recorded.pid) == Some(recorded.start_time)).then_some(recorded.pid)
    }

    /// Ends a recorded process: asked first, and after `grace` by force. Without effect when it has ended already.
    pub(crate) fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        if let Some(running) = self.alive(name) {
            let target = pid(running)?;
            let started = Instant::now();
            if !grace.is_zero() {
                let _ = kill(target, Signal::SIGTERM);
            }
            while self.alive(name).is_some() {
                if started.elapsed() >= grace {
                    let _ = kill(target, Signal::SIGKILL);
                }
                if started.elapsed() > grace + Duration::from_secs(30) {
                    bail!("{name} (process {running}) does not end");
                }
                sleep(Duration::from_millis(20));
            }
        }
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The names on record.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().file_stem().map(|name| name.to_string_lossy().into_owned())).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }
}

/// When a process was started; nothing when it has ended, even if nobody has waited for it yet.
fn start_time(id: u32) -> Option<u64> {
    // An ended child of this very process stays in the table until it is waited for.
    let _ = waitpid(pid(id).ok()?, Some(WaitPidFlag::WNOHANG));
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    parse_start_time(&stat)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    let mut fields = after_name(stat)?;
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The fields of `/proc/PID/stat` from the process's state on. They follow the command's name, which is in parentheses and
/// may itself hold spaces and parentheses.
pub(crate) fn after_name(stat: &str) -> Option<std::str::SplitWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

/// Opens a file to write at its end.
pub(crate) fn append(path: &Path) -> Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::options().create(true).append(true).open(path).with_context(|| format!("writing {}", path.display()))
}

fn pid(id: u32) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(records: &Records, dir: &Path) {
        let mut command = Command::new("sleep");
        records.spawn("sleeper", command.arg("60"), &dir.join("log")).unwrap();
    }

    #[test]
    fn the_start_time_is_found_behind_any_command_name() {
        let rest = (1..=30).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_start_time(&format!("7 (a ) b (c) S {rest}")), Some(19));
        assert_eq!(parse_start_time(&format!("7 (gone) Z {rest}")), None);
    }

    #[test]
    fn a_recorded_process_ends_when_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("pids"));
        sleeper(&records, dir.path());
        assert!(records.alive("sleeper").is_some());
        records.stop("sleeper", Duration::from_secs(2)).unwrap();
        assert_eq!(records.alive("sleeper"), None);
        assert!(records.names().is_empty());
    }

    #[test]
    fn a_process_that_took_over_a_recorded_number_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("pids"));
        sleeper(&records, dir.path());
        let id = records.alive("sleeper").unwrap();
        let other = Recorded { pid: id, start_time: 1 };
        fs::write(records.file("sleeper"), serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(records.alive("sleeper"), None);
        records.stop("sleeper", Duration::ZERO).unwrap();
        assert!(Path::new(&format!("/proc/{id}")).exists());
        records.record("sleeper", id).unwrap();
        records.stop("sleeper", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_failed_command_says_what_it_wrote() {
        let error = output(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
    }
}
