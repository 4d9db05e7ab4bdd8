//! The devices that kubelet has assigned to containers, from its pod resources socket.
//!
//! Kubelet's documentation does not define which pods it lists. Versions differ in whether they list ended pods until these are deleted
//! (issue 119423 of Kubernetes), and in whether they list init containers.

use std::{io, path::PathBuf, time::Duration};

use prost::Message;

use crate::{
    grpc::{self, GrpcError},
    root::{HostRoot, present},
};

/// The directories of kubelet that are searched if none is configured: the default, that of k0s and that of `MicroK8s`.
pub const KUBELET_ROOTS: [&str; 3] =
    ["/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"];

const SOCKET: &str = "pod-resources/kubelet.sock";
const METHOD: &str = "/v1.PodResourcesLister/List";
/// The time limit of a request. Kubelet answers from memory.
const DEADLINE: Duration = Duration::from_secs(2);
/// The largest response, in bytes. One pod takes some hundred bytes.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    #[error("cannot find kubelet's socket")]
    Find(#[source] io::Error),
    #[error("cannot connect to kubelet's socket {0}")]
    Connect(PathBuf, #[source] io::Error),
    #[error("cannot list the pods' resources")]
    Request(#[from] GrpcError),
    #[error("cannot decode the list of the pods' resources")]
    Decode(#[from] prost::DecodeError),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub source: Source,
    /// As their plugin or driver calls them, such as `GPU-…`, `MIG-…`, `GPU-…::2` for a replica, or `nvidia0/gi1`.
    pub devices: Vec<String>,
}

/// What devices were requested by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An extended resource of a device plugin, such as `nvidia.com/gpu`.
    Resource(String),
    /// A claim; the name is that of the DRA driver, such as `gpu.nvidia.com`.
    Claim(String),
}

/// Returns the path of kubelet's socket for this process, or `None` if there is none. `kubelet_root` is kubelet's directory on the
/// host; without it, the usual ones are searched.
pub fn socket(host: &HostRoot, kubelet_root: Option<&str>) -> Result<Option<PathBuf>, PodResourcesError> {
    let roots = kubelet_root.map_or_else(|| KUBELET_ROOTS.to_vec(), |root| vec![root]);
    for root in roots {
        if let Some(socket) = present(host.resolve(format!("{root}/{SOCKET}"))).map_err(PodResourcesError::Find)? {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

/// Returns the devices of all containers, sorted. Containers without devices are not listed.
pub async fn list(socket: PathBuf) -> Result<Vec<Assignment>, PodResourcesError> {
    let stream = grpc::connect(&socket, DEADLINE).await.map_err(|error| PodResourcesError::Connect(socket, error))?;
    Ok(decode(&grpc::call(stream, METHOD, &[], MAX_RESPONSE, DEADLINE).await?)?)
}

/// Returns the devices of all containers in an encoded `v1.ListPodResourcesResponse`, sorted.
pub fn decode(response: &[u8]) -> Result<Vec<Assignment>, prost::DecodeError> {
    let mut assignments: Vec<_> = Response::decode(response)?.pods.into_iter().flat_map(of_pod).collect();
    assignments.sort_unstable();
    Ok(assignments)
}

fn of_pod(pod: Pod) -> impl Iterator<Item = Assignment> {
    let Pod { name, namespace, containers } = pod;
    containers.into_iter().flat_map(move |container| {
        let resources = container.devices.into_iter().map(|of| (Source::Resource(of.resource), of.ids));
        let claims = container.claims.into_iter().flat_map(|claim| claim.devices);
        let claimed = claims.map(|device| (Source::Claim(device.driver), vec![device.name]));
        let (namespace, pod, container) = (namespace.clone(), name.clone(), container.name);
        resources.chain(claimed).map(move |(source, devices)| Assignment {
            namespace: namespace.clone(),
            pod: pod.clone(),
            container: container.clone(),
            source,
            devices,
        })
    })
}

// The parts of Kubernetes' k8s.io/kubelet/pkg/apis/podresources/v1 that are used here. Other fields are skipped.

/// `ListPodResourcesResponse`.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<Pod>,
}

/// `PodResources`.
#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<Container>,
}

/// `ContainerResources`.
#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<Devices>,
    #[prost(message, repeated, tag = "5")]
    claims: Vec<Claim>,
}

/// `ContainerDevices`.
#[derive(Clone, PartialEq, Message)]
struct Devices {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// `DynamicResource`.
#[derive(Clone, PartialEq, Message)]
struct Claim {
    #[prost(message, repeated, tag = "4")]
    devices: Vec<ClaimedDevice>,
}

/// `ClaimResource`.
#[derive(Clone, PartialEq, Message)]
struct ClaimedDevice {
    #[prost(string, tag = "2")]
    driver: String,
    #[prost(string, tag = "4")]
    name: String,
}
