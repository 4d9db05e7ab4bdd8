//! What the kubelet asks.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use super::{
    Gpu, Offer,
    api::{
        AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
        Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, device_plugin_server::DevicePlugin,
    },
    cdi,
};

/// Answers from the list of GPUs as it is now.
pub(super) struct Service {
    pub(super) offer: Offer,
    pub(super) gpus: watch::Receiver<Vec<Gpu>>,
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let offer = self.offer.clone();
        let lists = WatchStream::new(self.gpus.clone()).map(move |gpus| Ok(list(&offer, &gpus)));
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
            let uuid = Offer::gpu(id).to_owned();
            let there = self.gpus.borrow().iter().any(|gpu| gpu.uuid == uuid);
            there.then_some(uuid).ok_or_else(|| Status::invalid_argument(format!("there is no GPU {id}")))
        };
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let mut uuids = container.device_ids.iter().map(known).collect::<Result<Vec<_>, _>>()?;
            // Two replicas of a GPU are one GPU to the container.
            uuids.sort();
            uuids.dedup();
            container_responses.push(if self.offer.by_environment {
                let envs = [("NVIDIA_VISIBLE_DEVICES".to_owned(), uuids.join(","))].into();
                ContainerAllocateResponse { envs, ..Default::default() }
            } else {
                let cdi_devices = uuids.iter().map(|uuid| CdiDevice { name: cdi::name(uuid) }).collect();
                ContainerAllocateResponse { cdi_devices, ..Default::default() }
            });
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

fn list(offer: &Offer, gpus: &[Gpu]) -> ListAndWatchResponse {
    let devices = gpus.iter().flat_map(|gpu| {
        let health = if gpu.healthy { "Healthy" } else { "Unhealthy" };
        offer.ids(&gpu.uuid).map(|id| Device { id, health: health.into(), topology: None })
    });
    ListAndWatchResponse { devices: devices.collect() }
}
