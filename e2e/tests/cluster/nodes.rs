//! Who has which of the cluster's nodes: each test one of its own, or all of them where it touches what all have in common.
//!
//! All tests begin at once and wait for their turn here. Those that need all nodes come last, so that no node is idle while
//! others are waited for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use e2e::{Cluster, Containerd, RealNode};

static STATE: Mutex<State> = Mutex::new(State { taken: Vec::new(), waiting: 0 });
static CHANGED: Condvar = Condvar::new();

struct State {
    /// The nodes that tests have, by their names.
    taken: Vec<String>,
    /// How many tests wait for one node.
    waiting: usize,
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

/// Waits for one node with this container runtime.
pub fn one(cluster: &Cluster, containerd: Containerd) -> Hold {
    let mut state = state();
    state.waiting += 1;
    loop {
        let fits = |node: &RealNode| node.containerd() == containerd && !state.taken.contains(&node.name());
        let free = cluster.nodes().into_iter().find(fits);
        if let Some(node) = free {
            state.waiting -= 1;
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
    // One that waits for all of them may wait for the last who waited for one.
    CHANGED.notify_all();
    Hold { nodes }
}
