//! Pods by name and by node.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use gpu_operator_common::mirror::View;
use gpu_operator_crd::NodeName;

use crate::world::pod::PodFacts;

/// Pods by name and by node, in the order of their names. A pod cannot be changed in place, because its node may change: an unassigned one
/// counts for the node for which it was created.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    all: BTreeSet<Named>,
    by_node: HashMap<NodeName, BTreeSet<Named>>,
}

impl Pods {
    pub fn get(&self, name: &str) -> Option<&Arc<PodFacts>> {
        self.all.get(name).map(|Named(pod)| pod)
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.all.iter().map(|Named(pod)| pod)
    }

    /// Returns the pods of a node.
    pub fn on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<PodFacts>> + use<'_> {
        self.by_node.get(node).into_iter().flatten().map(|Named(pod)| pod)
    }

    /// Returns the former pod of the same name.
    pub fn insert(&mut self, pod: Arc<PodFacts>) -> Option<Arc<PodFacts>> {
        let before = self.remove(&pod.name);
        self.by_node.entry(pod.node.clone()).or_default().insert(Named(Arc::clone(&pod)));
        self.all.insert(Named(pod));
        before
    }

    pub fn remove(&mut self, name: &str) -> Option<Arc<PodFacts>> {
        let Named(pod) = self.all.take(name)?;
        if let Some(pods) = self.by_node.get_mut(&pod.node) {
            pods.remove(name);
            if pods.is_empty() {
                self.by_node.remove(&pod.node);
            }
        }
        Some(pod)
    }
}

impl FromIterator<Arc<PodFacts>> for Pods {
    fn from_iter<I: IntoIterator<Item = Arc<PodFacts>>>(pods: I) -> Self {
        let mut all = Self::default();
        for pod in pods {
            all.insert(pod);
        }
        all
    }
}

impl View<PodFacts, String> for Pods {
    fn put(&mut self, _: &String, pod: &Arc<PodFacts>) {
        self.insert(Arc::clone(pod));
    }

    fn remove(&mut self, name: &String) {
        Self::remove(self, name);
    }
}

/// A pod that is found by its name. A map would hold each name a second time.
#[derive(Clone, Debug)]
struct Named(Arc<PodFacts>);

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_operator_common::copy_on_write::CopyOnWrite;
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: u8) -> Arc<PodFacts> {
        let (labels, node) = (json!({"gpu.nodestack.dev/stage": "driver"}), format!("node-{node}"));
        let meta = json!({"name": name, "labels": labels});
        let pod = json!({"metadata": meta, "spec": {"nodeName": node, "containers": []}});
        Arc::new(PodFacts::of(&serde_json::from_value(pod).unwrap()).unwrap())
    }

    /// Returns which pods these are: two of the same content differ.
    fn which<'p>(pods: impl IntoIterator<Item = &'p Arc<PodFacts>>) -> Vec<*const PodFacts> {
        pods.into_iter().map(Arc::as_ptr).collect()
    }

    proptest! {
        #[test]
        fn pods_are_found_by_name_and_by_node(changes in vec((0..6_u8, prop::option::of(0..3_u8)), 0..40)) {
            let (mut pods, mut model) = (Pods::default(), BTreeMap::new());
            for (name, node) in changes {
                let name = format!("pod-{name}");
                let (before, expected) = match node.map(|node| pod(&name, node)) {
                    Some(pod) => (pods.insert(Arc::clone(&pod)), model.insert(name, pod)),
                    None => (pods.remove(&name), model.remove(&name)),
                };
                prop_assert_eq!(which(&before), which(&expected));
                prop_assert_eq!(which(pods.values()), which(model.values()));
                for name in (0..6).map(|name| format!("pod-{name}")) {
                    prop_assert_eq!(which(pods.get(&name)), which(model.get(&name)));
                }
                for node in (0..3).map(|node| NodeName::from(format!("node-{node}"))) {
                    let expected = model.values().filter(|pod| pod.node == node);
                    prop_assert_eq!(which(pods.on(&node)), which(expected));
                }
                let nodes: BTreeSet<_> = model.values().map(|pod| &pod.node).collect();
                prop_assert_eq!(pods.by_node.keys().collect::<BTreeSet<_>>(), nodes, "no node without pods is kept");
            }
        }
    }

    #[test]
    fn a_change_does_not_reach_those_who_read_the_pods() {
        let mut pods: CopyOnWrite<Pods> = [pod("a", 0)].into_iter().collect();
        let read = pods.clone();
        View::put(&mut pods, &"a".to_owned(), &pod("a", 1));
        let nodes = |pods: &Pods| pods.values().map(|pod| pod.node.to_string()).collect::<Vec<_>>();
        assert_eq!((nodes(&read), nodes(&pods)), (vec!["node-0".to_owned()], vec!["node-1".to_owned()]));
        assert!(read.on(&"node-1".into()).next().is_none() && pods.on(&"node-0".into()).next().is_none());
    }
}
