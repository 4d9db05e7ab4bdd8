//! Stand-in for NVIDIA's management library, `libnvidia-ml.so.1`, for machines without a GPU.
//!
//! Built as a shared library it exports NVML's C interface. Everything it says comes from a *driver root*, the folder
//! that it was loaded from (`<root>/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.<version>`), or the one that the
//! environment variable `STANDIN_NVML_ROOT` names:
//!
//! | path under the root | meaning |
//! |---|---|
//! | `etc/standin/gpus.json` | the GPUs, see [`Machine`]; read anew at every call |
//! | `etc/standin/mig.json` | how the GPUs that have MIG are divided; written by the calls that divide them |
//! | `etc/standin/modes.json` | the modes that programs have given GPUs; written by the calls that set them |
//! | `etc/standin/unanswered.sock` | a socket whose listener receives the calls of functions that have no answer |
//! | `etc/standin/module/nvidia/version` | the version of the loaded kernel module; absent: no driver is loaded |
//! | `etc/standin/lock/nvml.lock` | locked shared from the first `nvmlInit` to the last `nvmlShutdown`; holding it exclusively means that the driver is being replaced |
//! | `libnvidia-standin.so.<version>` beside the library | in place of `etc/standin`, where there is none: `lock/nvml.lock`, which holds the text of `gpus.json` |
//! | `dev/nvidiactl` | opened at `nvmlInit`, as the real library does; being allowed to is what counts |
//!
//! It answers with the inventory, what is known of each [`Model`], how the GPUs are connected, MIG, the state that `gpus.json`
//! gives, the events and the versions. Each query for a part of the state that is not given answers
//! `NVML_ERROR_NOT_SUPPORTED`, and so does every other function of NVML: `functions.txt` lists them all.
//!
//! # `gpus.json`
//!
//! ```json
//! {
//!   "cuda": "13.1",
//!   "hang": false, "crash": false, "slowMillis": 0, "initError": null,
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
//! Faults are live: what is written into the file holds from the next call on. `hang` blocks every call, `slowMillis` makes
//! each take longer, `crash` ends the process, `initError` is `nvmlInit`'s return code. Of a device, `error` is the return
//! code of everything that is asked of it, `xids` are delivered to those who had registered before, and `readings` are what
//! it tells of itself: see [`Readings`]. One with `mig`, be it empty, can be divided: see [`Mig`]. One without, of a model that
//! has MIG, says that it is off, and cannot be divided.

mod abi;
mod devices;
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

pub use events::Event;
pub use library::Library;
pub use machine::{Device, Machine, PciAddress, Xid};
pub use mig::{Client, Division, Engines, Instance, Mig, Profile};
pub use model::{MigParts, Model, NvLinks};
pub use modes::Modes;
pub use readings::Readings;
pub use status::Status;
pub use topology::{End, Level, NvLink, Peer, Way};
