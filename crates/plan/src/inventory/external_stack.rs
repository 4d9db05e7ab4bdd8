//! Coexistence with third-party GPU stacks: they are reported and left unchanged, and nothing is installed beside them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{
    GpuNodeStatus, NodeName,
    gpunode::StageRevisions,
    keys,
    policy::{ForeignStack, PluginFlavor, Stage},
    reason::Reason,
    report::{HostRuntime, Report},
};

use crate::{
    note::Note,
    world::{ForeignPart, ForeignPod, ForeignSet, NodeFacts, World},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalStack {
    stages: BTreeMap<Stage, ThirdParty>,
    /// The DRA driver on a node that also has a device plugin.
    rival: Option<String>,
    /// NVIDIA's runtimes that are configured on the host and left unchanged.
    runtimes: Vec<HostRuntime>,
    take_over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThirdParty {
    /// The DaemonSet, or else the pod, as namespace/name.
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
}

impl std::fmt::Display for ThirdParty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::DaemonSet => "DaemonSet",
            Kind::Pod => "pod",
        };
        write!(f, "{kind} {}", self.set)
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

impl ExternalStack {
    /// `have` are this operator's stages on the node. `status` stores earlier findings: DaemonSets disappear while they are upgraded, and
    /// nothing may be installed in between. `policy` is whether to take over, and the flavor of the device plugin.
    pub fn of(
        stacks: &ForeignStacks<'_>,
        node: &NodeFacts,
        have: &StageRevisions,
        report: Option<&Report>,
        status: Option<&GpuNodeStatus>,
        policy: (ForeignStack, Option<PluginFlavor>),
    ) -> Self {
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
        foreign.add_pod(stacks, node, have);
        if let Some(dra) = dra {
            let plugin = Stage::DevicePlugin;
            // With `External` a device plugin exists even if no DaemonSet is found.
            let is_external = policy.1 == Some(PluginFlavor::External);
            if is_external || have.get(plugin).is_some() || foreign.stages.contains_key(&plugin) {
                foreign.rival = Some(dra.set);
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
                    kind: Kind::DaemonSet,
                    removal_command: None,
                    beside_managed: false,
                    by_claims,
                };
                foreign.stages.entry(stage).or_insert_with(gone);
            }
        }
        foreign
    }

    /// Adds a pod that installs a driver on the node, if no DaemonSet does.
    fn add_pod(&mut self, stacks: &ForeignStacks<'_>, node: &NodeFacts, have: &StageRevisions) {
        let first = stacks.driver_pod(&node.name);
        let Some(pod) = first.filter(|_| !self.stages.contains_key(&Stage::Driver)) else { return };
        // What this operator installed first stays complete.
        let stages = if *have == StageRevisions::default() { &BESIDE_A_POD[..] } else { &[Stage::Driver] };
        for stage in stages {
            self.stages.entry(*stage).or_insert_with(|| ThirdParty {
                set: format!("{}/{}", pod.namespace, pod.name),
                kind: Kind::Pod,
                removal_command: Some(pod.removal_command()),
                beside_managed: have.get(*stage).is_some(),
                by_claims: false,
            });
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
        let owners = owners.filter(|(_, owner)| owner.kind == Kind::DaemonSet);
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
        let rival = self.rival.iter().map(|set| {
            let message = format!(
                "DaemonSet {set} is a DRA driver on this node: the DRA driver and the device plugin do not coordinate and may allocate the same GPU; keep one of them off the node"
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
        let pod = owners.iter().find(|(_, owner)| owner.kind == Kind::Pod).map(|(_, owner)| {
            let removal_command = owner.removal_command.as_deref().unwrap_or_default();
            format!(
                "{owner} installs an NVIDIA driver on this node and belongs to no DaemonSet, so this operator installs nothing here; {removal_command} to let this operator install the node's GPU stack"
            )
        });
        let of_sets = owners.iter().filter(|(_, owner)| owner.kind == Kind::DaemonSet);
        let notes = of_sets.map(|(stage, owner)| match &owner.removal_command {
            Some(removal_command) if self.take_over => {
                format!("this operator takes over the {} once {owner} is gone from the node: {removal_command}", stage.title())
            }
            Some(_) => format!("the {} is managed by {owner} and left unchanged", stage.title()),
            None => format!(
                "the {} was managed by DaemonSet {}, which is gone; write foreignStack: TakeOver to let this operator install its own",
                stage.title(),
                owner.set
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
            Some(removal_command) if owner.kind == Kind::Pod => format!(
                "{owner} installs an NVIDIA driver on this node, so this operator installs nothing here; {removal_command} to let this operator install the node's GPU stack"
            ),
            Some(_) => format!("{owner} serves this node; check the DaemonSet's pod on this node"),
            None => format!(
                "DaemonSet {} served this node and is gone; restore the DaemonSet, or write foreignStack: TakeOver to let this operator install its own",
                owner.set
            ),
        })
    }
}

// The third-party GPU stacks that count. A user of one namespace must not be able to stop this operator on the cluster's nodes, so
// names and labels prove nothing outside `kube-system`. The proof is a pod with access to the host: a privileged container with a
// directory of the host or, for device plugins and DRA drivers, a mount of kubelet's sockets. Pod Security rejects both in tenants'
// namespaces. The pod need not run: it will once its image is pulled.

/// The namespace whose objects are trusted: only administrators of the cluster may create any there.
const TRUSTED: &str = "kube-system";

#[derive(Debug)]
pub struct ForeignStacks<'w> {
    sets: BTreeMap<&'w str, &'w ForeignSet>,
    pods: &'w BTreeMap<String, Arc<ForeignPod>>,
}

impl<'w> ForeignStacks<'w> {
    /// `own` is this operator's namespace.
    pub fn of(world: &'w World, own: &str) -> Self {
        // A pod on one node is evidence for all nodes of its DaemonSet: on a new node its next pod may not be there yet.
        let mut proven: HashMap<(&str, &str), bool> = HashMap::new();
        for pod in world.foreign_pods.values() {
            if let Some(set) = &pod.set {
                *proven.entry((&pod.namespace, set)).or_default() |= pod.is_privileged;
            }
        }
        // While the pods of a DaemonSet are recreated, it counts where it has been found before.
        let statuses = world.gpu_nodes.values().filter_map(|gpu_node| gpu_node.status.as_ref());
        for key in statuses.flat_map(|status| status.foreign.values()).filter_map(|set| set.split_once('/')) {
            proven.insert(key, true);
        }
        let counts = |key: &str, set: &ForeignSet| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            let is_own = set.is_labelled && namespace == own;
            let is_proven = proven.get(&(namespace, name)).is_some_and(|is_privileged| match set.part {
                ForeignPart::Stage(Stage::DevicePlugin) | ForeignPart::Dra => true,
                ForeignPart::Stage(_) => *is_privileged,
            });
            !is_own && (namespace == TRUSTED || is_proven)
        };
        let sets = world.foreign_sets.iter().filter(|(key, set)| counts(key, set));
        Self { sets: sets.map(|(key, set)| (key.as_str(), set.as_ref())).collect(), pods: &world.foreign_pods }
    }

    pub fn sets(&self) -> impl Iterator<Item = (&'w str, &'w ForeignSet)> {
        self.sets.iter().map(|(key, set)| (*key, *set))
    }

    /// Returns the first driver pod on a node that belongs to no DaemonSet.
    pub fn driver_pod(&self, node: &NodeName) -> Option<&'w ForeignPod> {
        let prefix = ForeignPod::prefix(node);
        let of_node = self.pods.range(prefix.clone()..).take_while(move |(key, _)| key.starts_with(&prefix));
        of_node.map(|(_, pod)| pod.as_ref()).find(|pod| pod.set.is_none())
    }
}
