//! Images that are built for a later CUDA version than the driver of their node supports.

mod image;
mod require;
mod version;

use gpu_operator_crd::NodeName;
use version::Version;

use crate::{
    fleet::{Fleet, Host, Room},
    pending::{Container, PendingPod},
};

/// The driver of a node.
struct Driver<'w> {
    node: &'w NodeName,
    loaded: &'w str,
    cuda: Version,
    consumer: bool,
}

impl<'w> Driver<'w> {
    fn of(host: &Host<'w>) -> Option<Self> {
        let facts = host.driver()?;
        let cuda = Version::parse(facts.cuda_version.as_deref()?)?;
        let consumer = host.has_consumer_gpus_only();
        Some(Self { node: &host.node.name, loaded: facts.loaded.as_deref()?, cuda, consumer })
    }

    /// Returns the driver's branch, such as 470.
    fn branch(&self) -> Option<u32> {
        Some(gpu_operator_common::version::Version::leading(self.loaded)?.major())
    }

    /// Returns what a container requires that this driver does not support.
    fn falls_short(&self, container: &Container) -> Option<String> {
        let required = container.require_cuda.as_deref().filter(|_| !container.disable_require);
        if let Some(required) = required.filter(|required| require::fails(required, self.cuda, self.loaded)) {
            let short: String = required.split(' ').next().unwrap_or_default().chars().take(80).collect();
            return Some(format!("NVIDIA_REQUIRE_CUDA requires {short}"));
        }
        let required = image::cuda_of(&container.image)?;
        let falls_short = version::falls_short(required, self.cuda, self.branch()?, self.consumer);
        falls_short.then(|| format!("image {} is built for CUDA {required}", container.image))
    }
}

/// Returns the message for a pod whose image is too new for the driver of the node it is assigned to or, before it is
/// scheduled, for the driver of every eligible node.
pub fn find(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    let mut containers: Vec<&Container> = pod.containers.iter().filter(|container| container.requests_gpus()).collect();
    if containers.is_empty() {
        return None;
    }
    if let Some(node) = &pod.node {
        let driver = Driver::of(fleet.hosts.get(node.as_str())?)?;
        return containers
            .iter()
            .find_map(|container| Some(message(container, &driver.falls_short(container)?, &driver, "")));
    }
    let requests = pod.requests();
    let hosts = fleet.meant(&pod.placement).filter(|host| host.room(&requests) != Room::Never);
    let mut best: Option<Driver<'_>> = None;
    let mut which = "";
    // The first node with an unknown or a sufficient driver decides. In a large fleet that is usually the very first node.
    for host in hosts {
        let driver = Driver::of(host)?;
        containers.retain(|container| driver.falls_short(container).is_some());
        if containers.is_empty() {
            return None;
        }
        best = match best {
            None => Some(driver),
            Some(best) => {
                which = ", the newest of all eligible nodes,";
                Some(if best.cuda < driver.cuda { driver } else { best })
            }
        };
    }
    let (driver, container) = (best?, containers.first()?);
    Some(message(container, &driver.falls_short(container)?, &driver, which))
}

fn message(container: &Container, required: &str, driver: &Driver<'_>, which: &str) -> String {
    format!(
        "driver {} of node {}{which} supports CUDA {}, but {required} (container {}); use an image for CUDA {} or earlier, or \
         install a newer driver on the node",
        driver.loaded, driver.node, driver.cuda, container.name, driver.cuda
    )
}

#[cfg(test)]
pub use tables::{fails, falls_short, image_cuda};

/// The functions that the table tests call, with strings as arguments.
#[cfg(test)]
mod tables {
    use super::{Version, image, require, version};

    pub fn image_cuda(image: &str) -> Option<Version> {
        image::cuda_of(image)
    }

    pub fn falls_short(required: &str, served: &str, branch: u32, consumer: bool) -> bool {
        let version = |text| Version::parse(text).unwrap();
        version::falls_short(version(required), version(served), branch, consumer)
    }

    pub fn fails(required: &str, cuda: &str, driver: &str) -> bool {
        require::fails(required, Version::parse(cuda).unwrap(), driver)
    }
}
