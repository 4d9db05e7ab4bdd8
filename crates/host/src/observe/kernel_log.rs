//! The kernel log, which contains the driver's XIDs even while NVML is not queried, the `SXids` of `NVSwitches`, which NVML
//! does not report, and the reason why a driver is not loaded.
//!
//! ```text
//!  /dev/kmsg ──▶ KernelLog (reads on, counts) ──▶ health: evaluated like XIDs of NVML
//!                   record ──▶ message
//! ```
//!
//! The log covers the current boot only, and entries from before the driver was last loaded are dropped. Within that,
//! the first reading returns what was logged before this process started, and later ones what is new.

pub mod record;

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
use record::Message;
use tokio::{
    net::unix::pipe,
    task::yield_now,
    time::{Instant, sleep_until},
};

use self::record::Record;

/// The longest record that the kernel writes; it rejects readers with a smaller buffer.
const LONGEST_RECORD: usize = 8192;
/// Records that are read without yielding: a millisecond or less.
const BATCH: usize = 256;
/// Batches in a row. What a flood leaves unread is read the next time, or overwritten.
const BATCHES: usize = 256;
/// The minimum pause between two readings, however fast the log grows.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The most combinations of GPU and number that are counted; there are some 150 numbers.
const MAX_KEPT: usize = 1024;
/// The most sentences that are kept of a driver that is not loaded: the cause comes first.
const MAX_SENTENCES: usize = 8;

#[derive(Debug, Default)]
pub struct KernelLog {
    /// `None` if there is no log to read.
    tail: Option<Tail>,
    pending: Pending,
}

#[derive(Debug)]
struct Tail {
    file: File,
    /// Signals that there is more to read; `None` for a plain file, which is always readable.
    wake: Option<pipe::Receiver>,
    buffer: Box<[u8; LONGEST_RECORD]>,
    /// How much of the buffer is an incomplete line.
    begun: usize,
    booted: Timestamp,
    /// Whether everything that existed when the log was opened has been read.
    is_current: bool,
    not_before: Instant,
}

/// What was logged since the last [`KernelLog::take`].
#[derive(Debug, Default)]
struct Pending {
    loaded: Option<When>,
    xids: Counts,
    /// The fatal ones, by the address of their switch.
    switch_errors: Counts,
    attempt: Attempt,
}

/// The last attempt to load the driver, which is not taken.
#[derive(Debug, Default)]
struct Attempt {
    succeeded: bool,
    sentences: Vec<String>,
}

/// Errors with the same number and place.
#[derive(Debug, Default)]
struct Counts {
    /// By address, number, and whether it was logged since the log was opened.
    entries: BTreeMap<(String, u16, bool), Entry>,
    counted: u64,
}

#[derive(Clone, Copy, Debug)]
enum When {
    /// Before this process started, by the log's clock.
    Before(Timestamp),
    /// Since the last reading, which does not require the log's clock.
    Lately,
}

/// Errors of one device and number: the count, and the time and text of the last one.
#[derive(Debug)]
struct Entry {
    count: u64,
    /// Its place among all errors of the kind: those of one second have the same time.
    place: u64,
    when: When,
    text: String,
}

impl KernelLog {
    /// Opens the log at the oldest record. `booted` is the time of the boot by the log's clock.
    ///
    /// # Panics
    /// Panics outside of an async runtime, as all its I/O does.
    pub fn open(path: &Path, booted: Timestamp) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // The receiver is used only for waiting, which works for every pollable file.
        let wake = pipe::Receiver::from_file_unchecked(file.try_clone()?).ok();
        let buffer = Box::new([0; LONGEST_RECORD]);
        let not_before = Instant::now();
        let tail = Tail { file, wake, buffer, begun: 0, booted, is_current: false, not_before };
        Ok(Self { tail: Some(tail), pending: Pending::default() })
    }

    /// Waits until the log has new records, and reads them. Returns at most once a second, and never if there is
    /// nothing to wait for. Can be dropped midway.
    pub async fn wait_for_records(&mut self) {
        let Some(Tail { wake: Some(wake), not_before, .. }) = &mut self.tail else {
            return std::future::pending().await;
        };
        sleep_until(*not_before).await;
        if wake.readable().await.is_err() {
            return std::future::pending().await;
        }
        *not_before = Instant::now() + MIN_PAUSE;
        self.read_all().await;
    }

    /// Reads to the end, for a limited number of records. Can be dropped midway.
    pub async fn read_all(&mut self) {
        for _ in 0..BATCHES {
            if self.read() {
                return;
            }
            yield_now().await;
        }
    }

    /// Reads some records. Returns whether the end was reached.
    pub fn read(&mut self) -> bool {
        let Some(tail) = &mut self.tail else { return true };
        for _ in 0..BATCH {
            match tail.read(&mut self.pending) {
                Ok(true) => {}
                Ok(false) => {
                    tail.is_current = true;
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the kernel log; giving up on it");
                    self.tail = None;
                    return true;
                }
            }
        }
        false
    }

    pub fn driver_was_loaded(&self) -> bool {
        self.pending.loaded.is_some()
    }

    /// Returns why the driver was not loaded when that was last attempted in this boot, in the order in which it was logged.
    pub fn load_errors(&self) -> &[String] {
        &self.pending.attempt.sentences
    }

    /// Returns what was logged since the last call; the XIDs of a GPU in the order in which they were logged last.
    pub fn take(&mut self, now: Timestamp) -> NewEvents {
        let attempt = std::mem::take(&mut self.pending.attempt);
        let kept = Pending { attempt, ..Pending::default() };
        let Pending { loaded, xids, switch_errors, .. } = std::mem::replace(&mut self.pending, kept);
        NewEvents {
            xids: xids.by_address(now),
            switch_errors: switch_errors.by_address(now),
            driver_loaded: loaded.map(|when| when.at(now)),
        }
    }
}

impl Tail {
    /// Reads once: a record from the kernel, or several from a file. Returns whether there was anything.
    fn read(&mut self, pending: &mut Pending) -> io::Result<bool> {
        let room = &mut self.buffer[self.begun..];
        let read = match (self.file.read(room), &self.wake) {
            // The receiver has to see this as well, so that it waits for more.
            (Err(error), Some(wake)) if error.kind() == io::ErrorKind::WouldBlock => wake.try_read(room),
            (read, _) => read,
        };
        match read {
            Ok(0) => return Ok(false),
            Ok(read) => self.begun += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // Records were overwritten before they were read; the next read continues after them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        }
        self.lines(pending);
        Ok(true)
    }

    /// Parses the complete lines.
    fn lines(&mut self, pending: &mut Pending) {
        let text = &self.buffer[..self.begun];
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for record in text[..whole].split(|byte| *byte == b'\n').filter_map(Record::parse) {
            let when = if self.is_current { When::Lately } else { When::Before(self.time(record.at)) };
            if let Some(message) = Message::parse(record.message) {
                pending.add(message, when);
            }
        }
        self.buffer.copy_within(whole..self.begun, 0);
        self.begun -= whole;
        // Longer than any record, so this is not a log.
        if self.begun == LONGEST_RECORD {
            self.begun = 0;
        }
    }

    fn time(&self, since_boot: Duration) -> Timestamp {
        self.booted.checked_add(since_boot).unwrap_or(Timestamp::MAX)
    }
}

impl Pending {
    fn add(&mut self, message: Message, when: When) {
        match message {
            Message::Starting => self.attempt = Attempt::default(),
            Message::OfDriver(_) if self.attempt.succeeded => {}
            Message::OfDriver(sentence) | Message::Rejected(sentence) => self.attempt.add(sentence),
            Message::Loaded => {
                self.attempt = Attempt { succeeded: true, sentences: Vec::new() };
                self.loaded = Some(when);
                // Those of switches stay: the module may start its switches before it logs that it is loaded.
                self.xids = Counts::default();
            }
            Message::Xid { address, xid, text } => self.xids.add(address, xid, text, when),
            Message::SwitchError { address, sxid, text } => self.switch_errors.add(address, sxid, text, when),
        }
    }
}

impl Attempt {
    fn add(&mut self, sentence: String) {
        if self.sentences.len() < MAX_SENTENCES && !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
    }
}

impl Counts {
    fn add(&mut self, address: String, number: u16, text: String, when: When) {
        let key = (address, number, matches!(when, When::Lately));
        let before = self.entries.get(&key).map_or(0, |entry| entry.count);
        if before > 0 || self.entries.len() < MAX_KEPT {
            self.counted += 1;
            self.entries.insert(key, Entry { count: before.saturating_add(1), place: self.counted, when, text });
        }
    }

    fn by_address(self, now: Timestamp) -> XidsByGpu {
        let mut entries: Vec<_> = self.entries.into_iter().collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.place);
        let mut found = XidsByGpu::new();
        for ((address, xid, _), Entry { count, when, text, .. }) in entries {
            let source = match when {
                When::Before(_) => XidSource::EarlierKernelLog(when.at(now)),
                When::Lately => XidSource::KernelLog(now),
            };
            found.entry(address).or_default().push(XidCount { xid, count, source, message: text });
        }
        found
    }
}

impl When {
    /// Returns the time in whole seconds, as the API stores it, and not later than now.
    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Before(at) => Timestamp::from_second(at.as_second()).unwrap_or(at).min(now),
            Self::Lately => now,
        }
    }
}

/// XIDs of one number that occurred since the previous look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidCount {
    pub xid: u16,
    pub count: u64,
    pub source: XidSource,
    /// The driver's message; may be empty.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    Nvml,
    /// Logged by the kernel since the previous look; the time of the last one.
    KernelLog(Timestamp),
    /// Logged by the kernel before this process started. The previous report may already include it.
    EarlierKernelLog(Timestamp),
}

/// XIDs by the PCI address of their GPU.
pub type XidsByGpu = BTreeMap<String, Vec<XidCount>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvents {
    /// New XIDs. If the driver was loaded in the meantime, only those after that.
    pub xids: XidsByGpu,
    /// New fatal `SXids`, by the address of the `NVSwitch`; also those from before the driver was loaded in this boot.
    pub switch_errors: XidsByGpu,
    /// When the driver was loaded, if the kernel log shows it.
    pub driver_loaded: Option<Timestamp>,
}

#[cfg(test)]
mod tests;
