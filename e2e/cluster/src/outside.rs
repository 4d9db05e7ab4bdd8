//! Operator and probe as processes of this machine, outside the cluster: what the clean-up knows of them.

use std::time::Duration;

use anyhow::Result;
use harness::{paths::Paths, records::records};

/// The record and log of the operator.
pub const OPERATOR: &str = "operator-process";
/// The record and log of a second operator, which is there to follow the first one.
pub const STANDBY: &str = "standby-process";
/// The record and log of the probe.
pub const PROBE: &str = "probe-process";

/// The time that they have to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Stops one of them, if it is running.
pub fn stop(paths: &Paths, name: &str) -> Result<()> {
    records(paths).stop(name, GRACE)
}
