//! The figures of one fleet, their limits, and the figures of NVIDIA's operator.

use std::time::Duration;

use cluster_client::audit::Requests;
use harness::usage::Usage;

use super::row::{Row, float, memory_limit, mib, requests};

/// The figures of one fleet.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub nodes: u32,
    pub gpus: u32,
    /// The number of the operator's DaemonSets once all nodes were ready.
    pub daemon_sets: usize,
    /// The requests from the operator's start until it was quiet, before there was a policy.
    pub start: Requests,
    /// The requests from applying the policy until quiet.
    pub install: Requests,
    /// The time from applying the policy until every node had the label of its GPU model.
    pub labelled: Duration,
    /// The time from applying the policy until it reported all nodes as ready.
    pub ready: Duration,
    /// The time from applying the policy until the last change.
    pub quiet: Duration,
    /// The requests while nothing changed.
    pub settled: Requests,
    /// The duration of that phase.
    pub settled_for: Duration,
    /// The requests when a node joined whose pods started at once.
    pub join: Requests,
    /// The requests when a node joined whose pods took two minutes each.
    pub slow_join: Requests,
    /// Memory and processor time of the operator's process, from its start through all phases.
    pub usage: Usage,
}

/// The figures of NVIDIA's operator on such a fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nvidia {
    pub nodes: u32,
    writes: u32,
    settled_reads: u32,
    join: u32,
    peak_mib: u32,
    cpu_seconds: f64,
}

/// The measured sizes, with 49 labels per node and pods that start at once.
pub(super) const NVIDIA: [Nvidia; 3] = [
    Nvidia { nodes: 100, writes: 2_991, settled_reads: 202, join: 479, peak_mib: 102, cpu_seconds: 3.2 },
    Nvidia { nodes: 1_000, writes: 12_756, settled_reads: 1_873, join: 2_282, peak_mib: 460, cpu_seconds: 28.0 },
    Nvidia { nodes: 3_000, writes: 28_972, settled_reads: 6_573, join: 6_189, peak_mib: 1_322, cpu_seconds: 103.0 },
];

/// One figure, and the same figure of NVIDIA's operator if it was measured.
pub(super) struct Compared {
    pub row: Row<Figures>,
    pub nvidia: Option<fn(&Nvidia) -> f64>,
}

/// The writes during the installation.
pub(super) const WRITES: Compared = compared(
    Row::count("writes from apply until quiet", |of: &Figures| requests(&of.install.writes()))
        .at_most(|of| f64::from(of.nodes) * 4.0 + float(of.daemon_sets) + 20.0),
    |of| of.writes.into(),
);
/// The requests when one node joins.
pub(super) const JOIN: Compared =
    compared(Row::count("requests when one node joins", |of: &Figures| requests(&of.join)).at_most(|_| 10.0), |of| {
        of.join.into()
    });
/// The peak of memory.
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
    own(Row::count("rejected requests, of all phases", rejected).at_most(|_| 0.0)),
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
    Compared { row, nvidia: None }
}

const fn compared(row: Row<Figures>, nvidia: fn(&Nvidia) -> f64) -> Compared {
    Compared { row, nvidia: Some(nvidia) }
}

/// Returns a message for every figure above its limit.
pub(super) fn exceeded(figures: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|compared| compared.row.exceeded(figures)).collect()
}

fn rejected(of: &Figures) -> f64 {
    let phases = [&of.start, &of.install, &of.settled, &of.join, &of.slow_join];
    phases.map(|phase| requests(&phase.rejected())).iter().sum()
}

#[cfg(test)]
impl Figures {
    /// Returns figures of a fleet with this number of writes per node.
    pub fn example(nodes: u32, writes_per_node: u32) -> Self {
        let write = cluster_client::audit::Request {
            verb: "patch".into(),
            resource: "nodes".into(),
            name: "n".into(),
            code: 200,
        };
        let writes = usize::try_from(nodes * writes_per_node).unwrap();
        Self {
            nodes,
            gpus: nodes * 8,
            daemon_sets: 5,
            install: Requests(vec![write.clone(); writes]),
            join: Requests(vec![write; 10]),
            settled_for: Duration::from_mins(2),
            usage: Usage { resident: 30 << 20, peak_resident: 33 << 20, cpu: Duration::from_millis(1_250) },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_limit_is_reported_with_both_numbers() {
        assert_eq!(exceeded(&Figures::example(100, 4)), [""; 0]);
        assert_eq!(exceeded(&Figures::example(100, 5)), ["writes from apply until quiet: 500 (limit 425)"]);
        let mut large = Figures::example(1_000, 4);
        large.usage.peak_resident = 49 << 20;
        assert_eq!(exceeded(&large), ["peak resident memory, MiB: 49.0 (limit 47.6)"]);
    }
}
