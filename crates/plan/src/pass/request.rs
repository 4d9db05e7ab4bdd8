//! The requests of a pass, and the answers to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::NodeName;

use crate::{
    carry::{Failure, LoopState},
    catalogue::Catalogue,
    output::write::Write,
    settings::Settings,
    time::Uptime,
    world::{GpuPods, GpuRequests, LogTails},
};

/// What a pass asks for. All requests that one step returns may be carried out at the same time.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read the ends of the logs of these validation pods. The answer is [`Answer::Logs`].
    ReadLogs(BTreeSet<String>),
    /// List the pods of these nodes, and find those that use a GPU. The answer is [`Answer::Pods`].
    ListPods(BTreeSet<NodeName>, GpuRequests),
    /// Make a write. The answer is [`Answer::Written`], possibly after [`Answer::Slow`].
    Write(Arc<Write>),
}

#[derive(Clone, Debug)]
pub enum Answer {
    /// The logs, or why they cannot be read.
    Logs(LogTails),
    /// The pods by node. A node whose pods could not be listed is missing, and begins no update in this pass.
    Pods(BTreeMap<NodeName, GpuPods>),
    /// A write has not been answered yet, and is no longer waited for by the writes that do not depend on it.
    Slow(Arc<Write>),
    Written(Arc<Write>, Result<(), Failure>),
}

/// What a pass uses of the loop around it.
#[derive(Debug)]
pub struct Around<'a> {
    pub settings: &'a Settings,
    /// The catalogue of accelerators.
    pub catalogue: &'a Catalogue,
    /// What earlier passes have left.
    pub carry: &'a mut LoopState,
    /// The current time.
    pub uptime: Uptime,
}
