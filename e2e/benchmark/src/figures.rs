//! The figures of one fleet, and their limits.

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

/// The writes during the installation.
pub(super) const WRITES: Row<Figures> =
    Row::count("writes from apply until quiet", |of: &Figures| requests(&of.install.writes()))
        .at_most(|of| f64::from(of.nodes) * 4.0 + float(of.daemon_sets) + 20.0);
pub(super) const JOIN: Row<Figures> =
    Row::count("requests when one node joins", |of: &Figures| requests(&of.join)).at_most(|_| 10.0);
pub(super) const PEAK: Row<Figures> =
    Row::measure("peak resident memory, MiB", |of: &Figures| mib(of.usage.peak_resident))
        .at_most(|of| memory_limit(of.nodes, of.gpus));

/// All figures, in the order of the table.
pub(super) const ROWS: [Row<Figures>; 14] = [
    WRITES,
    Row::measure("the same, per node", |of| requests(&of.install.writes()) / f64::from(of.nodes)),
    Row::count("reads from apply until quiet", |of| requests(&of.install.only(|request| !request.is_write()))),
    Row::count("rejected requests, of all phases", rejected).at_most(|_| 0.0),
    Row::count("writes at the operator's start, before a policy", |of| requests(&of.start.writes())),
    Row::count("requests while settled", |of: &Figures| requests(&of.settled)).at_most(|_| 0.0),
    JOIN,
    Row::count("requests when its pods take two minutes each", |of: &Figures| requests(&of.slow_join))
        .at_most(|_| 10.0),
    PEAK,
    Row::measure("resident memory at the end, MiB", |of| mib(of.usage.resident)),
    Row::measure("processor time of all phases, s", |of| of.usage.cpu.as_secs_f64()),
    Row::measure("time until all are labelled, s", |of| of.labelled.as_secs_f64()),
    Row::measure("time until the policy is Ready, s", |of| of.ready.as_secs_f64()),
    Row::measure("time until quiet, s", |of| of.quiet.as_secs_f64()),
];

/// Returns a message for every figure above its limit.
pub(super) fn exceeded(figures: &Figures) -> Vec<String> {
    ROWS.iter().filter_map(|row| row.exceeded(figures)).collect()
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
