//! Registration with the kubelet, which is repeated whenever the kubelet restarts.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    net::UnixListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};

use super::{
    api::{
        DevicePluginOptions, RegisterRequest, device_plugin_server::DevicePluginServer,
        registration_client::RegistrationClient,
    },
    gpus::Gpu,
    offer::Offer,
    service::Service,
};

const API_VERSION: &str = "v1beta1";
/// The interval at which the kubelet's folder is checked.
const POLL: Duration = Duration::from_millis(250);
/// The pause after a failed registration.
const RETRY: Duration = Duration::from_secs(1);

/// Serves the GPUs to the kubelet at this socket, each resource with its own server, and registers again whenever a new
/// kubelet appears there. Ends only when dropped.
pub async fn serve(kubelet: &Path, offer: &Offer, gpus: &watch::Receiver<Vec<Gpu>>) -> Result<()> {
    let mut all = JoinSet::new();
    for resource in resources(offer, &gpus.borrow()) {
        let (kubelet, offer, gpus) = (kubelet.to_owned(), offer.clone(), gpus.clone());
        all.spawn(async move { serve_one(&kubelet, &offer, &resource, &gpus).await });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    Ok(())
}

/// Returns the resource names under which these GPUs are offered.
fn resources(offer: &Offer, gpus: &[Gpu]) -> BTreeSet<String> {
    gpus.iter().map(|gpu| offer.resource_of(gpu)).collect()
}

async fn serve_one(kubelet: &Path, offer: &Offer, resource: &str, gpus: &watch::Receiver<Vec<Gpu>>) -> Result<()> {
    let own = own_socket(kubelet, resource);
    loop {
        let Some(this) = identity(kubelet) else {
            time::sleep(POLL).await;
            continue;
        };
        // The kubelet calls back during the registration, so the server starts first.
        let service = Service { offer: offer.clone(), resource: resource.to_owned(), gpus: gpus.clone() };
        let server = Serving::start(&own, service)?;
        if let Err(error) = register(kubelet, resource).await {
            eprintln!("registering with the kubelet: {error:#}");
            drop(server);
            time::sleep(RETRY).await;
            continue;
        }
        println!("registered {resource} with the kubelet");
        // A starting kubelet empties its folder, so either change may be seen first.
        while identity(kubelet) == Some(this) && own.exists() {
            time::sleep(POLL).await;
        }
        println!("the kubelet is gone");
    }
}

/// Removes the plugin's sockets, by which the kubelet detects that the plugin has ended.
pub(super) fn leave(kubelet: &Path, offer: &Offer, gpus: &[Gpu]) {
    for resource in resources(offer, gpus) {
        if let Err(error) = remove(&own_socket(kubelet, &resource)) {
            eprintln!("removing the socket of {resource}: {error}");
        }
    }
}

/// A running server. It stops listening when dropped; connections end with the kubelet that opened them.
struct Serving(JoinHandle<()>);

impl Serving {
    fn start(own: &Path, service: Service) -> Result<Self> {
        let listener = remove(own).and_then(|()| UnixListener::bind(own));
        let incoming = UnixListenerStream::new(listener.with_context(|| own.display().to_string())?);
        let server = Server::builder().add_service(DevicePluginServer::new(service));
        Ok(Self(tokio::spawn(async move {
            if let Err(error) = server.serve_with_incoming(incoming).await {
                eprintln!("serving the kubelet: {error}");
            }
        })))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn register(kubelet: &Path, resource: &str) -> Result<()> {
    let channel = Endpoint::from_shared(format!("unix://{}", kubelet.display()))?.connect().await?;
    let request = RegisterRequest {
        version: API_VERSION.into(),
        endpoint: socket(resource),
        resource_name: resource.into(),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}

fn own_socket(kubelet: &Path, resource: &str) -> PathBuf {
    kubelet.with_file_name(socket(resource))
}

/// Returns the name of a resource's socket in the kubelet's folder, such as `nvidia-gpu.sock`.
fn socket(resource: &str) -> String {
    format!("{}.sock", resource.replace(".com/", "-"))
}

/// Returns the identity of a socket, which differs from that of a later socket of the same name.
fn identity(socket: &Path) -> Option<(u64, i64, i64)> {
    let file = fs::metadata(socket).ok()?;
    Some((file.ino(), file.ctime(), file.ctime_nsec()))
}

fn remove(socket: &Path) -> io::Result<()> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
