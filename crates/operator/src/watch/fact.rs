//! The facts that the mirrors hold: from which objects they are read, and when this operator first observed the times in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use gpu_operator_common::{
    copy_on_write::CopyOnWrite,
    mirror::{Facts, Mirror, View},
};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName, keys};
use gpu_operator_plan::world::{
    ContainerState, DaemonSetFacts, ForeignPod, ForeignSet, GpuSlice, NodeFacts, ObservedTime, PodFacts, Pods, Refusal,
    ResourceSlice, RuntimeClassFacts, TrimmedNode, TrimmedPod,
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Event, Pod},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::extract::{Extract, Guarded};

/// The maximum number of elements of objects that users or kubelets write. Ordinary ones have some hundreds.
pub const MAX_ELEMENTS: usize = 10_000;
/// The maximum number of DaemonSets that may be part of a third-party GPU stack.
const MAX_FOREIGN_SETS: usize = 5000;
/// The maximum number of pods that are evidence of one: four on each of 5,000 nodes, the maximum of Kubernetes.
const MAX_FOREIGN_PODS: usize = 20_000;
/// The maximum number of slices of GPUs: four on each of 5,000 nodes. One is enough to know a node's DRA driver.
const MAX_GPU_SLICES: usize = 20_000;
const MAX_REFUSALS: usize = 2000;

/// What an object says about the entry of this name: its facts, or that there are none. `None` if it concerns no entry.
pub type Reading<F> = Option<(<F as Fact>::Name, Option<F>)>;

pub trait Fact: Clone + Debug + PartialEq + Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + DeserializeOwned;
    type Name: Ord + Clone + Debug + Send + Sync;
    /// The facts of all objects as the plan reads them, so that nothing is left to do when a pass begins.
    type View: View<Self, Self::Name> + Debug + Send + Sync;
    const MOST: usize = usize::MAX;
    /// The maximum number of elements of an object's lists and maps. An object with more has no facts.
    const MAX_ELEMENTS: usize = usize::MAX;
    /// Whether it is also read from the object's managed fields.
    const NEEDS_FIELDS: bool = false;

    fn read(object: Self::Object) -> Reading<Self>;

    /// Returns the times of other machines in these facts.
    fn times(&mut self) -> Vec<&mut ObservedTime> {
        Vec::new()
    }
}

pub type MirrorOf<F> = Mirror<F, <F as Fact>::Name, <F as Fact>::View>;

/// What a mirror reads from an object while it is parsed.
#[derive(Clone, Debug)]
pub struct Read<F: Fact>(pub Reading<F>);

impl<F: Fact> Extract for Read<F> {
    type Object = F::Object;
    const MAX_ELEMENTS: usize = F::MAX_ELEMENTS;
    const NEEDS_FIELDS: bool = F::NEEDS_FIELDS;

    fn extract(object: F::Object, is_complete: bool) -> Self {
        Self(F::read(object).map(|(name, fact)| (name, fact.filter(|_| is_complete))))
    }
}

/// A custom resource, or `None` if it cannot be parsed: it can only have been written for another version of the API, and must
/// not be mistaken for a missing object.
pub type Readable<K> = Option<Arc<K>>;

/// The objects that could be parsed, and the names of the others.
#[derive(Clone, Debug)]
pub struct Parsed<K, N> {
    pub readable: Facts<K, N>,
    pub unreadable: BTreeSet<N>,
}

impl<K, N> Default for Parsed<K, N> {
    fn default() -> Self {
        Self { readable: Facts::default(), unreadable: BTreeSet::new() }
    }
}

impl<K: Clone, N: Ord + Clone> View<Readable<K>, N> for Parsed<K, N> {
    fn put(&mut self, name: &N, fact: &Arc<Readable<K>>) {
        self.remove(name);
        match &**fact {
            Some(object) => self.readable.put(name, object),
            None => drop(self.unreadable.insert(name.clone())),
        }
    }

    fn remove(&mut self, name: &N) {
        if !self.unreadable.remove(name) {
            BTreeMap::remove(&mut self.readable, name);
        }
    }
}

impl Fact for Readable<ClusterGpuPolicy> {
    type Object = Guarded<ClusterGpuPolicy>;
    type Name = PolicyName;
    type View = Parsed<ClusterGpuPolicy, PolicyName>;

    fn read(policy: Self::Object) -> Reading<Self> {
        Some((policy.name_any().into(), Some(readable(policy))))
    }
}

impl Fact for Readable<GpuNode> {
    type Object = Guarded<GpuNode>;
    type Name = NodeName;
    type View = Parsed<GpuNode, NodeName>;

    fn read(gpu_node: Self::Object) -> Reading<Self> {
        Some((gpu_node.name_any().into(), Some(readable(gpu_node))))
    }
}

impl Fact for NodeFacts {
    type Object = TrimmedNode;
    type Name = NodeName;
    type View = Facts<Self, NodeName>;
    const NEEDS_FIELDS: bool = true;

    fn read(node: TrimmedNode) -> Reading<Self> {
        Some((node.name_any().into(), Some(Self::of(&node))))
    }

    fn times(&mut self) -> Vec<&mut ObservedTime> {
        self.created.iter_mut().chain(&mut self.labelled_present).collect()
    }
}

impl Fact for PodFacts {
    type Object = Pod;
    type Name = String;
    type View = CopyOnWrite<Pods>;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn read(pod: Pod) -> Reading<Self> {
        Some((pod.name_any(), Self::of(&pod)))
    }

    fn times(&mut self) -> Vec<&mut ObservedTime> {
        let ended = self.end.as_mut().and_then(|end| end.at.as_mut());
        let running =
            self.init.iter_mut().chain(&mut self.containers).filter_map(|container| match &mut container.state {
                ContainerState::Running(since) => since.as_mut(),
                ContainerState::Waiting { .. } | ContainerState::Ended(_) => None,
            });
        let deleted = self.deletion.as_mut().map(|deletion| &mut deletion.since);
        [self.created.as_mut(), self.sandbox_since.as_mut(), deleted, ended]
            .into_iter()
            .flatten()
            .chain(running)
            .collect()
    }
}

impl Fact for DaemonSetFacts {
    type Object = DaemonSet;
    type Name = String;
    type View = Facts<Self>;
    const NEEDS_FIELDS: bool = true;

    fn read(set: DaemonSet) -> Reading<Self> {
        Some((set.name_any(), Some(Self::of(&set))))
    }
}

impl Fact for ForeignSet {
    type Object = DaemonSet;
    type Name = String;
    type View = Facts<Self>;
    const MOST: usize = MAX_FOREIGN_SETS;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn read(set: DaemonSet) -> Reading<Self> {
        Some((format!("{}/{}", set.namespace()?, set.name_any()), Self::of(&set)))
    }
}

impl Fact for ForeignPod {
    type Object = TrimmedPod;
    type Name = String;
    type View = Facts<Self>;
    const MOST: usize = MAX_FOREIGN_PODS;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn read(pod: TrimmedPod) -> Reading<Self> {
        Some((Self::key(&pod)?, Self::of(&pod)))
    }
}

impl Fact for GpuSlice {
    type Object = ResourceSlice;
    type Name = String;
    type View = Facts<Self>;
    const MOST: usize = MAX_GPU_SLICES;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn read(slice: ResourceSlice) -> Reading<Self> {
        Some((slice.name_any(), Self::of(&slice)))
    }
}

impl Fact for RuntimeClassFacts {
    type Object = RuntimeClass;
    type Name = String;
    type View = Facts<Self>;

    fn read(class: RuntimeClass) -> Reading<Self> {
        Some((class.name_any(), Some(Self::of(&class))))
    }
}

impl Fact for Refusal {
    type Object = Event;
    type Name = String;
    type View = Facts<Self>;
    const MOST: usize = MAX_REFUSALS;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn read(event: Event) -> Reading<Self> {
        Self::of(&event).map(|(set, refusal)| (set, Some(refusal)))
    }
}

/// Returns a custom resource, if it can be parsed. An object that cannot be parsed must not stall the watch.
fn readable<K: Resource<DynamicType = ()>>(guard: Guarded<K>) -> Readable<K> {
    let name = guard.name_any();
    let object = guard.0.map(|object| Arc::new(trimmed(object))).inspect_err(|error| {
        tracing::warn!(kind = %K::kind(&()), name, %error, "cannot parse object; leaving what it governs unchanged");
    });
    object.ok()
}

/// Returns an object without the metadata that the plan never reads, or that changes with every write. Of the managed
/// fields only the times of the probe's writes are left.
fn trimmed<K: Resource>(mut object: K) -> K {
    let meta = object.meta_mut();
    let mut managed = meta.managed_fields.take().unwrap_or_default();
    managed.retain_mut(|entry| {
        entry.fields_v1 = None;
        entry.manager.as_deref() == Some(keys::PROBE_MANAGER)
    });
    let managed_fields = (!managed.is_empty()).then_some(managed);
    let mut annotations = meta.annotations.take().unwrap_or_default();
    annotations.retain(|key, _| key == keys::RETRY);
    let annotations = (!annotations.is_empty()).then_some(annotations);
    *meta = ObjectMeta { managed_fields, resource_version: None, annotations, ..std::mem::take(meta) };
    object
}

/// Records when the times in facts were first observed: `now`, or as in the facts of the mirror.
pub fn observe<F: Fact>(fact: &mut F, name: &F::Name, mirror: &MirrorOf<F>, now: Timestamp) {
    let before = mirror.get(name).filter(|known| *known != fact).cloned();
    let before = before.map(|mut known| known.times().into_iter().map(|time| *time).collect::<Vec<_>>());
    // An object that is new since the first list has been observed from its beginning.
    let before = before.or_else(|| mirror.synced().then(Vec::new));
    fact.times().into_iter().for_each(|time| time.observe(now, before.as_deref()));
}

#[cfg(test)]
mod tests {
    use gpu_operator_plan::inventory::records;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_readable_may_become_unreadable_and_vice_versa() {
        let mut parsed = Parsed::<&str, u8>::default();
        for (name, change, readable, unreadable) in [
            (1, Some(Some("before")), vec![(1, "before")], vec![]),
            (1, Some(Some("after")), vec![(1, "after")], vec![]),
            (2, Some(None), vec![(1, "after")], vec![2]),
            (1, Some(None), vec![], vec![1, 2]),
            (2, Some(Some("read")), vec![(2, "read")], vec![1]),
            (1, None, vec![(2, "read")], vec![]),
            (2, None, vec![], vec![]),
        ] {
            match change {
                Some(object) => parsed.put(&name, &Arc::new(object.map(Arc::new))),
                None => parsed.remove(&name),
            }
            let known: Vec<_> = parsed.readable.iter().map(|(name, object)| (*name, **object)).collect();
            assert_eq!((known, &parsed.unreadable), (readable, &unreadable.into_iter().collect()));
        }
    }

    #[test]
    fn only_the_reports_time_is_kept_of_the_managed_fields() {
        let entry = |manager: &str, second: u8| json!({"manager": manager, "subresource": "status", "time": format!("2026-01-01T00:00:0{second}Z"), "fieldsV1": {"f:status": {}}});
        let managed = [entry(keys::MANAGER, 1), entry(keys::PROBE_MANAGER, 2), entry("kubectl", 3)];
        let gpu_node = json!({"metadata": {"name": "a", "resourceVersion": "7", "managedFields": managed}, "spec": {}});
        let kept = trimmed(serde_json::from_value::<GpuNode>(gpu_node).unwrap());
        assert_eq!((kept.managed_fields().len(), kept.resource_version()), (1, None));
        assert_eq!(kept.managed_fields()[0].fields_v1, None);
        assert_eq!(records::last_report_at(Some(&kept)), Some("2026-01-01T00:00:02Z".parse().unwrap()));
    }
}
