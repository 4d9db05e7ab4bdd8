//! Coexistence with third-party GPU stacks: they are reported and left unchanged, and nothing is installed beside them.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    GpuNodeStatus,
    gpunode::{RolloutStep, StageRevisions},
    keys,
    policy::{ForeignStack, PluginFlavor, Stage},
    reason::Reason,
    report::{HostRuntime, Report},
};

use crate::{
    clock::Clock,
    ground::foreign_stacks::ForeignStacks,
    inventory::KnownNode,
    note::{Note, listed},
    revision,
    settings::PLUGIN_GRACE,
    world::{ForeignPart, NodeFacts, Role},
};

/// The name of a device plugin that is known only by what it does, in a GpuNode's status.
const UNNAMED: &str = "a third-party device plugin";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalStack {
    stages: BTreeMap<Stage, ThirdParty>,
    /// The DRA driver on a node that also has a device plugin.
    rival: Option<String>,
    /// NVIDIA's runtimes that are configured on the host and left unchanged.
    runtimes: Vec<HostRuntime>,
    take_over: bool,
    /// Whether an unnamed device plugin counts as serving the node: its GPUs have been allocatable for [`PLUGIN_GRACE`].
    is_proven: bool,
    /// The DaemonSets of the node's device plugins, of GPUs or of anything else.
    device_plugins: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThirdParty {
    /// The DaemonSet, or else the pod, as namespace/name, or [`UNNAMED`].
    pub set: String,
    kind: Kind,
    /// How to remove it from the node; `None` if it is gone.
    removal_command: Option<String>,
    /// Whether a DaemonSet of this operator serves the node as well: it was installed first, and stays.
    beside_managed: bool,
    /// Whether it is a DRA driver, which takes the place of the device plugin's stage.
    by_claims: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    DaemonSet,
    Pod,
    /// A pod whose DaemonSet no longer reaches the node.
    EndingPod,
    /// A device plugin that neither this operator nor a known DaemonSet has placed.
    Unnamed,
    /// A DRA driver that is known only by its slices of GPUs.
    DraDriver,
}

impl ThirdParty {
    fn is_pod(&self) -> bool {
        matches!(self.kind, Kind::Pod | Kind::EndingPod)
    }
}

impl std::fmt::Display for ThirdParty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::DaemonSet => write!(f, "DaemonSet {}", self.set),
            Kind::Pod | Kind::EndingPod => write!(f, "pod {}", self.set),
            Kind::Unnamed => f.write_str(&self.set),
            Kind::DraDriver => write!(f, "DRA driver {}", self.set),
        }
    }
}

/// The stages that are not installed beside a third-party driver pod: such a pod is usually left over from a complete stack.
const BESIDE_A_POD: [Stage; 3] = [Stage::Driver, Stage::Toolkit, Stage::DevicePlugin];

/// Returns the stage of a name in a GpuNode's status, and whether the name means a DRA driver.
fn named(name: &str) -> Option<(Stage, bool)> {
    match name {
        keys::DRA_DRIVER => Some((Stage::DevicePlugin, true)),
        stage => Some((Stage::named(stage)?, false)),
    }
}

/// Returns the reported runtimes, and the one that the node already uses: a file that is being rewritten is incomplete for a moment.
fn runtimes(report: Option<&Report>, status: Option<&GpuNodeStatus>) -> Vec<HostRuntime> {
    let reported = report.map_or(&[][..], |report| &report.runtimes);
    let known = status.and_then(|status| status.host_runtime.as_ref());
    let kept = known.filter(|known| reported.iter().all(|found| found.file != known.file));
    reported.iter().chain(kept).cloned().collect()
}

/// Whether an update has taken the device plugin away.
fn is_without_plugin(known: &KnownNode<'_>) -> bool {
    let rollout = known.gpu_node.and_then(|gpu_node| gpu_node.spec.rollout.as_ref());
    rollout.is_some_and(|rollout| rollout.step != RolloutStep::Await && rollout.from.device_plugin.is_some())
}

/// Whether a node's slices are those of this operator's DRA driver, or what remains of them: kubelet deletes them half a minute after it.
fn has_own_claims(stacks: &ForeignStacks<'_>, known: &KnownNode<'_>) -> bool {
    let has = known.have.device_plugin.as_ref();
    let is_driver = has.is_some_and(|revision| revision::is_by_claims(&stacks.world.daemon_sets, revision));
    let recorded = known.gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    is_driver || recorded.is_some_and(|status| status.gpus.by_claims)
}

impl ExternalStack {
    /// The GpuNode's status stores earlier findings: DaemonSets disappear while they are upgraded, and nothing may be installed in between.
    /// `policy` is whether to take over, and the flavor of the device plugin.
    pub fn of(
        stacks: &ForeignStacks<'_>,
        known: &KnownNode<'_>,
        policy: (ForeignStack, Option<PluginFlavor>),
        clock: &Clock,
    ) -> Self {
        let KnownNode { node, gpu_node, report, ref have, .. } = *known;
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let take_over = policy.0 == ForeignStack::TakeOver;
        let runtimes = if take_over || have.toolkit.is_some() { Vec::new() } else { runtimes(report, status) };
        let mut foreign = Self { runtimes, take_over, ..Self::default() };
        let mut dra = None;
        for (name, set) in stacks.sets().filter(|(_, set)| set.reaches(node)) {
            let owner = |beside_managed, by_claims| ThirdParty {
                set: name.to_owned(),
                kind: Kind::DaemonSet,
                removal_command: Some(set.removal_command()),
                beside_managed,
                by_claims,
            };
            match set.part {
                ForeignPart::Dra => dra = Some(owner(false, true)),
                ForeignPart::Stage(stage) => {
                    let beside_managed = have.get(stage).is_some();
                    foreign.stages.insert(stage, owner(beside_managed, false));
                }
            }
        }
        let by_slices = || ThirdParty {
            set: keys::GPU_DRIVER.to_owned(),
            kind: Kind::DraDriver,
            removal_command: Some("remove it from the node".to_owned()),
            beside_managed: false,
            by_claims: true,
        };
        let is_sliced = stacks.has_slices(&node.name) && !has_own_claims(stacks, known);
        let dra = dra.or_else(|| is_sliced.then(by_slices));
        foreign.add_pod(stacks, node, have);
        // With `External` a device plugin exists even if no DaemonSet is found.
        let is_external = policy.1 == Some(PluginFlavor::External);
        if !is_external {
            foreign.add_unnamed_plugin(known, clock);
        }
        foreign.device_plugins = stacks.device_plugins(&node.name).into_iter().collect();
        if let Some(dra) = dra {
            let plugin = Stage::DevicePlugin;
            if is_external || have.get(plugin).is_some() || foreign.stages.contains_key(&plugin) {
                foreign.rival = Some(dra.to_string());
            } else {
                foreign.stages.insert(plugin, dra);
            }
        }
        let remembered = status.map(|status| &status.foreign).filter(|_| !take_over);
        for (name, set) in remembered.into_iter().flatten() {
            let stage = named(name).filter(|(stage, _)| have.get(*stage).is_none());
            if let Some((stage, by_claims)) = stage {
                let gone = || ThirdParty {
                    set: set.clone(),
                    kind: match (set.contains('/'), by_claims) {
                        (true, _) => Kind::DaemonSet,
                        (false, true) => Kind::DraDriver,
                        (false, false) => Kind::Unnamed,
                    },
                    removal_command: None,
                    beside_managed: false,
                    by_claims,
                };
                foreign.stages.entry(stage).or_insert_with(gone);
            }
        }
        foreign
    }

    /// Adds a pod that installs a driver on the node, if no DaemonSet does. One that is ending delays a takeover: its container is the
    /// driver's until then, and takes the libraries with it.
    fn add_pod(&mut self, stacks: &ForeignStacks<'_>, node: &NodeFacts, have: &StageRevisions) {
        let alone = stacks.driver_pod(&node.name).map(|pod| (pod, Kind::Pod));
        let ending = || Some((stacks.ending_driver_pod(node).filter(|_| self.take_over)?, Kind::EndingPod));
        let first = alone.or_else(ending);
        let Some((pod, kind)) = first.filter(|_| !self.stages.contains_key(&Stage::Driver)) else { return };
        let removal_command =
            if kind == Kind::Pod { pod.removal_command() } else { "wait until it has ended".to_owned() };
        // What this operator installed first stays complete.
        let stages = if *have == StageRevisions::default() { &BESIDE_A_POD[..] } else { &[Stage::Driver] };
        for stage in stages {
            self.stages.entry(*stage).or_insert_with(|| ThirdParty {
                set: format!("{}/{}", pod.namespace, pod.name),
                kind,
                removal_command: Some(removal_command.clone()),
                beside_managed: have.get(*stage).is_some(),
                by_claims: false,
            });
        }
    }

    /// Adds a device plugin by what it does: GPUs are allocatable, and no plugin of this operator is on the node. Who placed it is not
    /// decisive: a DaemonSet of any name, or a service of the machine's image. Allocatable counts, because kubelet keeps the capacity of a
    /// plugin that is gone for minutes, and it must last, because kubelet takes seconds to withdraw it.
    fn add_unnamed_plugin(&mut self, known: &KnownNode<'_>, clock: &Clock) {
        let plugin = Stage::DevicePlugin;
        let status = known.gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let before = status.and_then(|status| status.foreign.get(plugin.as_str()));
        let is_own = known.have.get(plugin).is_some() || known.pods.iter().any(|pod| pod.role == Role::Operand(plugin));
        // In an update they are what remains of this operator's own plugin.
        let is_own = is_own || is_without_plugin(known);
        // A DaemonSet that is missing for a moment keeps its name.
        let is_named = self.stages.contains_key(&plugin) || !self.take_over && before.is_some_and(|set| set != UNNAMED);
        if is_own || is_named || known.node.allocatable.total() == 0 {
            return;
        }
        let awaited = status.filter(|status| status.reason() == Some(Reason::ForeignDevicePlugin));
        let lasts = awaited.and_then(GpuNodeStatus::since).is_some_and(|since| clock.passed(since, PLUGIN_GRACE));
        self.is_proven = lasts || before.is_some();
        let owner = ThirdParty {
            set: UNNAMED.to_owned(),
            kind: Kind::Unnamed,
            removal_command: Some("remove it from the node".to_owned()),
            beside_managed: false,
            by_claims: false,
        };
        self.stages.insert(plugin, owner);
    }

    /// Whether GPUs of another device plugin than this operator's are allocatable, but maybe only for a moment.
    pub fn is_unproven(&self) -> bool {
        let owner = self.stages.get(&Stage::DevicePlugin);
        !self.is_proven && owner.is_some_and(|owner| owner.kind == Kind::Unnamed && owner.removal_command.is_some())
    }

    /// Returns the DaemonSets that may have placed another device plugin of GPUs, for messages.
    pub fn candidates(&self) -> String {
        match self.device_plugins.as_slice() {
            [] => "no DaemonSet has a device plugin on this node".to_owned(),
            [one] => format!("DaemonSet {one} has a device plugin on this node"),
            several => format!("DaemonSets with a device plugin on this node: {}", listed(several)),
        }
    }

    /// None if the policy takes over, or if this operator's toolkit was installed first.
    pub fn runtimes(&self) -> &[HostRuntime] {
        &self.runtimes
    }

    pub fn third_party(&self, stage: Stage) -> Option<&ThirdParty> {
        self.stages.get(&stage).filter(|owner| !owner.beside_managed)
    }

    /// Returns kind and name of a stage's owner while it serves the node.
    pub fn present(&self, stage: Stage) -> Option<String> {
        let owner = self.third_party(stage).filter(|owner| owner.removal_command.is_some())?;
        Some(owner.to_string())
    }

    /// Returns the owners for the GpuNode's status, by stage name or as the DRA driver.
    pub fn remembered(&self) -> BTreeMap<String, String> {
        let owners = Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.third_party(stage)?)));
        // A DaemonSet is recreated by an upgrade; a deleted pod is not.
        let owners = owners.filter(|(_, owner)| !(owner.is_pod() || owner.kind == Kind::Unnamed && self.is_unproven()));
        let name = |stage: Stage, owner: &ThirdParty| if owner.by_claims { keys::DRA_DRIVER } else { stage.as_str() };
        owners.map(|(stage, owner)| (name(stage, owner).to_owned(), owner.set.clone())).collect()
    }

    pub fn notes(&self) -> impl Iterator<Item = Note> + use<'_> {
        let both = self.stages.iter().filter(|(_, owner)| owner.beside_managed).map(|(stage, owner)| {
            let removal_command = owner.removal_command.as_deref().unwrap_or_default();
            let message = format!(
                "{owner} serves this node in addition to the {} of this operator, which was installed first and stays; {removal_command}",
                stage.title()
            );
            Note::new(Reason::StackConflict, message)
        });
        let rival = self.rival.iter().map(|driver| {
            let message = format!(
                "{driver} allocates this node's GPUs to resource claims: the DRA driver and the device plugin do not coordinate and may allocate the same GPU; keep one of them off the node"
            );
            Note::new(Reason::StackConflict, message)
        });
        both.chain(rival).chain(self.unchanged())
    }

    fn unchanged(&self) -> Option<Note> {
        let owners: Vec<(Stage, &ThirdParty)> =
            Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.third_party(stage)?))).collect();
        let plugin_alone = owners.iter().all(|(stage, _)| *stage == Stage::DevicePlugin);
        let reason = if plugin_alone { Reason::ForeignDevicePlugin } else { Reason::ForeignStack };
        let pod = owners.iter().find(|(_, owner)| owner.is_pod()).map(|(_, owner)| {
            let removal_command = owner.removal_command.as_deref().unwrap_or_default();
            let why = if owner.kind == Kind::Pod { "belongs to no DaemonSet" } else { "has not ended yet" };
            format!(
                "{owner} installs an NVIDIA driver on this node and {why}, so this operator installs nothing here; {removal_command} to let this operator install the node's GPU stack"
            )
        });
        let of_sets = owners.iter().filter(|(_, owner)| !owner.is_pod());
        let notes = of_sets.map(|(stage, owner)| match &owner.removal_command {
            Some(removal_command) if self.take_over => {
                format!("this operator takes over the {} once {owner} is gone from the node: {removal_command}", stage.title())
            }
            Some(_) if owner.kind == Kind::Unnamed => format!(
                "{owner} serves this node, so this operator installs none beside it ({})",
                self.candidates()
            ),
            Some(_) => format!("the {} is managed by {owner} and left unchanged", stage.title()),
            None => format!(
                "the {} was managed by {owner}, which is gone; write foreignStack: TakeOver to let this operator install its own",
                stage.title(),
            ),
        });
        let message = notes.chain(pod).collect::<Vec<_>>().join("; ");
        (!owners.is_empty()).then(|| Note::new(reason, message))
    }

    pub fn by_claims(&self) -> Option<String> {
        let owner = self.third_party(Stage::DevicePlugin).filter(|owner| owner.by_claims)?;
        let (set, removal_command) = (&owner.set, owner.removal_command.as_ref()?);
        Some(if self.take_over {
            format!(
                "the device plugin is installed once DRA driver {set} is gone from the node: {removal_command}; until then the DRA driver allocates the node's GPUs, and the node does not count towards readiness"
            )
        } else {
            format!(
                "DRA driver {set} allocates the node's GPUs by resource claims, so no device plugin is installed and the node has no {}; the node does not count towards readiness",
                keys::GPU_RESOURCE
            )
        })
    }

    pub fn awaited(&self, stage: Stage) -> Option<String> {
        let owner = self.third_party(stage)?;
        Some(match &owner.removal_command {
            Some(removal_command) if owner.is_pod() => format!(
                "{owner} installs an NVIDIA driver on this node, so this operator installs nothing here; {removal_command} to let this operator install the node's GPU stack"
            ),
            Some(_) if owner.kind == Kind::Unnamed => format!("{owner} serves this node ({})", self.candidates()),
            Some(_) => format!("{owner} serves this node; check the DaemonSet's pod on this node"),
            None => format!(
                "{owner} served this node and is gone; restore it, or write foreignStack: TakeOver to let this operator install its own"
            ),
        })
    }
}
