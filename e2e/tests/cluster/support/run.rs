//! Running a test on the nodes that it needs.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use cluster::{
    diagnosis::HEADING,
    node::{real_node::RealNode, runtime::Runtime},
};
use cluster_client::handle::Cluster;

use super::Fixture;
use crate::nodes::{self, Hold, Need};

/// Runs a test on its own node from a clean start; a failure prints the state of the cluster. Other tests run on other
/// nodes at the same time.
pub fn test(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    test_with(|_| Ok(Need::default()), body);
}

/// Like [`test`], for tests that take more than a minute.
pub fn long_test(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    test_with(|_| Ok(Need { long: true, ..Need::default() }), body);
}

/// Like [`test`], on a node with containerd 1.7.
pub fn test_on_containerd_1(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    test_with(|_| Ok(Need { runtime: Runtime::Containerd1, ..Need::default() }), body);
}

/// Like [`test`], on a node with Docker.
pub fn test_on_docker(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    test_with(|_| Ok(Need { runtime: Runtime::Docker, ..Need::default() }), body);
}

/// Like [`test`], on a node without the operator's pod, which can be switched off while other tests run.
pub fn test_beside_the_operator(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    test_with(elsewhere, body);
}

/// Like [`long_test`], on two nodes without the operator's pod.
pub fn long_test_on_two_nodes(body: impl AsyncFnOnce(Fixture, Fixture) -> Result<()>) {
    let two = |cluster: &Cluster| Ok(Need { nodes: 2, long: true, ..elsewhere(cluster)? });
    run(taking(two), async |mut fixtures: Vec<Fixture>| {
        let second = used(fixtures.remove(1));
        body(used(fixtures.remove(0)), second).await
    });
}

/// Returns the need of a node without the operator's pod.
fn elsewhere(cluster: &Cluster) -> Result<Need> {
    install_chart(cluster)?;
    let operator = ["-l", "app.kubernetes.io/name=nodestack-gpu-operator", "-o=jsonpath={.items[*].spec.nodeName}"];
    let node = cluster.kubectl(&[&["get", "pods", "-n", cluster.namespace()], &operator[..]].concat())?;
    ensure!(!node.is_empty() && !node.contains(' '), "the operator runs on {node:?}");
    Ok(Need { except: Some(node), ..Need::default() })
}

fn test_with(need: impl FnOnce(&Cluster) -> Result<Need>, body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    run(taking(need), async |mut fixtures: Vec<Fixture>| body(used(fixtures.remove(0))).await);
}

fn taking(need: impl FnOnce(&Cluster) -> Result<Need>) -> impl FnOnce(&Cluster) -> Hold {
    |cluster| nodes::some(cluster, &need(cluster).expect("the requirements of the test"))
}

/// Runs a test on the node of the operator's pod while no other test runs: for tests that change or check cluster-wide
/// objects. The other nodes are clean.
pub fn alone(body: impl AsyncFnOnce(Fixture) -> Result<()>) {
    run(nodes::all, async |mut fixtures: Vec<Fixture>| {
        let operators = fixtures[0].operators_node().await?;
        let own = fixtures.iter().position(|fixture| fixture.host.name() == operators).context("no such node")?;
        body(used(fixtures.swap_remove(own))).await
    });
}

/// Runs a test on all nodes, while no other test runs.
pub fn everywhere(body: impl AsyncFnOnce(Vec<Fixture>) -> Result<()>) {
    run(nodes::all, async |fixtures: Vec<Fixture>| body(fixtures.into_iter().map(used).collect()).await);
}

/// Records that a test uses a node.
fn used(fixture: Fixture) -> Fixture {
    nodes::set_clean(&fixture.host, false);
    fixture
}

fn run(take: impl FnOnce(&Cluster) -> Hold, test: impl AsyncFnOnce(Vec<Fixture>) -> Result<()>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connected = runtime.block_on(Cluster::connect());
    let cluster = connected.expect("a cluster");
    // Waits until other tests have released the nodes.
    let hold = take(&cluster);
    let began = Instant::now();
    let outcome: Result<()> = runtime.block_on(async {
        install_chart(&cluster)?;
        // Each as a task of its own: commands of kubectl block their thread.
        let clean = hold.nodes.iter().cloned().map(|host| {
            let cluster = cluster.clone();
            tokio::spawn(async move {
                if nodes::is_clean(&host) {
                    return Ok(Fixture::on(&cluster, host));
                }
                let fixture = Fixture::clean(&cluster, host).await?;
                nodes::set_clean(&fixture.host, true);
                anyhow::Ok(fixture)
            })
        });
        let fixtures = futures::future::try_join_all(clean).await?;
        let fixtures = fixtures.into_iter().collect::<Result<_>>().context("a clean start")?;
        eprintln!("clean after {:.1} s", began.elapsed().as_secs_f32());
        test(fixtures).await
    });
    let names: Vec<String> = hold.nodes.iter().map(RealNode::name).collect();
    eprintln!("on {} for {:.1} s", names.join(", "), began.elapsed().as_secs_f32());
    if let Err(error) = outcome {
        panic!("{error:?}\n{HEADING}\n{}", cluster.diagnosis(&hold.nodes));
    }
}

/// Installs the chart if a failed test has left no chart or no running operator.
pub fn install_chart(cluster: &Cluster) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let available = "-o=jsonpath={.status.availableReplicas}";
    let found = cluster.kubectl(&["get", "deployment/nodestack-gpu-operator", "-n", cluster.namespace(), available]);
    if found.is_ok_and(|available| !available.is_empty()) {
        return Ok(());
    }
    cluster.install_chart()
}
