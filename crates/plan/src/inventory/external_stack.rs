//! Coexistence: what of a node's GPU stack is somebody else's. It is left alone and told of; ours is not placed beside it.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    GpuNodeStatus,
    gpunode::Groups,
    keys,
    policy::{ForeignStack, PluginFlavor, Stage},
    reason::Reason,
    report::HostRuntime,
};

use crate::{
    note::Note,
    revision,
    world::{ForeignPart, ForeignPod, NodeFacts, World},
};

/// What of one node's GPU stack is somebody else's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    stages: BTreeMap<Stage, Theirs>,
    /// A DRA driver where there is a device plugin as well.
    rival: Option<String>,
    /// NVIDIA's runtimes that the host brings, as far as they are left alone.
    runtimes: Vec<HostRuntime>,
    take_over: bool,
}

/// A stage that is somebody else's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theirs {
    /// Their DaemonSet, or their pod where no DaemonSet stands for it, by namespace and name.
    pub set: String,
    /// Which of the two it is.
    kind: Kind,
    /// What gets it off the node, in words; `None` where it is gone already.
    way_off: Option<String>,
    /// Whether a DaemonSet of ours serves the node as well: it came first, and stays.
    beside_ours: bool,
    /// Whether it is a DRA driver, and the stage that of the device plugin which there is none of beside it.
    by_claims: bool,
}

/// By what a stage is known to be a third party's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    DaemonSet,
    Pod,
}

impl std::fmt::Display for Theirs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::DaemonSet => "DaemonSet",
            Kind::Pod => "pod",
        };
        write!(f, "{kind} {}", self.set)
    }
}

/// The stages that a pod with a driver keeps from this operator, where it has nothing on the node: who left the driver has
/// mostly left the rest of a stack.
const BESIDE_A_POD: [Stage; 3] = [Stage::Driver, Stage::Toolkit, Stage::DevicePlugin];

/// The stage that a name which is remembered stands for, and whether it is a DRA driver.
fn named(name: &str) -> Option<(Stage, bool)> {
    match name {
        keys::DRA_DRIVER => Some((Stage::DevicePlugin, true)),
        stage => Some((Stage::named(stage)?, false)),
    }
}

/// What the probe finds, and what the node goes by already: a file that is being rewritten says nothing for a moment.
fn runtimes(status: Option<&GpuNodeStatus>) -> Vec<HostRuntime> {
    let reported = status.and_then(|status| status.report.as_ref()).map_or(&[][..], |report| &report.runtimes);
    let known = status.and_then(|status| status.host_runtime.as_ref());
    let kept = known.filter(|known| reported.iter().all(|found| found.file != known.file));
    reported.iter().chain(kept).cloned().collect()
}

impl Foreign {
    /// What of a node's GPU stack is somebody else's. `have` is what the node has of ours; `status`, what is remembered of
    /// it: DaemonSets come and go while they are upgraded, and nothing of ours is to slip in between. `policy` says what is to
    /// become of it, and whose device plugin there is.
    #[must_use]
    pub fn of(
        world: &World,
        node: &NodeFacts,
        have: &Groups,
        status: Option<&GpuNodeStatus>,
        policy: (ForeignStack, Option<PluginFlavor>),
    ) -> Self {
        let take_over = policy.0 == ForeignStack::TakeOver;
        let runtimes = if take_over || have.toolkit.is_some() { Vec::new() } else { runtimes(status) };
        let mut foreign = Self { runtimes, take_over, ..Self::default() };
        let mut dra = None;
        for (name, set) in world.foreign_sets.iter().filter(|(_, set)| set.reaches(node)) {
            let theirs = |beside_ours, by_claims| Theirs {
                set: name.clone(),
                kind: Kind::DaemonSet,
                way_off: Some(set.way_off()),
                beside_ours,
                by_claims,
            };
            match set.part {
                ForeignPart::Dra => dra = Some(theirs(false, true)),
                ForeignPart::Stage(stage) => {
                    let beside_ours = revision::group(have, stage).is_some();
                    foreign.stages.insert(stage, theirs(beside_ours, false));
                }
            }
        }
        foreign.add_pod(world, node, have);
        if let Some(dra) = dra {
            let plugin = Stage::DevicePlugin;
            // The policy says that there is one, if nothing else does.
            let told_of = policy.1 == Some(PluginFlavor::External);
            if told_of || revision::group(have, plugin).is_some() || foreign.stages.contains_key(&plugin) {
                foreign.rival = Some(dra.set);
            } else {
                foreign.stages.insert(plugin, dra);
            }
        }
        let remembered = status.map(|status| &status.foreign).filter(|_| !take_over);
        for (name, set) in remembered.into_iter().flatten() {
            let stage = named(name).filter(|(stage, _)| revision::group(have, *stage).is_none());
            if let Some((stage, by_claims)) = stage {
                let gone =
                    || Theirs { set: set.clone(), kind: Kind::DaemonSet, way_off: None, beside_ours: false, by_claims };
                foreign.stages.entry(stage).or_insert_with(gone);
            }
        }
        foreign
    }

    /// A pod on the node that installs a driver, where no DaemonSet does: beside it nothing of ours begins.
    fn add_pod(&mut self, world: &World, node: &NodeFacts, have: &Groups) {
        let prefix = ForeignPod::prefix(&node.name);
        let first = world.foreign_pods.range(prefix.clone()..).next().filter(|(key, _)| key.starts_with(&prefix));
        let Some((_, pod)) = first.filter(|_| !self.stages.contains_key(&Stage::Driver)) else { return };
        // Where something of ours came first, it stays whole.
        let stages = if *have == Groups::default() { &BESIDE_A_POD[..] } else { &[Stage::Driver] };
        for stage in stages {
            self.stages.entry(*stage).or_insert_with(|| Theirs {
                set: format!("{}/{}", pod.namespace, pod.name),
                kind: Kind::Pod,
                way_off: Some(pod.way_off()),
                beside_ours: revision::group(have, *stage).is_some(),
                by_claims: false,
            });
        }
    }

    /// NVIDIA's runtimes that the host brings, where they are left alone: not where the policy takes over, and not where a
    /// toolkit of ours came first.
    #[must_use]
    pub fn runtimes(&self) -> &[HostRuntime] {
        &self.runtimes
    }

    /// Whose a stage is, if it is somebody else's.
    #[must_use]
    pub fn theirs(&self, stage: Stage) -> Option<&Theirs> {
        self.stages.get(&stage).filter(|theirs| !theirs.beside_ours)
    }

    /// Whose a stage is, by kind and name, while its owner serves the node.
    #[must_use]
    pub fn present(&self, stage: Stage) -> Option<String> {
        let theirs = self.theirs(stage).filter(|theirs| theirs.way_off.is_some())?;
        Some(theirs.to_string())
    }

    /// What is to be remembered of it.
    #[must_use]
    pub fn remembered(&self) -> BTreeMap<String, String> {
        let theirs = Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.theirs(stage)?)));
        // A DaemonSet comes back after an upgrade; a pod that is deleted does not.
        let theirs = theirs.filter(|(_, theirs)| theirs.kind == Kind::DaemonSet);
        let name = |stage: Stage, theirs: &Theirs| if theirs.by_claims { keys::DRA_DRIVER } else { stage.as_str() };
        theirs.map(|(stage, theirs)| (name(stage, theirs).to_owned(), theirs.set.clone())).collect()
    }

    /// What is to be said of it.
    pub fn notes(&self) -> impl Iterator<Item = Note> + use<'_> {
        let both = self.stages.iter().filter(|(_, theirs)| theirs.beside_ours).map(|(stage, theirs)| {
            let way_off = theirs.way_off.as_deref().unwrap_or_default();
            let message = format!(
                "{theirs} serves this node in addition to the {} of this operator, which was installed first and stays; {way_off}",
                stage.as_str()
            );
            Note::new(Reason::StackConflict, message)
        });
        let rival = self.rival.iter().map(|set| {
            let message = format!(
                "DaemonSet {set} is a DRA driver on this node: the DRA driver and the device plugin do not coordinate and may allocate the same GPU; keep one of them off the node"
            );
            Note::new(Reason::StackConflict, message)
        });
        both.chain(rival).chain(self.left_alone())
    }

    /// What is left alone, in one sentence.
    fn left_alone(&self) -> Option<Note> {
        let theirs: Vec<(Stage, &Theirs)> =
            Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.theirs(stage)?))).collect();
        let plugin_alone = theirs.iter().all(|(stage, _)| *stage == Stage::DevicePlugin);
        let reason = if plugin_alone { Reason::ForeignDevicePlugin } else { Reason::ForeignStack };
        let pod = theirs.iter().find(|(_, theirs)| theirs.kind == Kind::Pod).map(|(_, theirs)| {
            let way_off = theirs.way_off.as_deref().unwrap_or_default();
            format!(
                "{theirs} installs an NVIDIA driver on this node and belongs to no DaemonSet, so this operator installs nothing here; {way_off} to let this operator install the node's GPU stack"
            )
        });
        let of_sets = theirs.iter().filter(|(_, theirs)| theirs.kind == Kind::DaemonSet);
        let told = of_sets.map(|(stage, theirs)| match &theirs.way_off {
            Some(way_off) if self.take_over => {
                format!("this operator takes over the {} once {theirs} is gone from the node: {way_off}", stage.as_str())
            }
            Some(_) => format!("the {} is managed by {theirs} and left unchanged", stage.as_str()),
            None => format!(
                "the {} was managed by DaemonSet {}, which is gone; write foreignStack: TakeOver to let this operator install its own",
                stage.as_str(),
                theirs.set
            ),
        });
        let message = told.chain(pod).collect::<Vec<_>>().join("; ");
        (!theirs.is_empty()).then(|| Note::new(reason, message))
    }

    /// That the node's GPUs are handed out by claims, in a sentence, while they are.
    #[must_use]
    pub fn by_claims(&self) -> Option<String> {
        let theirs = self.theirs(Stage::DevicePlugin).filter(|theirs| theirs.by_claims)?;
        let (set, way_off) = (&theirs.set, theirs.way_off.as_ref()?);
        Some(if self.take_over {
            format!(
                "the device plugin is installed once DRA driver {set} is gone from the node: {way_off}; until then the DRA driver allocates the node's GPUs, and the node does not count towards readiness"
            )
        } else {
            format!(
                "DRA driver {set} allocates the node's GPUs by resource claims, so no device plugin is installed and the node has no {}; the node does not count towards readiness",
                keys::GPU_RESOURCE
            )
        })
    }

    /// What is to be said of a stage that is somebody else's, where the node waits for it.
    #[must_use]
    pub fn awaited(&self, stage: Stage) -> Option<String> {
        let theirs = self.theirs(stage)?;
        Some(match &theirs.way_off {
            Some(way_off) if theirs.kind == Kind::Pod => format!(
                "{theirs} installs an NVIDIA driver on this node, so this operator installs nothing here; {way_off} to let this operator install the node's GPU stack"
            ),
            Some(_) => format!("{theirs} serves this node; check the DaemonSet's pod on this node"),
            None => format!(
                "DaemonSet {} served this node and is gone; restore the DaemonSet, or write foreignStack: TakeOver to let this operator install its own",
                theirs.set
            ),
        })
    }
}
