//! Stand-in for NVIDIA's management library, `libnvidia-ml.so.1`, for machines without a GPU.
//!
//! Built as a shared library it exports NVML's C interface. Everything it reports comes from a *driver root*, the
//! folder that it was loaded from (`<root>/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.<version>`), or the one that the
//! environment variable `STANDIN_NVML_ROOT` names:
//!
//! | path under the root | meaning |
//! |---|---|
//! | `etc/standin/gpus.json` | the GPUs, see [`Machine`]; read again at every call |
//! | `etc/standin/mig.json` | the MIG instances; written by the calls that create and destroy them |
//! | `etc/standin/modes.json` | the modes that programs have given GPUs; written by the calls that set them |
//! | `etc/standin/unanswered.sock` | a socket whose listener receives the calls of functions that have no answer |
//! | `etc/standin/module/nvidia/version` | the version of the loaded kernel module; if it does not exist, no driver is loaded |
//! | `etc/standin/lock/nvml.lock` | locked shared from the first `nvmlInit` to the last `nvmlShutdown`; holding it exclusively means that the driver is being replaced |
//! | `libnvidia-standin.so.<version>` beside the library | replaces `etc/standin` if that does not exist: it is `lock/nvml.lock`, and contains the text of `gpus.json` |
//! | `dev/nvidiactl` | opened at `nvmlInit`, as the real library does; only the permission to open it matters |
//!
//! It reports the inventory, the properties of each [`Model`], the connections between GPUs, MIG, the state in
//! `gpus.json`, events and versions. Queries of state that is not in the file return `NVML_ERROR_NOT_SUPPORTED`, and so
//! do all other functions of NVML, which are listed in `functions.txt`.
//!
//! Installed as `libcuda.so.<version>` it is a stand-in for CUDA's driver API, too, of which it has `cuInit` alone.
//!
//! # `gpus.json`
//!
//! ```json
//! {
//!   "cuda": "13.1",
//!   "hang": false, "crash": false, "slowMillis": 0, "initError": null, "cudaError": 0,
//!   "healthy": {"GPU-…": false},
//!   "devices": [{
//!     "pciAddress": "0000:06:00.0", "pciDeviceId": "0x233010DE", "name": "NVIDIA H100 80GB HBM3",
//!     "uuid": "GPU-…", "memoryMiB": 81559, "minor": 0,
//!     "error": 15,
//!     "xids": [{"xid": 48}, {"xid": 31, "perSecond": 1000}, {"xid": 48, "id": 2}],
//!     "mig": {"needsReset": false, "clients": [{"pid": 4711, "instance": 1}]},
//!     "readings": {"thermal": {"gpu": 91, "slowdownAt": 87}, "rows": {"pending": true}, "nvlinks": [true, false]}
//!   }]
//! }
//! ```
//!
//! Changes of the file take effect at the next call. `hang` blocks every call, `slowMillis` makes each call slower,
//! `crash` ends the process, `initError` is `nvmlInit`'s return code, and `cudaError` that of `cuInit`. Of a device, `error` is the return code of
//! all its calls, `xids` are delivered to all event sets that were registered before, and `readings` are its state: see
//! [`Readings`]. A device with `mig`, even an empty one, supports MIG: see [`Mig`]. On a device without `mig` whose
//! model supports MIG, MIG is off and cannot be turned on.

mod abi;
mod cuda;
mod devices;
mod division;
mod events;
mod handle;
mod injected;
mod library;
mod location;
mod machine;
mod mig;
mod model;
mod modes;
mod readings;
mod status;
mod store;
mod stubs;
mod topology;
mod unanswered;

use std::{env, path::PathBuf};

pub use events::Event;
pub use library::Library;
pub use machine::{Device, Machine, PciAddress, Xid};
pub use mig::{Client, Division, Engines, Instance, Mig, Profile};
pub use model::{MigParts, Model, NvLinks};
pub use modes::Modes;
pub use readings::Readings;
pub use status::Status;
pub use topology::{End, Level, NvLink, Peer, Way};

/// Returns the path of the shared object, which cargo puts next to a test that depends on this package; `None` elsewhere.
pub fn shared_object() -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    test.ancestors().skip(1).take(2).map(|folder| folder.join("libstandin_nvml.so")).find(|file| file.exists())
}
