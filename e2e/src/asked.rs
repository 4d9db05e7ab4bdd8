//! What programs have asked the stand-in NVML that it has no answer to. Each name must be on a list with the reason why the
//! real library answers as the stand-in does, so that no test passes because a question went unanswered.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::{lifecycle::missing_is_fine, paths::Paths, process::append, state::State};

/// Where the library tells of it, in the stand-in's folder.
const SOCKET: &str = "asked.sock";
/// What it has told, a line each.
const RECORD: &str = "asked";
/// Longer than a symbol and a device's id.
const MOST: usize = 256;
/// The list: a symbol, the device's id or `*`, and why.
const KNOWN: &str = include_str!("../standins/asked.txt");

/// Writes down what the library tells, for ever.
pub(crate) fn follow(standin: &Path) -> io::Result<()> {
    let place = standin.join(SOCKET);
    fs::remove_file(&place).or_else(missing_is_fine)?;
    let socket = UnixDatagram::bind(place)?;
    let mut told = BTreeSet::new();
    let mut buffer = [0; MOST];
    loop {
        let length = socket.recv(&mut buffer)?;
        let line = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
        if told.insert(line.clone()) {
            let mut record = append(&standin.join(RECORD)).map_err(io::Error::other)?;
            writeln!(record, "{line}")?;
        }
    }
}

/// Fails if anything was asked on a node that is not on the list.
pub(crate) fn all_is_known(paths: &Paths, state: &State) -> Result<()> {
    let mut unknown = BTreeSet::new();
    for node in state.nodes.real() {
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
        "the stand-in NVML was asked what it does not answer: {}; answer it in e2e/standins/nvml, or write in \
         e2e/standins/asked.txt why the real library does not",
        unknown.join(", ")
    )
}

fn is_known(list: &str, asked: &str) -> bool {
    let Some((symbol, device)) = asked.split_once(' ') else { return false };
    let entries =
        list.lines().filter(|line| !line.starts_with('#')).map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
    let mut known = entries.filter(|entry| entry.len() == 3);
    known.any(|entry| entry[0] == symbol && (entry[1] == "*" || entry[1] == device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_known_with_its_device_and_a_reason() {
        let list = "# symbol device why\nnvmlA 1eb8 a T4 has none\nnvmlB * needs a display\nnvmlC 1eb8\n";
        for (asked, known) in [
            ("nvmlA 1eb8", true),
            ("nvmlA 2330", false),
            ("nvmlB 2330", true),
            ("nvmlC 1eb8", false),
            ("nvmlD -", false),
        ] {
            assert_eq!(is_known(list, asked), known, "{asked}");
        }
    }

    #[test]
    fn what_the_library_tells_is_written_down_once() {
        let folder = tempfile::tempdir().unwrap();
        let standin = folder.path().to_owned();
        std::thread::spawn(move || follow(&standin));
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
        let record = || fs::read_to_string(folder.path().join(RECORD)).unwrap_or_default();
        until(&|| record().contains("nvmlB -"));
        assert_eq!(record(), "nvmlA 1eb8\nnvmlB -\n");
    }
}
