//! The kernel's log, where the driver's XIDs are also while nobody asks NVML.
//!
//! ```text
//!  /dev/kmsg ──▶ KernelLog (reads on, counts) ──▶ health: judged as XIDs of NVML are
//!                   record ──▶ message
//! ```
//!
//! The log is of this boot only, and what the driver said before it was loaded last is over, so that it is left out. Within
//! that, the first reading brings what came before this process, and later ones what came since.

pub mod message;
pub mod record;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use nix::libc;
use tokio::{
    net::unix::pipe,
    task::yield_now,
    time::{Instant, sleep_until},
};

use self::{message::Message, record::Record};
use crate::health::{
    gpu::{Source, XidSeen},
    node::{Heard, Xids},
};

/// The kernel writes no longer record, and refuses a reader that has less room for one.
const LONGEST_RECORD: usize = 8192;
/// Records that are read in one go: a millisecond or less.
const BATCH: usize = 256;
/// Batches in a row. What a flood leaves unread is for the next time, or overwritten.
const BATCHES: usize = 256;
/// The pause between two readings, however fast the log grows.
const PACE: Duration = Duration::from_secs(1);
/// More GPUs times numbers than this are not told apart; there are some 150 numbers.
const MAX_KEPT: usize = 1024;

/// Reads the log on from where it was left.
#[derive(Debug, Default)]
pub struct KernelLog {
    /// Nothing where there is no log to read.
    tail: Option<Tail>,
    told: Told,
}

#[derive(Debug)]
struct Tail {
    file: File,
    /// Tells when there is more to read; nothing for a plain file, which always says so.
    wake: Option<pipe::Receiver>,
    buffer: Box<[u8; LONGEST_RECORD]>,
    /// How much of the buffer is a line that has no end yet.
    begun: usize,
    booted: Timestamp,
    /// Whether everything was read that was there at the beginning.
    is_current: bool,
    not_before: Instant,
}

/// What the log has told since it was last taken.
#[derive(Debug, Default)]
struct Told {
    loaded: Option<When>,
    /// By address, number, and whether it came lately.
    xids: BTreeMap<(String, u16, bool), Said>,
}

/// When something was logged.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before this process began, by the log's clock.
    Before(Timestamp),
    /// Since the last reading. The log's clock is not needed to tell that.
    Lately,
}

/// XIDs of one GPU and number: how many, when the last one came, and its text.
#[derive(Debug)]
struct Said {
    count: u64,
    when: When,
    text: String,
}

impl KernelLog {
    /// Begins at the oldest record. `booted` is the time from which on the log counts.
    ///
    /// # Errors
    /// When the file does not exist or cannot be read.
    ///
    /// # Panics
    /// Outside of a runtime, as all I/O of it.
    pub fn open(path: &Path, booted: Timestamp) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // Of what the receiver does with a pipe only the waiting is used, and that serves all that can be waited for.
        let wake = pipe::Receiver::from_file_unchecked(file.try_clone()?).ok();
        let buffer = Box::new([0; LONGEST_RECORD]);
        let not_before = Instant::now();
        let tail = Tail { file, wake, buffer, begun: 0, booted, is_current: false, not_before };
        Ok(Self { tail: Some(tail), told: Told::default() })
    }

    /// Waits until the log goes on, and reads that. Comes back no more often than once a second; never, where there is
    /// nothing to wait for. May be dropped half way.
    pub async fn news(&mut self) {
        let Some(Tail { wake: Some(wake), not_before, .. }) = &mut self.tail else {
            return std::future::pending().await;
        };
        sleep_until(*not_before).await;
        if wake.readable().await.is_err() {
            return std::future::pending().await;
        }
        *not_before = Instant::now() + PACE;
        self.read_all().await;
    }

    /// Reads to the end, but no longer than a while. May be dropped half way.
    pub async fn read_all(&mut self) {
        for _ in 0..BATCHES {
            if self.read() {
                return;
            }
            yield_now().await;
        }
    }

    /// Reads some records. Whether these were all.
    pub fn read(&mut self) -> bool {
        let Some(tail) = &mut self.tail else { return true };
        for _ in 0..BATCH {
            match tail.read(&mut self.told) {
                Ok(true) => {}
                Ok(false) => {
                    tail.is_current = true;
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the kernel's log any more");
                    self.tail = None;
                    return true;
                }
            }
        }
        false
    }

    /// Whether the log tells that the driver was loaded.
    #[must_use]
    pub fn tells_of_load(&self) -> bool {
        self.told.loaded.is_some()
    }

    /// What was told since the last call, as of now.
    #[must_use]
    pub fn take(&mut self, now: Timestamp) -> Heard {
        let Told { loaded, xids } = std::mem::take(&mut self.told);
        let mut heard = Heard { xids: Xids::new(), loaded: loaded.map(|when| when.at(now)) };
        for ((address, xid, _), Said { count, when, text }) in xids {
            let source = match when {
                When::Before(_) => Source::OldLog(when.at(now)),
                When::Lately => Source::Log(now),
            };
            heard.xids.entry(address).or_default().push(XidSeen { xid, count, source, said: text });
        }
        heard
    }
}

impl Tail {
    /// Reads once: a record from the kernel, some of them from a file. Whether there was anything.
    fn read(&mut self, told: &mut Told) -> io::Result<bool> {
        let room = &mut self.buffer[self.begun..];
        let read = match (self.file.read(room), &self.wake) {
            // Said to the receiver as well, so that it waits for more.
            (Err(error), Some(wake)) if error.kind() == io::ErrorKind::WouldBlock => wake.try_read(room),
            (read, _) => read,
        };
        match read {
            Ok(0) => return Ok(false),
            Ok(read) => self.begun += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // Records were overwritten before they were read; the next read goes on after them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        }
        self.lines(told);
        Ok(true)
    }

    /// Takes in the lines that are whole.
    fn lines(&mut self, told: &mut Told) {
        let text = &self.buffer[..self.begun];
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for record in text[..whole].split(|byte| *byte == b'\n').filter_map(Record::parse) {
            let when = if self.is_current { When::Lately } else { When::Before(self.time(record.at)) };
            if let Some(message) = Message::parse(record.message) {
                told.note(message, when);
            }
        }
        self.buffer.copy_within(whole..self.begun, 0);
        self.begun -= whole;
        // Longer than any record: no log, whatever it is.
        if self.begun == LONGEST_RECORD {
            self.begun = 0;
        }
    }

    fn time(&self, since_boot: Duration) -> Timestamp {
        self.booted.checked_add(since_boot).unwrap_or(Timestamp::MAX)
    }
}

impl Told {
    fn note(&mut self, message: Message, when: When) {
        match message {
            Message::Loaded => {
                self.loaded = Some(when);
                self.xids.clear();
            }
            Message::Xid { address, xid, said } => {
                let key = (address, xid, matches!(when, When::Lately));
                let before = self.xids.get(&key).map_or(0, |said| said.count);
                if before > 0 || self.xids.len() < MAX_KEPT {
                    self.xids.insert(key, Said { count: before.saturating_add(1), when, text: said });
                }
            }
        }
    }
}

impl When {
    /// The time, as exactly as the API writes it and not later than now.
    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Before(at) => Timestamp::from_second(at.as_second()).unwrap_or(at).min(now),
            Self::Lately => now,
        }
    }
}
