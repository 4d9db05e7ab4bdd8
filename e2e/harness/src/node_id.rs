//! The numbers of the local cluster's nodes, and the names and addresses that follow from them.

use std::net::Ipv4Addr;

/// The largest number of real nodes.
pub const MAX_NODES: u8 = 9;
/// The number of real nodes unless an option sets it.
pub const DEFAULT_NODES: u8 = 3;

/// A node, real or simulated by kwok, by its number. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(u8);

impl NodeId {
    /// The node of a cluster that has only one.
    pub const FIRST: Self = Self(1);

    /// Returns the first `count` nodes.
    pub fn first(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(Self)
    }

    /// Returns the node whose number a hidden command was given.
    pub const fn numbered(number: u8) -> Self {
        Self(number)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns the name of its Node object.
    pub fn name(self) -> String {
        format!("gpu-node-{}", self.0)
    }

    /// Returns its address in the cluster's network.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 1, 10 + self.0)
    }

    /// Returns the network of its pods.
    pub fn pods(self) -> String {
        format!("198.19.{}.0/24", self.0)
    }
}
