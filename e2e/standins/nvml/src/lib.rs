//! Stand-in for NVIDIA's management library, `libnvidia-ml.so.1`, for machines without a GPU.
//!
//! Built as a shared library it exports NVML's C interface. Everything it says comes from a *driver root*, the folder
//! that it was loaded from (`<root>/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.<version>`), or the one that the
//! environment variable `STANDIN_NVML_ROOT` names:
//!
//! | path under the root | meaning |
//! |---|---|
//! | `etc/standin/gpus.json` | the GPUs, see [`Machine`]; read anew at every call |
//! | `etc/standin/module/nvidia/version` | the version of the loaded kernel module; absent: no driver is loaded |
//! | `etc/standin/lock/nvml.lock` | locked shared from the first `nvmlInit` to the last `nvmlShutdown`; holding it exclusively means that the driver is being replaced |
//! | `dev/nvidiactl` | opened at `nvmlInit`, as the real library does; being allowed to is what counts |
//!
//! Queries beyond the inventory, the events and the versions answer `NVML_ERROR_NOT_SUPPORTED`.

mod abi;
mod events;
mod library;
mod location;
mod machine;
mod status;
mod stubs;

pub use events::Event;
pub use library::Library;
pub use machine::{Device, Machine, PciAddress};
pub use status::Status;
