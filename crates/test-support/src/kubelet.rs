//! Kubelet's pod resources socket, and the socket of a container runtime: a gRPC server on a unix socket with the whole API of the former,
//! fields included that the probe does not read.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use h2::server::SendResponse;
use http::{HeaderMap, Response, StatusCode};
use prost::{Message, bytes::Bytes};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

/// The methods that the server implements: kubelet's, and that of a container runtime.
const METHODS: [&str; 2] = ["/v1.PodResourcesLister/List", "/runtime.v1.RuntimeService/Status"];

/// How the server answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With these pods.
    Pods(Vec<Pod>),
    /// With these bytes in the frame of a gRPC message.
    Message(Vec<u8>),
    /// With these bytes as the body.
    Body(Vec<u8>),
    /// With this gRPC status and no message.
    Status(&'static str),
    /// Never.
    Hang,
}

/// A running server, which ends when it is dropped.
pub struct Kubelet {
    answer: Arc<Mutex<Answer>>,
    socket: PathBuf,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Serves on that path, in place of the server before.
    pub fn serve(socket: &Path, answer: Answer) -> Self {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _none = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let answer = Arc::new(Mutex::new(answer));
        let answers = Arc::clone(&answer);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, Arc::clone(&answers)));
            }
        });
        Self { answer, socket: socket.to_owned(), task }
    }

    pub fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        let _none = fs::remove_file(&self.socket);
    }
}

async fn connection(stream: UnixStream, answer: Arc<Mutex<Answer>>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        assert_eq!(request.headers()["content-type"], "application/grpc");
        let answer = answer.lock().unwrap().clone();
        let known = METHODS.contains(&request.uri().path());
        tokio::spawn(respond_with(respond, if known { answer } else { Answer::Status("12") }));
    }
}

async fn respond_with(mut respond: SendResponse<Bytes>, answer: Answer) {
    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/grpc");
    let body = match answer {
        Answer::Pods(pods) => framed(&ListPodResourcesResponse { pod_resources: pods }.encode_to_vec()),
        Answer::Message(message) => framed(&message),
        Answer::Body(body) => body,
        Answer::Status(status) => {
            respond.send_response(head.header("grpc-status", status).body(()).unwrap(), true).unwrap();
            return;
        }
        Answer::Hang => return std::future::pending().await,
    };
    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
    stream.send_data(body.into(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    // A client that has read enough resets the stream.
    let _reset = stream.send_trailers(trailers);
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// Returns a pod with one container, to which devices of a resource are assigned.
pub fn pod(name: &str, resource: &str, devices: &[&str]) -> Pod {
    let (namespace, name) = name.split_once('/').unwrap();
    let device_ids = devices.iter().map(|id| (*id).to_owned()).collect();
    let topology = Some(Topology { nodes: vec![NumaNode { id: 1 }] });
    let devices = vec![Devices { resource_name: resource.to_owned(), device_ids, topology }];
    let container = Container { name: "main".to_owned(), devices, cpu_ids: vec![4, 5], ..Container::default() };
    Pod { name: name.to_owned(), namespace: namespace.to_owned(), containers: vec![container], ..Pod::default() }
}

/// Returns a pod with one container, to which a DRA driver has assigned a device.
pub fn claimant(name: &str, driver: &str, device: &str) -> Pod {
    let claimed = ClaimResource {
        driver_name: driver.to_owned(),
        pool_name: "n1".to_owned(),
        device_name: device.to_owned(),
        ..ClaimResource::default()
    };
    let claim = DynamicResource {
        claim_name: "gpu".to_owned(),
        claim_namespace: "claims".to_owned(),
        claim_resources: vec![claimed],
    };
    let mut pod = pod(name, "vendor.example/nic", &["nic0"]);
    pod.containers[0].dynamic_resources.push(claim);
    pod
}

/// Returns the `Status` of a container runtime with that configuration, encoded.
pub fn runtime_status(config: &str) -> Vec<u8> {
    let info = [("config", config), ("lastCNILoadStatus", "OK")];
    let info = info.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    StatusResponse { status: Some(RuntimeStatus {}), info }.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RuntimeStatus>,
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

/// Its conditions are left out.
#[derive(Clone, PartialEq, Message)]
struct RuntimeStatus {}

#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<Container>,
    #[prost(int64, repeated, tag = "4")]
    pub cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    pub memory: Vec<Memory>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<Devices>,
    #[prost(int64, repeated, tag = "3")]
    pub cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub memory: Vec<Memory>,
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Devices {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Memory {
    #[prost(string, tag = "1")]
    pub memory_type: String,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct DynamicResource {
    #[prost(string, tag = "2")]
    pub claim_name: String,
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub driver_name: String,
    #[prost(string, tag = "3")]
    pub pool_name: String,
    #[prost(string, tag = "4")]
    pub device_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}
