//! The service that the kubelet calls.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use super::{
    api::{
        AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
        Device, DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, Mount, PreStartContainerRequest,
        PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
        device_plugin_server::DevicePlugin,
    },
    cdi,
    gpus::Gpu,
    offer::{HandOver, Offer},
};

/// Answers from the current list of GPUs.
pub(super) struct Service {
    pub(super) offer: Offer,
    /// The resource that it serves; devices of other resources are ignored.
    pub(super) resource: String,
    pub(super) gpus: watch::Receiver<Vec<Gpu>>,
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (offer, resource) = (self.offer.clone(), self.resource.clone());
        let lists = WatchStream::new(self.gpus.clone()).map(move |gpus| Ok(list(&offer, &resource, &gpus)));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let prefer = |container: super::api::ContainerPreferredAllocationRequest| {
            let mut device_ids = container.must_include_device_ids;
            for id in container.available_device_ids {
                if !device_ids.contains(&id) {
                    device_ids.push(id);
                }
            }
            device_ids.truncate(container.allocation_size.try_into().unwrap_or_default());
            ContainerPreferredAllocationResponse { device_ids }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(prefer).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let known = |id: &String| {
            let gpus = self.gpus.borrow();
            let gpu = gpus.iter().find(|gpu| gpu.uuid == Offer::gpu(id)).cloned();
            gpu.ok_or_else(|| Status::invalid_argument(format!("there is no GPU {id}")))
        };
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let mut gpus = container.device_ids.iter().map(known).collect::<Result<Vec<_>, _>>()?;
            // Two replicas of a GPU are one GPU to the container.
            gpus.sort_by(|a, b| (a.minor, &a.uuid).cmp(&(b.minor, &b.uuid)));
            gpus.dedup();
            container_responses.push(hand_over(&self.offer.hand_over, &gpus));
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse::default()))
    }
}

fn hand_over(how: &HandOver, gpus: &[Gpu]) -> ContainerAllocateResponse {
    match how {
        HandOver::Cdi => {
            let cdi_devices = gpus.iter().map(|gpu| CdiDevice { name: cdi::name(&gpu.uuid) }).collect();
            ContainerAllocateResponse { cdi_devices, ..Default::default() }
        }
        HandOver::Environment => {
            let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            let envs = [("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids.join(","))].into();
            ContainerAllocateResponse { envs, ..Default::default() }
        }
        HandOver::Mounts { host, container } => {
            let nodes = gpus.iter().map(|gpu| format!("nvidia{}", gpu.minor));
            let nodes = nodes.chain(["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]);
            let device = |node: String| {
                let path = format!("/dev/{node}");
                DeviceSpec { container_path: path.clone(), host_path: path, permissions: "mrw".into() }
            };
            let driver = Mount {
                host_path: host.display().to_string(),
                container_path: container.display().to_string(),
                read_only: true,
            };
            let devices = nodes.map(device).collect();
            ContainerAllocateResponse { devices, mounts: vec![driver], ..Default::default() }
        }
    }
}

fn list(offer: &Offer, resource: &str, gpus: &[Gpu]) -> ListAndWatchResponse {
    let devices = gpus.iter().filter(|gpu| offer.resource_of(gpu) == resource).flat_map(|gpu| {
        let health = if gpu.healthy { "Healthy" } else { "Unhealthy" };
        offer.ids(&gpu.uuid).map(|id| Device { id, health: health.into(), topology: None })
    });
    ListAndWatchResponse { devices: devices.collect() }
}
