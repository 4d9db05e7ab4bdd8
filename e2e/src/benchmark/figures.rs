//! The figures of one fleet, what they may be at most, and those of NVIDIA's operator.

use std::time::Duration;

use crate::{audit::Requests, operator_process::Usage};

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// What was measured on one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    pub gpus: u32,
    /// DaemonSets of the operator's, once all was ready.
    pub daemon_sets: usize,
    /// From the operator's start until it was quiet, before there was a policy.
    pub start: Requests,
    /// From apply until quiet.
    pub install: Requests,
    /// Time from apply until every node bore its model's label.
    pub labelled: Duration,
    /// Time from apply until the policy said that every node was ready.
    pub ready: Duration,
    /// Time from apply until the last thing happened.
    pub quiet: Duration,
    /// While nothing happened.
    pub settled: Requests,
    /// How long that was watched.
    pub settled_for: Duration,
    /// One node more, whose pods run at once.
    pub join: Requests,
    /// One node more, whose pods take two minutes each.
    pub slow_join: Requests,
    /// What the operator's process has cost, from its start through all of this.
    pub usage: Usage,
}

/// What NVIDIA's operator was measured to take on such a fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nvidia {
    pub nodes: u32,
    writes: u32,
    settled_reads: u32,
    join: u32,
    peak_mib: u32,
    cpu_seconds: f64,
}

/// On three sizes, with 49 labels a node and pods that are up at once.
pub(super) const NVIDIA: [Nvidia; 3] = [
    Nvidia { nodes: 100, writes: 2_991, settled_reads: 202, join: 479, peak_mib: 102, cpu_seconds: 3.2 },
    Nvidia { nodes: 1_000, writes: 12_756, settled_reads: 1_873, join: 2_282, peak_mib: 460, cpu_seconds: 28.0 },
    Nvidia { nodes: 3_000, writes: 28_972, settled_reads: 6_573, join: 6_189, peak_mib: 1_322, cpu_seconds: 103.0 },
];

/// One figure of any fleet.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub what: &'static str,
    pub decimals: usize,
    pub ours: fn(&Figures) -> f64,
    /// What it may be at most.
    pub limit: Option<fn(&Figures) -> f64>,
    pub theirs: Option<fn(&Nvidia) -> f64>,
}

/// Writes that installing takes.
pub(super) const WRITES: Row = Row {
    what: "writes from apply until quiet",
    decimals: 0,
    ours: |of| count(&of.install.writes()),
    limit: Some(|of| f64::from(of.nodes) * 4.0 + float(of.daemon_sets) + 20.0),
    theirs: Some(|of| of.writes.into()),
};
/// Requests that one more node takes.
pub(super) const JOIN: Row = Row {
    what: "requests when one node joins",
    decimals: 0,
    ours: |of| count(&of.join),
    limit: Some(|_| 10.0),
    theirs: Some(|of| of.join.into()),
};
/// The most memory.
pub(super) const PEAK: Row = Row {
    what: "peak resident memory, MiB",
    decimals: 1,
    ours: |of| bytes(of.usage.peak_resident) / MIB,
    limit: Some(|of| 32.0 + (f64::from(of.nodes) * 8.0 + f64::from(of.gpus)) / KIB),
    theirs: Some(|of| of.peak_mib.into()),
};

/// All figures, in the order of the table.
pub(super) const ROWS: [Row; 14] = [
    WRITES,
    Row {
        what: "the same, per node",
        decimals: 1,
        ours: |of| count(&of.install.writes()) / f64::from(of.nodes),
        limit: None,
        theirs: Some(|of| f64::from(of.writes) / f64::from(of.nodes)),
    },
    own("reads from apply until quiet", |of| count(&of.install.only(|request| !request.is_write()))),
    Row { limit: Some(|_| 0.0), ..own("refused requests, of all phases", refused) },
    own("writes at the operator's start, before a policy", |of| count(&of.start.writes())),
    Row {
        what: "requests while settled",
        decimals: 0,
        ours: |of| count(&of.settled),
        limit: Some(|_| 0.0),
        theirs: Some(|of| of.settled_reads.into()),
    },
    JOIN,
    Row { limit: JOIN.limit, ..own("requests when its pods take two minutes each", |of| count(&of.slow_join)) },
    PEAK,
    Row { decimals: 1, ..own("resident memory at the end, MiB", |of| bytes(of.usage.resident) / MIB) },
    Row {
        theirs: Some(|of| of.cpu_seconds),
        ..seconds("processor time of all phases, s", |of| of.usage.cpu.as_secs_f64())
    },
    seconds("time until all are labelled, s", |of| of.labelled.as_secs_f64()),
    seconds("time until the policy is Ready, s", |of| of.ready.as_secs_f64()),
    seconds("time until quiet, s", |of| of.quiet.as_secs_f64()),
];

const fn own(what: &'static str, ours: fn(&Figures) -> f64) -> Row {
    Row { what, decimals: 0, ours, limit: None, theirs: None }
}

const fn seconds(what: &'static str, ours: fn(&Figures) -> f64) -> Row {
    Row { decimals: 1, ..own(what, ours) }
}

/// A sentence for every figure that is above its limit.
pub(super) fn missed(figures: &Figures) -> Vec<String> {
    let sentence = |row: &Row| {
        let (ours, limit) = ((row.ours)(figures), row.limit?(figures));
        (ours > limit).then(|| {
            let [ours, limit] = [ours, limit].map(|value| number(value, row.decimals));
            format!("{}: {ours}, and not at most {limit}", row.what)
        })
    };
    ROWS.iter().filter_map(sentence).collect()
}

/// A number with its thousands apart, as in `12,756`.
pub(super) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

fn refused(of: &Figures) -> f64 {
    [&of.start, &of.install, &of.settled, &of.join, &of.slow_join].map(|phase| count(&phase.refused())).iter().sum()
}

fn count(requests: &Requests) -> f64 {
    float(requests.count())
}

fn float(count: usize) -> f64 {
    // Exact up to four thousand million.
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// In whole KiB, as the kernel counts.
fn bytes(bytes: u64) -> f64 {
    u32::try_from(bytes / 1024).map_or(f64::INFINITY, f64::from) * KIB
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::audit::Request;

    /// As many writes per node as are told.
    pub fn figures(nodes: u32, writes_per_node: u32) -> Figures {
        let write = Request { verb: "patch".into(), resource: "nodes".into(), name: "n".into(), code: 200 };
        let writes = usize::try_from(nodes * writes_per_node).unwrap();
        Figures {
            nodes,
            gpus: nodes * 8,
            daemon_sets: 5,
            install: Requests(vec![write.clone(); writes]),
            join: Requests(vec![write; 10]),
            settled_for: Duration::from_mins(2),
            usage: Usage { resident: 30 << 20, peak_resident: 33 << 20, cpu: Duration::from_millis(1_250) },
            ..Figures::default()
        }
    }

    #[test]
    fn what_is_above_its_limit_is_told_with_both_numbers() {
        assert_eq!(missed(&figures(100, 4)), [""; 0]);
        assert_eq!(missed(&figures(100, 5)), ["writes from apply until quiet: 500, and not at most 425"]);
        let mut large = figures(1_000, 4);
        large.usage.peak_resident = 49 << 20;
        assert_eq!(missed(&large), ["peak resident memory, MiB: 49.0, and not at most 47.6"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(1_322.04, 1), "1,322.0");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
    }
}
