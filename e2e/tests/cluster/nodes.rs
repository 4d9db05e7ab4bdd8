//! Who has which of the cluster's nodes: each test one of its own, or all of them where it touches what all have in common.
//!
//! All tests begin at once and wait for their turn here. The long ones come first and those that need all nodes last, so that
//! no node is idle while others are waited for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use e2e::{Cluster, Containerd, RealNode};

static STATE: Mutex<State> = Mutex::new(State { taken: Vec::new(), waiting: 0, long: 0 });
static CHANGED: Condvar = Condvar::new();

struct State {
    /// The nodes that tests have, by their names.
    taken: Vec<String>,
    /// How many tests wait for one node.
    waiting: usize,
    /// How many of them are long.
    long: usize,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes that no other test has until this is dropped.
pub struct Hold {
    pub nodes: Vec<RealNode>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        state().taken.retain(|name| self.nodes.iter().all(|node| node.name() != *name));
        CHANGED.notify_all();
    }
}

/// What a test needs of its node.
#[derive(Clone)]
pub struct Need {
    /// Its container runtime.
    pub containerd: Containerd,
    /// Whether the test takes more than a minute.
    pub long: bool,
    /// A node that will not do, by its name.
    pub besides: Option<String>,
}

impl Default for Need {
    fn default() -> Self {
        Self { containerd: Containerd::Two, long: false, besides: None }
    }
}

impl Need {
    fn is_met_by(&self, node: &RealNode) -> bool {
        node.containerd() == self.containerd && self.besides.as_ref() != Some(&node.name())
    }
}

/// Waits for one node.
pub fn one(cluster: &Cluster, need: &Need) -> Hold {
    let mut state = state();
    state.waiting += 1;
    state.long += usize::from(need.long);
    loop {
        // No long test waits for a node with another runtime.
        let turn = need.long || state.long == 0 || need.containerd != Containerd::Two;
        let is_free = |node: &RealNode| need.is_met_by(node) && !state.taken.contains(&node.name());
        if turn && let Some(node) = cluster.nodes().into_iter().find(is_free) {
            state.waiting -= 1;
            state.long -= usize::from(need.long);
            return take(&mut state, vec![node]);
        }
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits for all of them.
pub fn all(cluster: &Cluster) -> Hold {
    let is_early = |state: &mut State| state.waiting > 0 || !state.taken.is_empty();
    let mut state = CHANGED.wait_while(state(), is_early).unwrap_or_else(PoisonError::into_inner);
    take(&mut state, cluster.nodes())
}

fn take(state: &mut State, nodes: Vec<RealNode>) -> Hold {
    state.taken.extend(nodes.iter().map(RealNode::name));
    // Those that wait for all of them, or for the long ones, may wait for this one.
    CHANGED.notify_all();
    Hold { nodes }
}
