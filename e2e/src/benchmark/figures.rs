//! The figures of one fleet, what they may be at most, and those of NVIDIA's operator.

use std::time::Duration;

use super::row::{Row, float, memory_limit, mib, requests};
use crate::{audit::Requests, usage::Usage};

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

/// One figure of any fleet, and the same of NVIDIA's operator where that was measured.
pub(super) struct Compared {
    pub row: Row<Figures>,
    pub theirs: Option<fn(&Nvidia) -> f64>,
}

/// Writes that installing takes.
pub(super) const WRITES: Compared = compared(
    Row::count("writes from apply until quiet", |of: &Figures| requests(&of.install.writes()))
        .at_most(|of| f64::from(of.nodes) * 4.0 + float(of.daemon_sets) + 20.0),
    |of| of.writes.into(),
);
/// Requests that one more node takes.
pub(super) const JOIN: Compared =
    compared(Row::count("requests when one node joins", |of: &Figures| requests(&of.join)).at_most(|_| 10.0), |of| {
        of.join.into()
    });
/// The most memory.
pub(super) const PEAK: Compared = compared(
    Row::measure("peak resident memory, MiB", |of: &Figures| mib(of.usage.peak_resident))
        .at_most(|of| memory_limit(of.nodes, of.gpus)),
    |of| of.peak_mib.into(),
);

/// All figures, in the order of the table.
pub(super) const ROWS: [Compared; 14] = [
    WRITES,
    compared(Row::measure("the same, per node", |of| requests(&of.install.writes()) / f64::from(of.nodes)), |of| {
        f64::from(of.writes) / f64::from(of.nodes)
    }),
    own(Row::count("reads from apply until quiet", |of| requests(&of.install.only(|request| !request.is_write())))),
    own(Row::count("refused requests, of all phases", refused).at_most(|_| 0.0)),
    own(Row::count("writes at the operator's start, before a policy", |of| requests(&of.start.writes()))),
    compared(Row::count("requests while settled", |of: &Figures| requests(&of.settled)).at_most(|_| 0.0), |of| {
        of.settled_reads.into()
    }),
    JOIN,
    own(Row::count("requests when its pods take two minutes each", |of: &Figures| requests(&of.slow_join))
        .at_most(|_| 10.0)),
    PEAK,
    own(Row::measure("resident memory at the end, MiB", |of| mib(of.usage.resident))),
    compared(Row::measure("processor time of all phases, s", |of| of.usage.cpu.as_secs_f64()), |of| of.cpu_seconds),
    own(Row::measure("time until all are labelled, s", |of| of.labelled.as_secs_f64())),
    own(Row::measure("time until the policy is Ready, s", |of| of.ready.as_secs_f64())),
    own(Row::measure("time until quiet, s", |of| of.quiet.as_secs_f64())),
];

const fn own(row: Row<Figures>) -> Compared {
    Compared { row, theirs: None }
}

const fn compared(row: Row<Figures>, theirs: fn(&Nvidia) -> f64) -> Compared {
    Compared { row, theirs: Some(theirs) }
}

/// A sentence for every figure that is above its limit.
pub(super) fn missed(figures: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|compared| compared.row.missed(figures)).collect()
}

fn refused(of: &Figures) -> f64 {
    [&of.start, &of.install, &of.settled, &of.join, &of.slow_join].map(|phase| requests(&phase.refused())).iter().sum()
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
}
