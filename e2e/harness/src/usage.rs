//! Memory and processor time of processes, from `/proc`.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

use super::records::stat_fields;

/// Memory and processor time of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Resident memory now, in bytes.
    pub resident: u64,
    /// The peak of resident memory so far, in bytes.
    pub peak_resident: u64,
    /// Processor time so far, user and kernel together.
    pub cpu: Duration,
}

/// The mappings of a file in a process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedMemory {
    /// Address space, in bytes.
    pub size: u64,
    /// The resident part of it, in bytes.
    pub resident: u64,
}

impl Usage {
    /// Reads the usage of a running process.
    pub fn of(id: u32) -> Result<Self> {
        parse(&read(id, "status")?, &read(id, "stat")?).with_context(|| format!("reading /proc/{id}"))
    }

    /// Returns the same memory, and the processor time since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), ..self }
    }
}

/// Returns the running child processes of a process.
pub fn children(id: u32) -> Result<Vec<u32>> {
    let numbers = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that ends meanwhile is skipped.
    Ok(numbers.filter(|child| read(*child, "stat").is_ok_and(|stat| parent(&stat) == Some(id))).collect())
}

/// Returns the sum of all mappings of files whose path contains `name` in a process's memory.
pub fn mapped(id: u32, name: &str) -> Result<MappedMemory> {
    Ok(parse_smaps(&read(id, "smaps")?, name))
}

fn read(id: u32, file: &str) -> Result<String> {
    let path = Path::new("/proc").join(id.to_string()).join(file);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// Parses the contents of `/proc/PID/status` and `/proc/PID/stat`.
fn parse(status: &str, stat: &str) -> Option<Usage> {
    let bytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let milliseconds = cpu_ticks(stat)? * 1000 / u64::try_from(per_second).ok()?;
    Some(Usage { resident: bytes("VmRSS")?, peak_resident: bytes("VmHWM")?, cpu: Duration::from_millis(milliseconds) })
}

/// Returns the processor time of user and kernel together, in clock ticks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat_fields(stat)?.skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn parent(stat: &str) -> Option<u32> {
    stat_fields(stat)?.nth(1)?.parse().ok()
}

/// Parses `/proc/PID/smaps`: a line for each mapping, followed by a line for each of its fields.
fn parse_smaps(smaps: &str, name: &str) -> MappedMemory {
    let mut all = MappedMemory::default();
    let mut is_wanted = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(field) = words.next().and_then(|word| word.strip_suffix(':')) else {
            is_wanted = line.contains(name);
            continue;
        };
        let mut bytes = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default() * 1024;
        match field {
            "Size" if is_wanted => all.size += bytes(),
            "Rss" if is_wanted => all.resident += bytes(),
            _ => {}
        }
    }
    all
}
