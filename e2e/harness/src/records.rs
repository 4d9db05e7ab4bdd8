//! Records of processes that outlive the command that started them. A process is identified by its id and start time together,
//! so that a process that reuses the id of an ended one is never touched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    files::{append, ignore_missing},
    paths::Paths,
    process::spawn_detached,
};

/// A recorded process.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Recorded {
    pid: u32,
    /// Clock ticks since boot, from /proc.
    start_time: u64,
}

/// Records of processes: one file for each, in one folder.
#[derive(Clone, Debug)]
pub struct Records {
    dir: PathBuf,
}

/// Returns the records of the local cluster's processes.
pub fn records(paths: &Paths) -> Records {
    Records::new(paths.cluster().join("pids"))
}

impl Records {
    fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Starts a process that outlives this one, with its output appended to `log`, and records it.
    pub fn spawn(&self, name: &str, command: &mut Command, log: &Path) -> Result<()> {
        self.record(name, spawn_detached(command, append(log)?)?)
    }

    /// Records a process that is already running.
    pub fn record(&self, name: &str, pid: u32) -> Result<()> {
        let start_time = start_time(pid).with_context(|| format!("{name} exited right after its start"))?;
        fs::create_dir_all(&self.dir)?;
        let text = serde_json::to_string(&Recorded { pid, start_time })?;
        fs::write(self.file(name), text)?;
        Ok(())
    }

    /// Returns the id of a recorded process if it is still running.
    pub fn alive(&self, name: &str) -> Option<u32> {
        let recorded: Recorded = serde_json::from_slice(&fs::read(self.file(name)).ok()?).ok()?;
        (start_time(recorded.pid) == Some(recorded.start_time)).then_some(recorded.pid)
    }

    /// Stops a recorded process: with SIGTERM first, and with SIGKILL after `grace`. Has no effect if it has already ended.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<()> {
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
                    bail!("{name} (process {running}) is still running after SIGKILL");
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(fs::remove_file(self.file(name)).or_else(ignore_missing)?)
    }

    /// Suspends a recorded process (SIGSTOP), as a machine without processor time does.
    pub fn suspend(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGSTOP)
    }

    /// Lets a suspended process continue (SIGCONT).
    pub fn resume(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::SIGCONT)
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let running = self.alive(name).with_context(|| format!("{name} is not running"))?;
        kill(pid(running)?, signal).with_context(|| format!("{signal} for {name}"))
    }

    /// Returns the names of all recorded processes.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().file_stem().map(|name| name.to_string_lossy().into_owned())).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }
}

/// Returns when a process was started; `None` if it has ended, even if its parent has not waited for it yet.
fn start_time(id: u32) -> Option<u64> {
    // A child of this process stays in the process table after its end until it is waited for.
    let _ = waitpid(pid(id).ok()?, Some(WaitPidFlag::WNOHANG));
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    parse_start_time(&stat)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    let mut fields = stat_fields(stat)?;
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the fields of `/proc/PID/stat` from the process's state on. They follow the command's name, which is in
/// parentheses and may itself contain spaces and parentheses.
pub fn stat_fields(stat: &str) -> Option<std::str::SplitWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
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
    fn a_process_that_reuses_a_recorded_id_is_left_alone() {
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
}
