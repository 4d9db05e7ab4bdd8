//! What the kubelet asks.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use super::{
    Gpu,
    api::{
        AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
        Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, device_plugin_server::DevicePlugin,
    },
    cdi,
};

/// Answers from the list of GPUs as it is now.
pub(super) struct Service {
    pub(super) gpus: watch::Receiver<Vec<Gpu>>,
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.gpus.clone()).map(|gpus| Ok(list(&gpus)));
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
        let device = |uuid: String| {
            if self.gpus.borrow().iter().any(|gpu| gpu.uuid == uuid) {
                Ok(CdiDevice { name: cdi::name(&uuid) })
            } else {
                Err(Status::invalid_argument(format!("there is no GPU {uuid}")))
            }
        };
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let cdi_devices = container.device_ids.into_iter().map(device).collect::<Result<_, _>>()?;
            container_responses.push(ContainerAllocateResponse { cdi_devices, ..Default::default() });
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

fn list(gpus: &[Gpu]) -> ListAndWatchResponse {
    let device = |gpu: &Gpu| Device {
        id: gpu.uuid.clone(),
        health: if gpu.healthy { "Healthy" } else { "Unhealthy" }.into(),
        topology: None,
    };
    ListAndWatchResponse { devices: gpus.iter().map(device).collect() }
}
