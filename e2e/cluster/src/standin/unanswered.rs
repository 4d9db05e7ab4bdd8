//! Calls of NVML functions that the stand-in library does not answer. Each function must be on a list, with the reason why the
//! real library does not answer either, so that no test passes because of an unanswered call.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::Path,
};

use anyhow::{Context, Result, bail};
use harness::{
    files::{append, ignore_missing},
    node_id::NodeId,
    paths::Paths,
};

/// The socket in the stand-in's folder to which the library reports unanswered calls.
const SOCKET: &str = "unanswered.sock";
/// The file in the stand-in's folder with the reported calls, one per line.
const RECORD: &str = "unanswered";
/// The maximum length of a report: more than a symbol and a device id.
const MAX_LENGTH: usize = 256;
/// The list: a symbol, the device id or `*`, and the reason.
const KNOWN: &str = include_str!("../../../standins/unanswered.txt");

/// Records what the library reports; returns only on errors.
pub fn record(standin: &Path) -> io::Result<()> {
    let place = standin.join(SOCKET);
    fs::remove_file(&place).or_else(ignore_missing)?;
    let socket = UnixDatagram::bind(place)?;
    let mut recorded = BTreeSet::new();
    let mut buffer = [0; MAX_LENGTH];
    loop {
        let length = socket.recv(&mut buffer)?;
        let line = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
        if recorded.insert(line.clone()) {
            let mut record = append(&standin.join(RECORD)).map_err(io::Error::other)?;
            writeln!(record, "{line}")?;
        }
    }
}

/// Fails if a call that is not on the list was recorded on any of the nodes.
pub fn ensure_all_known(paths: &Paths, nodes: impl Iterator<Item = NodeId>) -> Result<()> {
    let mut unknown = BTreeSet::new();
    for node in nodes {
        let record = paths.standin(node).join(RECORD);
        let text = match fs::read_to_string(&record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text.with_context(|| record.display().to_string())?,
        };
        unknown.extend(text.lines().filter(|line| !is_known(KNOWN, line)).map(str::to_owned));
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let unknown: Vec<String> = unknown.into_iter().collect();
    bail!(
        "programs called functions that the stand-in NVML does not answer: {}; add them to e2e/standins/nvml, or list them in \
         e2e/standins/unanswered.txt with the reason why the real library does not answer",
        unknown.join(", ")
    )
}

fn is_known(list: &str, call: &str) -> bool {
    let Some((symbol, device)) = call.split_once(' ') else { return false };
    let entries =
        list.lines().filter(|line| !line.starts_with('#')).map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
    let mut known = entries.filter(|entry| entry.len() == 3);
    known.any(|entry| entry[0] == symbol && (entry[1] == "*" || entry[1] == device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_if_its_device_is_listed_with_a_reason() {
        let list = "# symbol device why\nnvmlA 1eb8 a T4 has none\nnvmlB * needs a display\nnvmlC 1eb8\n";
        for (call, known) in [
            ("nvmlA 1eb8", true),
            ("nvmlA 2330", false),
            ("nvmlB 2330", true),
            ("nvmlC 1eb8", false),
            ("nvmlD -", false),
        ] {
            assert_eq!(is_known(list, call), known, "{call}");
        }
    }

    #[test]
    fn each_reported_call_is_recorded_once() {
        let folder = tempfile::tempdir().unwrap();
        let standin = folder.path().to_owned();
        std::thread::spawn(move || record(&standin));
        let client = UnixDatagram::unbound().unwrap();
        let until = |done: &dyn Fn() -> bool| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !done() {
                assert!(std::time::Instant::now() < end);
                std::thread::yield_now();
            }
        };
        for line in ["nvmlA 1eb8", "nvmlA 1eb8", "nvmlB -"] {
            until(&|| client.send_to(line.as_bytes(), folder.path().join(SOCKET)).is_ok());
        }
        let recorded = || fs::read_to_string(folder.path().join(RECORD)).unwrap_or_default();
        until(&|| recorded().contains("nvmlB -"));
        assert_eq!(recorded(), "nvmlA 1eb8\nnvmlB -\n");
    }
}
