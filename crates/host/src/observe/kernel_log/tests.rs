use std::{fs, io::Write, path::PathBuf, pin::pin, task::Poll};

use futures::poll;
use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;

use super::*;

const GPU: &str = "0000:01:00.0";

/// A file in place of the log, and its writer.
struct Written {
    _directory: TempDir,
    path: PathBuf,
    writer: File,
}

impl Written {
    /// A plain file.
    fn file() -> Self {
        Self::with(|path| File::create(path).unwrap())
    }

    /// A pipe, which can be waited for like the kernel log.
    fn pipe() -> Self {
        Self::with(|path| {
            mkfifo(path, Mode::S_IRWXU).unwrap();
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        })
    }

    fn with(make: impl FnOnce(&Path) -> File) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kmsg");
        let writer = make(&path);
        Self { _directory: directory, path, writer }
    }

    fn append(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).unwrap();
    }

    fn open(&self) -> KernelLog {
        KernelLog::open(&self.path, at(1000)).unwrap()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn record(second: u64, message: &str) -> String {
    format!("4,77,{},-;NVRM: {message}\n SUBSYSTEM=pci\n", second * 1_000_000 + 999_999)
}

fn xid(second: u64, number: u16) -> String {
    record(second, &format!("Xid (PCI:0000:01:00): {number}, logged at {second}"))
}

/// What was taken of the one GPU: number, count, source and text of each.
fn taken(log: &mut KernelLog) -> Vec<(u16, u64, XidSource, String)> {
    let mut heard = log.take(at(5000));
    assert!(heard.xids.keys().all(|address| address == GPU), "{heard:?}");
    let seen = heard.xids.remove(GPU).unwrap_or_default();
    seen.into_iter().map(|seen| (seen.xid, seen.count, seen.source, seen.message)).collect()
}

#[tokio::test]
async fn entries_from_before_the_start_are_old_and_later_ones_are_new() {
    for mut written in [Written::file(), Written::pipe()] {
        written.append(&(xid(1, 48) + &xid(2, 79) + "6,78,3000000,-;eth0: link up\n" + &xid(4, 48)));
        let mut log = written.open();
        log.read_all().await;
        let old = |second: i64| XidSource::EarlierKernelLog(at(1000 + second));
        // In the order of the last one of each number.
        let expected = [(79, 1, old(2), "logged at 2".to_owned()), (48, 2, old(4), "logged at 4".to_owned())];
        assert_eq!(taken(&mut log), expected);
        written.append(&xid(9, 48));
        log.read_all().await;
        assert_eq!(taken(&mut log), [(48, 1, XidSource::KernelLog(at(5000)), "logged at 9".to_owned())]);
        log.read_all().await;
        assert_eq!(taken(&mut log), []);
    }
}

#[tokio::test]
async fn old_entries_that_were_not_taken_stay_old() {
    let mut written = Written::file();
    written.append(&xid(1, 48));
    let mut log = written.open();
    log.read_all().await;
    written.append(&xid(2, 48));
    log.read_all().await;
    let sources: Vec<_> = taken(&mut log).into_iter().map(|(_, count, source, _)| (count, source)).collect();
    assert_eq!(sources, [(1, XidSource::EarlierKernelLog(at(1001))), (1, XidSource::KernelLog(at(5000)))]);
}

#[tokio::test]
async fn no_log_time_is_later_than_now() {
    let mut written = Written::file();
    written.append(&(xid(100_000, 48) + "4,77,18446744073709551615,-;NVRM: Xid (PCI:0000:01:00): 79, x\n"));
    let mut log = written.open();
    log.read_all().await;
    let sources: Vec<_> = taken(&mut log).into_iter().map(|(_, _, source, _)| source).collect();
    assert_eq!(sources, [XidSource::EarlierKernelLog(at(5000)); 2]);
}

#[tokio::test]
async fn entries_from_before_the_driver_was_loaded_are_dropped() {
    let mut written = Written::file();
    written.append(&(xid(1, 48) + &record(2, "loading NVIDIA UNIX x86_64 Kernel Module  470.256.02") + &xid(3, 79)));
    let mut log = written.open();
    assert!(!log.driver_was_loaded());
    log.read_all().await;
    assert!(log.driver_was_loaded());
    let heard = log.take(at(5000));
    assert_eq!(heard.driver_loaded, Some(at(1002)));
    assert_eq!(heard.xids[GPU].iter().map(|seen| seen.xid).collect::<Vec<_>>(), [79]);
    assert!(!log.driver_was_loaded());
}

#[tokio::test]
async fn fatal_errors_of_switches_are_taken_apart_from_xids() {
    let mut written = Written::file();
    let sxid = |second: u64, rest: &str| {
        format!("3,77,{},-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {rest}\n", second * 1_000_000)
    };
    written.append(
        &(sxid(1, "23001, Fatal, Link 12 Always Fatal") + &sxid(2, "20009, Non-fatal, Link 28 RX Short Error Rate")),
    );
    written.append(
        &(record(3, "loading NVIDIA UNIX x86_64 Kernel Module  580.173.02")
            + &sxid(4, "23001, Fatal, Link 13 Always Fatal")),
    );
    let mut log = written.open();
    log.read_all().await;
    let events = log.take(at(5000));
    assert!(events.xids.is_empty(), "{events:?}");
    let expected = XidCount {
        xid: 23001,
        count: 2,
        source: XidSource::EarlierKernelLog(at(1004)),
        message: "Fatal, Link 13 Always Fatal".into(),
    };
    assert_eq!(events.switch_errors, XidsByGpu::from([("0000:c3:00.0".to_owned(), vec![expected])]));
}

#[tokio::test]
async fn sentences_of_the_last_attempt_stay_until_a_load() {
    let starting = "6,77,1,-;nvidia-nvlink: Nvlink Core is being initialized, major device number 237\n";
    let bound = "GPU 0000:01:00.0 is already bound to NovaCore.";
    let mut written = Written::file();
    // Of another attempt, and of another program.
    written.append(&(record(1, "failed to map registers!") + starting + &record(2, bound)));
    written.append("14,78,2000000,-;NVRM: written by a program\n");
    let mut log = written.open();
    log.read_all().await;
    assert_eq!(log.load_errors(), [format!("NVRM: {bound}")]);
    // Once more, with an XID, which is none of them.
    written.append(&(starting.to_owned() + &record(3, bound) + &xid(4, 79) + &record(4, "No NVIDIA devices probed.")));
    log.read_all().await;
    let both = [format!("NVRM: {bound}"), "NVRM: No NVIDIA devices probed.".to_owned()];
    assert_eq!(log.load_errors(), both);
    assert_eq!(taken(&mut log).len(), 1);
    assert_eq!(log.load_errors(), both, "reported until the next attempt");
    written.append(&(starting.to_owned() + &record(5, "loading NVIDIA UNIX x86_64 Kernel Module  580.173.02")));
    written.append(&record(6, "Persistence mode is deprecated and will be removed in a future release."));
    log.read_all().await;
    assert_eq!(log.load_errors(), [""; 0]);
    // A module that the kernel rejects logs nothing itself.
    written.append("5,79,7000000,-;Loading of unsigned module is rejected\n");
    log.read_all().await;
    assert_eq!(log.load_errors(), ["Loading of unsigned module is rejected"]);
    for number in 0..20 {
        written.append(&(format!("4,80,8000000,-;nvidia: Unknown symbol s{number} (err -2)\n")));
    }
    log.read_all().await;
    assert_eq!(log.load_errors().len(), MAX_SENTENCES);
}

#[tokio::test]
async fn a_line_that_arrives_in_parts_is_one_line() {
    let mut written = Written::pipe();
    let mut log = written.open();
    log.read_all().await;
    let line = xid(1, 79);
    let (one, other) = line.split_at(20);
    written.append(one);
    log.read_all().await;
    assert_eq!(taken(&mut log), []);
    written.append(other);
    log.read_all().await;
    assert_eq!(taken(&mut log).len(), 1);
}

#[tokio::test]
async fn new_records_wake_the_reader_at_most_once_a_second() {
    let mut written = Written::pipe();
    let mut log = written.open();
    log.read_all().await;
    written.append(&xid(1, 79));
    log.wait_for_records().await;
    assert_eq!(taken(&mut log).len(), 1);
    written.append(&xid(2, 79));
    log.tail.as_ref().unwrap().wake.as_ref().unwrap().readable().await.unwrap();
    assert_eq!(poll!(pin!(log.wait_for_records())), Poll::Pending);
    assert_eq!(taken(&mut log), []);
    log.wait_for_records().await;
    assert_eq!(taken(&mut log).len(), 1);
    // There is nothing more to read.
    log.tail.as_mut().unwrap().not_before = Instant::now();
    assert_eq!(poll!(pin!(log.wait_for_records())), Poll::Pending);
}

#[tokio::test]
async fn a_flood_is_counted_within_bounded_memory() {
    let mut written = Written::file();
    let line = "4,77,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=a\n";
    written.append(&line.repeat(100_000));
    for bus in 0..=255 {
        let lines = (0..8).map(|number| format!("4,77,1,-;NVRM: Xid (PCI:0000:{bus:02x}:00): {number}, x\n"));
        written.append(&lines.collect::<Vec<_>>().concat());
    }
    // Content that is not a log.
    written.append(&"x".repeat(100_000));
    written.append("\n");
    written.append(line);
    let mut log = written.open();
    log.read_all().await;
    let heard = log.take(at(5000));
    assert_eq!(heard.xids.values().flatten().count(), MAX_KEPT);
    let count = heard.xids[GPU].iter().find(|seen| seen.xid == 31).unwrap().count;
    assert_eq!(count, 100_001);
}

#[tokio::test]
async fn a_missing_log_is_an_error_and_an_unreadable_one_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    assert!(KernelLog::open(&directory.path().join("kmsg"), at(0)).is_err());
    fs::create_dir(directory.path().join("directory")).unwrap();
    let mut log = KernelLog::open(&directory.path().join("directory"), at(0)).unwrap();
    assert!(log.read());
    assert!(log.tail.is_none());
    assert!(log.read());
    assert_eq!(poll!(pin!(log.wait_for_records())), Poll::Pending);
    assert_eq!(log.take(at(0)), NewEvents::default());
}
