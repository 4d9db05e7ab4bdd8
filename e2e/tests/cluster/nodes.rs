//! Assignment of the cluster's nodes to tests: one or two to each test, or all to a test of cluster-wide behaviour.
//!
//! All tests start at the same time and wait here for their nodes. Long tests come first and tests that need all nodes
//! last, so that no node is idle while tests wait for others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use cluster::node::{real_node::RealNode, runtime::Runtime};
use cluster_client::handle::Cluster;

static STATE: Mutex<State> = Mutex::new(State { taken: Vec::new(), clean: Vec::new(), waiting: 0, long: 0 });
static CHANGED: Condvar = Condvar::new();

struct State {
    /// The names of the nodes that are assigned to tests.
    taken: Vec<String>,
    /// The names of those that no test has used since their clean start.
    clean: Vec<String>,
    /// The number of tests that wait for one node.
    waiting: usize,
    /// The number of long tests among them.
    long: usize,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether no test has used a node since its clean start.
pub fn is_clean(node: &RealNode) -> bool {
    state().clean.contains(&node.name())
}

/// Records a node's clean start, or that a test uses it.
pub fn set_clean(node: &RealNode, is_clean: bool) {
    let (clean, name) = (&mut state().clean, node.name());
    clean.retain(|clean| *clean != name);
    clean.extend(is_clean.then_some(name));
}

/// Nodes that are assigned to a test until this is dropped.
pub struct Hold {
    pub nodes: Vec<RealNode>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        state().taken.retain(|name| self.nodes.iter().all(|node| node.name() != *name));
        CHANGED.notify_all();
    }
}

/// The requirements of a test on its nodes.
#[derive(Clone)]
pub struct Need {
    /// Their number.
    pub nodes: usize,
    /// Their container runtime.
    pub runtime: Runtime,
    /// Whether the test takes more than a minute.
    pub long: bool,
    /// The name of a node that the test cannot use.
    pub except: Option<String>,
}

impl Default for Need {
    fn default() -> Self {
        Self { nodes: 1, runtime: Runtime::Containerd2, long: false, except: None }
    }
}

impl Need {
    fn is_met_by(&self, node: &RealNode) -> bool {
        node.runtime() == self.runtime && self.except.as_ref() != Some(&node.name())
    }
}

/// Waits for the nodes of one test.
pub fn some(cluster: &Cluster, need: &Need) -> Hold {
    let mut state = state();
    state.waiting += 1;
    state.long += usize::from(need.long);
    loop {
        // No long test waits for a node with another runtime.
        let turn = need.long || state.long == 0 || need.runtime != Runtime::Containerd2;
        let is_free = |node: &RealNode| need.is_met_by(node) && !state.taken.contains(&node.name());
        let nodes: Vec<_> = cluster.nodes().into_iter().filter(is_free).take(need.nodes).collect();
        if turn && nodes.len() == need.nodes {
            state.waiting -= 1;
            state.long -= usize::from(need.long);
            return take(&mut state, nodes);
        }
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits for all nodes.
pub fn all(cluster: &Cluster) -> Hold {
    let is_early = |state: &mut State| state.waiting > 0 || !state.taken.is_empty();
    let mut state = CHANGED.wait_while(state(), is_early).unwrap_or_else(PoisonError::into_inner);
    take(&mut state, cluster.nodes())
}

fn take(state: &mut State, nodes: Vec<RealNode>) -> Hold {
    state.taken.extend(nodes.iter().map(RealNode::name));
    // Tests that wait for all nodes, or for long tests, may wait for this one.
    CHANGED.notify_all();
    Hold { nodes }
}
