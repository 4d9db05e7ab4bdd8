//! The requests of a pass, and the answers to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator_crd::NodeName;

use crate::{
    catalogue::Catalogue,
    loop_memory::{Failure, LoopState},
    output::write::Write,
    settings::Settings,
    time::Uptime,
    world::{GpuPods, GpuRequests, LogTails},
};

/// The requests of one step may be carried out at the same time.
#[derive(Clone, Debug)]
pub enum Request {
    /// Ends of the logs of these validation pods, answered by [`Answer::Logs`].
    ReadLogs(BTreeSet<String>),
    /// Lists GPU pods, answered by [`Answer::Pods`].
    ListPods(BTreeSet<NodeName>, GpuRequests),
    /// Answered by [`Answer::Written`], possibly after [`Answer::Slow`].
    Write(Arc<Write>),
}

#[derive(Clone, Debug)]
pub enum Answer {
    /// The logs, or why they cannot be read.
    Logs(LogTails),
    /// A node whose pods could not be listed is missing, and begins no update in this pass.
    Pods(BTreeMap<NodeName, GpuPods>),
    /// Not answered yet. Only the writes that depend on it wait longer.
    Slow(Arc<Write>),
    Written(Arc<Write>, Result<(), Failure>),
}

/// What a pass uses of the loop around it.
#[derive(Debug)]
pub struct PassContext<'a> {
    pub settings: &'a Settings,
    pub catalogue: &'a Catalogue,
    /// What earlier passes have left.
    pub carry: &'a mut LoopState,
    pub uptime: Uptime,
}
