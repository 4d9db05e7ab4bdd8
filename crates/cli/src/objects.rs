//! The objects of a cluster that the plan depends on, from the API server or from files.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::{
    forecast::DisruptionBudget,
    settings::Settings,
    world::{
        DaemonSetFacts, ForeignPod, ForeignSet, GpuPods, NodeFacts, PodFacts, RuntimeClassFacts, TrimmedNode,
        TrimmedPod, World,
    },
};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::Pod,
        node::v1::RuntimeClass,
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

use crate::read::{self, ReadError};

struct Kind {
    resource: ApiResource,
    /// What is not known without it. `None` if nothing can be said without it.
    without: Option<&'static str>,
}

fn kinds() -> Vec<Kind> {
    fn kind<K: Resource<DynamicType = ()>>(without: Option<&'static str>) -> Kind {
        Kind { resource: ApiResource::erase::<K>(&()), without }
    }
    vec![
        kind::<ClusterGpuPolicy>(None),
        kind::<GpuNode>(None),
        kind::<k8s_openapi::api::core::v1::Node>(None),
        kind::<DaemonSet>(None),
        kind::<Pod>(None),
        kind::<PodDisruptionBudget>(Some("which evictions disruption budgets forbid")),
        kind::<RuntimeClass>(Some("which RuntimeClasses exist")),
        kind::<Deployment>(Some("the settings of the operator")),
    ]
}

#[derive(Debug, Error)]
pub enum ObjectsError {
    #[error("these rights are missing: {}; bind a ClusterRole with them, or read files with --from", .0.join(", "))]
    Forbidden(Vec<String>),
    #[error(transparent)]
    List(#[from] ReadError),
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} is not valid YAML: {1}")]
    Yaml(PathBuf, #[source] serde_yaml::Error),
    #[error("{0} {1} cannot be parsed: {2}")]
    Object(String, String, #[source] serde_json::Error),
    #[error(
        "{0} has no GpuNode and no Node; export them with: kubectl get clustergpupolicies,gpunodes,nodes,daemonsets,pods,poddisruptionbudgets,runtimeclasses,deployments -A -o yaml --show-managed-fields > {0}/cluster.yaml"
    )]
    Empty(PathBuf),
}

#[derive(Debug)]
pub struct Objects {
    namespace: String,
    world: World,
    /// The pods of each node that have not ended.
    pods: BTreeMap<String, Vec<Pod>>,
    pub budgets: Vec<DisruptionBudget>,
    arguments: Option<Vec<String>>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

impl Objects {
    fn new(namespace: &str) -> Self {
        let (namespace, world) = (namespace.to_owned(), World::default());
        let (pods, budgets, arguments, notes) = (BTreeMap::new(), Vec::new(), None, Vec::new());
        Self { namespace, world, pods, budgets, arguments, notes }
    }

    /// Reads the objects of a cluster. The operator is in `namespace`.
    pub async fn of_cluster(client: &Client, namespace: &str) -> Result<Self, ObjectsError> {
        let (mut objects, mut missing) = (Self::new(namespace), Vec::new());
        for Kind { resource, without } in kinds() {
            let right = format!("list {} ({})", resource.plural, group(&resource));
            let mut added = Ok(());
            let take = |object: DynamicObject| {
                if added.is_ok() {
                    added = objects.add_dynamic(&resource.kind, object);
                }
            };
            let read = read::each(client, None, &resource, ListParams::default(), take).await;
            added?;
            match (read, without) {
                (Ok(()), _) => {}
                (Err(ReadError::Forbidden(_)), None) => missing.push(right),
                (Err(ReadError::Forbidden(_)), Some(without)) => {
                    objects.notes.push(format!("the right to {right} is missing, so it is not known {without}"));
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        if missing.is_empty() { Ok(objects) } else { Err(ObjectsError::Forbidden(missing)) }
    }

    fn add_dynamic(&mut self, kind: &str, object: DynamicObject) -> Result<(), ObjectsError> {
        let name = object.name_any();
        let value = serde_json::to_value(object);
        self.add(kind, value.map_err(|error| ObjectsError::Object(kind.to_owned(), name, error))?)
    }

    /// Reads objects from the YAML and JSON files of a folder, in which other objects may be as well.
    pub fn of_folder(folder: &Path, namespace: &str) -> Result<Self, ObjectsError> {
        let mut objects = Self::new(namespace);
        let read = |path: &Path| {
            let path = path.to_owned();
            move |error| ObjectsError::Read(path, error)
        };
        let (mut files, mut found) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder).map_err(read(folder))? {
            files.push(entry.map_err(read(folder))?.path());
        }
        files
            .retain(|path| path.extension().is_some_and(|of| ["yaml", "yml", "json"].iter().any(|known| of == *known)));
        files.sort();
        for path in files {
            let text = fs::read_to_string(&path).map_err(read(&path))?;
            for document in serde_yaml::Deserializer::from_str(&text) {
                let value = Value::deserialize(document).map_err(|error| ObjectsError::Yaml(path.clone(), error))?;
                found.extend(in_document(value));
            }
        }
        // Only the pods on GPU nodes are kept.
        found.sort_by_key(|(kind, _)| kind == "Pod");
        for (kind, object) in found {
            objects.add(&kind, object)?;
        }
        if objects.world.nodes.is_empty() && objects.world.gpu_nodes.is_empty() {
            return Err(ObjectsError::Empty(folder.to_owned()));
        }
        let is_managed = |node: &Arc<NodeFacts>| !node.owned_labels.is_empty();
        if !objects.world.gpu_nodes.is_empty() && !objects.world.nodes.values().any(is_managed) {
            let note = "the Nodes have no managed fields, so labels that the operator has set look like those of others; export with --show-managed-fields";
            objects.notes.push(note.to_owned());
        }
        Ok(objects)
    }

    fn add(&mut self, kind: &str, object: Value) -> Result<(), ObjectsError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let world = &mut self.world;
        match kind {
            // An object of another version of the API is not gone.
            "ClusterGpuPolicy" => match serde_json::from_value::<ClusterGpuPolicy>(object) {
                Ok(policy) => drop(world.policies.insert(name.as_str().into(), Arc::new(policy))),
                Err(_) => drop(world.unreadable_policies.insert(name.as_str().into())),
            },
            "GpuNode" => match serde_json::from_value::<GpuNode>(object) {
                Ok(gpu_node) => drop(world.gpu_nodes.insert(name.as_str().into(), Arc::new(gpu_node))),
                Err(_) => drop(world.unreadable_gpu_nodes.insert(name.as_str().into())),
            },
            "Node" => {
                let facts = NodeFacts::of(&parsed::<TrimmedNode>(kind, name, object)?);
                world.nodes.insert(facts.name.clone(), Arc::new(facts));
            }
            "DaemonSet" => self.add_daemon_set(&parsed(kind, name, object)?),
            "Pod" => self.add_pod(parsed(kind, name.clone(), object.clone())?, &parsed(kind, name, object)?),
            "RuntimeClass" => {
                let class: RuntimeClass = parsed(kind, name.clone(), object)?;
                world.runtime_classes.insert(name, Arc::new(RuntimeClassFacts::of(&class)));
            }
            "PodDisruptionBudget" => {
                self.budgets.extend(DisruptionBudget::of(&parsed::<PodDisruptionBudget>(kind, name, object)?));
            }
            "Deployment" => self.add_deployment(parsed(kind, name, object)?),
            _ => {}
        }
        Ok(())
    }

    fn is_own(&self, meta: &ObjectMeta) -> bool {
        meta.namespace.as_ref() == Some(&self.namespace)
            && meta.labels.as_ref().is_some_and(|labels| labels.contains_key(keys::STAGE))
    }

    fn add_daemon_set(&mut self, set: &DaemonSet) {
        let name = set.name_any();
        if self.is_own(&set.metadata) {
            self.world.daemon_sets.insert(name, Arc::new(DaemonSetFacts::of(set)));
        } else if let Some(foreign) = ForeignSet::of(set) {
            let key = format!("{}/{name}", set.namespace().unwrap_or_default());
            self.world.foreign_sets.insert(key, Arc::new(foreign));
        }
    }

    fn add_pod(&mut self, pod: Pod, trimmed: &TrimmedPod) {
        if pod.metadata.namespace.as_ref() == Some(&self.namespace)
            && let Some(facts) = PodFacts::of(&pod)
        {
            self.world.pods.insert(Arc::new(facts));
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Succeeded") || phase == Some("Failed") {
            return;
        }
        let foreign = ForeignPod::key(trimmed).filter(|_| !pod.labels().contains_key(keys::STAGE));
        if let Some((key, facts)) = foreign.zip(ForeignPod::of(trimmed)) {
            self.world.foreign_pods.insert(key, Arc::new(facts));
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        // Only pods on GPU nodes matter.
        if let Some(node) = node.filter(|node| self.world.gpu_nodes.contains_key(&node.as_str().into())) {
            self.pods.entry(node).or_default().push(pod);
        }
    }

    fn add_deployment(&mut self, deployment: Deployment) {
        let is_operator = deployment.metadata.namespace.as_ref() == Some(&self.namespace)
            && keys::are_of(deployment.labels(), keys::OPERATOR_NAME);
        let pod = deployment.spec.filter(|_| is_operator).and_then(|spec| spec.template.spec);
        let container = pod.and_then(|pod| pod.containers.into_iter().next());
        self.arguments = self.arguments.take().or(container.and_then(|container| container.args));
    }

    pub fn world(&self) -> World {
        let mut world = self.world.clone();
        let requests = world.gpu_requests();
        let none = Vec::new();
        let on = |node: &str| GpuPods::of(self.pods.get(node).unwrap_or(&none), &requests, &self.namespace);
        world.gpu_pods = world.gpu_nodes.keys().map(|node| (node.clone(), on(node.as_str()))).collect();
        world
    }

    /// Returns the operator's settings, or its defaults if there is no operator; then it may evict pods.
    pub fn settings(&self) -> (Settings, Option<String>) {
        let value = |flag: &str| {
            let arguments = self.arguments.as_ref()?;
            let at = arguments.iter().position(|argument| argument == flag)?;
            arguments.get(at + 1).cloned()
        };
        let arguments = self.arguments.iter().flatten();
        let settings = Settings {
            namespace: self.namespace.clone(),
            probe_image: value("--probe-image").unwrap_or_default(),
            probe_pull_policy: value("--probe-image-pull-policy").unwrap_or_else(|| "IfNotPresent".to_owned()),
            image_pull_secrets: value("--image-pull-secret").into_iter().collect(),
            kubelet_root: value("--kubelet-root"),
            evicts_pods: self.arguments.is_none() || arguments.into_iter().any(|argument| argument == "--evict-pods"),
            quiets: false,
        };
        let note = self.arguments.is_none().then(|| {
            format!("no operator found in namespace {}: it is assumed to have the right to evict pods", self.namespace)
        });
        (settings, note)
    }
}

fn in_document(mut document: Value) -> Vec<(String, Value)> {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let Some(of_items) = kind.strip_suffix("List") else { return vec![(kind, document)] };
    let items = document["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    // The items of a list of one kind may be without it.
    items.into_iter().map(|item| (item["kind"].as_str().unwrap_or(of_items).to_owned(), item)).collect()
}

/// Returns the group of a resource, as in RBAC rules.
fn group(resource: &ApiResource) -> String {
    format!("apiGroup {:?}", resource.group)
}

fn parsed<T: DeserializeOwned>(kind: &str, name: String, object: Value) -> Result<T, ObjectsError> {
    serde_json::from_value(object).map_err(|error| ObjectsError::Object(kind.to_owned(), name, error))
}
