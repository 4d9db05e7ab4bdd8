//! From bare nodes to a ready fleet.

use anyhow::{Context, Result, ensure};
use cluster::node::real_node::HostDriver;
use fleet::FleetNode;
use gpu_operator_crd::{Phase, reason::Reason};
use harness::wait::eventually;

use crate::support::{DEADLINE, Fixture, POLICY, QUIET, test};

/// Nodes of one kind, and their expected state.
fn kinds() -> Vec<(FleetNode, Option<(Phase, Reason)>)> {
    let node = |name: &str| FleetNode::with_gpus(name, "2330", 8);
    let ready = Some((Phase::Ready, Reason::AllGpusAllocatable));
    let mut loaded = node("host-driver-loaded");
    loaded.host_driver = HostDriver::Loaded("580.95.05".into());
    let mut installed = node("host-driver-installed");
    installed.host_driver = HostDriver::Installed("580.95.05".into());
    let mut missing = node("image-missing");
    missing.faults.missing_images = ["595.91.07".into()].into();
    let mut crashes = node("driver-crashes");
    crashes.faults.driver_crash = Some("no kernel headers".into());
    let mut few = node("publishes-few");
    few.faults.publishes = Some(3);
    vec![
        (node("h100"), ready),
        (FleetNode::with_gpus("k80", "102d", 4), ready),
        (loaded, ready),
        (installed, Some((Phase::Driver, Reason::DriverNotLoaded))),
        (missing, Some((Phase::Driver, Reason::DriverImageNotFound))),
        (crashes, Some((Phase::Driver, Reason::ContainerCrashed))),
        (few, Some((Phase::DevicePlugin, Reason::WaitingForAllocatable))),
        (FleetNode::without_gpus("cpu"), None),
    ]
}

async fn state_of(f: &Fixture, node: &str) -> Result<Option<(Phase, Reason)>> {
    let Some(gpu_node) = f.gpu_nodes().get_opt(node).await? else { return Ok(None) };
    let status = gpu_node.status.context("no status")?;
    Ok(Some((status.phase, status.reason().context("no reason")?)))
}

#[test]
fn every_node_reaches_the_state_that_its_hardware_allows() {
    test(|f| async move {
        let kinds = kinds();
        f.fleet.join(kinds.iter().map(|(node, _)| node.clone())).await?;
        f.apply("{}").await?;
        let check_all = async || {
            for (node, wanted) in &kinds {
                let found = state_of(&f, &node.name).await?;
                ensure!(found == *wanted, "{}: {found:?}, expected {wanted:?}", node.name);
            }
            Ok(())
        };
        eventually(DEADLINE, "the expected state of each node", check_all).await?;
        f.fleet.quiet(QUIET, DEADLINE).await?;
        check_all().await?;
        for (node, wanted) in &kinds {
            let gpus = f.fleet.observe(&node.name).context("no such node")?.gpus;
            ensure!((gpus == Some(8) || gpus == Some(4)) == wanted.is_some_and(|(phase, _)| phase == Phase::Ready));
        }
        kubectl_waits_and_selects(&f)?;
        Ok(f)
    });
}

/// Checks the commands that users and scripts wait and search with.
fn kubectl_waits_and_selects(f: &Fixture) -> Result<()> {
    f.cluster.kubectl(&["wait", "--for=condition=Ready", "gpunode/h100", "gpunode/k80", "--timeout=10s"])?;
    let waits = f.cluster.kubectl(&["wait", "--for=condition=Ready", "gpunode/driver-crashes", "--timeout=1s"]);
    ensure!(waits.is_err(), "a node without a driver is Ready");
    for (selector, wanted) in [
        ("status.reason=ContainerCrashed", &["driver-crashes"][..]),
        ("status.phase=DevicePlugin", &["publishes-few"]),
        ("spec.pool=nvidia-tesla-k80", &["k80"]),
    ] {
        let found = f.cluster.kubectl(&["get", "gn", "--field-selector", selector, "-o", "name"])?;
        let found: Vec<_> = found.lines().filter_map(|line| line.split('/').nth(1)).collect();
        ensure!(found == wanted, "{selector}: {found:?}");
    }
    let (headings, row) = (["NAME", "STATUS", "NODES"], [POLICY, "Stalled", "3/7"]);
    let shown = f.cluster.kubectl(&["get", "cgp", POLICY])?;
    for (line, wanted) in shown.lines().zip([headings, row]) {
        ensure!(line.split_whitespace().take(3).eq(wanted), "{shown}");
    }
    Ok(())
}
