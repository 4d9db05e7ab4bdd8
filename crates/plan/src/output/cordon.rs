//! The cordon of this operator on a Node, with its record: only a cordon with the record is undone.

use crate::{
    output::{body::Body, write::Write},
    world::NodeFacts,
};

/// Returns the write that cordons a node or undoes this operator's cordon, if it is needed. A node that others have cordoned needs no
/// other cordon.
pub fn of(node: &NodeFacts, is_wanted: bool) -> Option<Write> {
    let differs = if is_wanted { !node.cordoned } else { node.own_cordon };
    differs.then(|| Write::new(&node.name, Body::Cordon(is_wanted)))
}
