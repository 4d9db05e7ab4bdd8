//! A fake kubelet that only registers plugins and calls them back.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use standin_plugin::api::{
    Empty, ListAndWatchResponse, RegisterRequest,
    device_plugin_client::DevicePluginClient,
    registration_server::{Registration, RegistrationServer},
};
use tokio::{net::UnixListener, sync::mpsc, task::JoinHandle, time};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

/// The time limit of every wait.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A running kubelet. It stops when dropped.
pub struct Kubelet {
    folder: PathBuf,
    server: JoinHandle<()>,
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
}

struct Registrar(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

impl Kubelet {
    /// Starts a kubelet, which first empties its folder, as the real one does.
    pub fn start(folder: &Path) -> Self {
        for file in fs::read_dir(folder).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let (send, registrations) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let server = Server::builder().add_service(RegistrationServer::new(Registrar(send)));
        let incoming = UnixListenerStream::new(listener);
        let server = tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
        Self { folder: folder.to_path_buf(), server, registrations }
    }

    /// Waits for the next plugin that registers, and returns a client for it.
    pub async fn plugin(&mut self) -> (RegisterRequest, DevicePluginClient<Channel>) {
        let registration = time::timeout(LIMIT, self.registrations.recv()).await.expect("in time").unwrap();
        let socket = self.folder.join(&registration.endpoint);
        let channel = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap();
        (registration, DevicePluginClient::new(channel))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Starts watching the plugin's devices.
pub async fn watch(plugin: &mut DevicePluginClient<Channel>) -> Streaming<ListAndWatchResponse> {
    plugin.list_and_watch(Empty {}).await.unwrap().into_inner()
}

/// Returns the next list of devices, each as `id health`.
pub async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> Vec<String> {
    let list = time::timeout(LIMIT, lists.message()).await.expect("in time").unwrap().expect("a list");
    list.devices.into_iter().map(|device| format!("{} {}", device.id, device.health)).collect()
}
