//! CUDA's own statement about the node: `cuInit`, called in a short process of its own.
//!
//! ```text
//!  supervisor ───start──▶ child (a process of its own): libcuda.so
//!             ◀─CudaInit─
//! ```
//!
//! CUDA runs more of NVIDIA's code than NVML does, and as root it creates device nodes and starts `nvidia-modprobe`, which loads modules.
//! The child can do neither, so it finds the node as CUDA programs find it, and changes nothing there. Its behavior with GPUs is taken from
//! NVIDIA's documentation and not verified on hardware: tests use a stand-in, and NVIDIA's libraries without a GPU.

mod confinement;
mod library;

use std::io::{self, Write};

use gpu_operator_crd::report::CudaError;

use crate::nvml::{
    child::{ChildError, ChildOptions, tie_to_parent},
    protocol::CudaInit,
    trusted::LibraryRoot,
};

/// `CUDA_SUCCESS`.
const SUCCESS: u32 = 0;

/// `CUDA_ERROR_OUT_OF_MEMORY` and `CUDA_ERROR_OPERATING_SYSTEM`: a system call has failed, which other processes may be able to make.
const OF_THE_PROCESS: [u32; 2] = [2, 304];

/// Runs the child, which writes one line and ends.
pub fn run(options: &ChildOptions) -> Result<(), ChildError> {
    tie_to_parent(options.parent)?;
    let result = init(options).unwrap_or_else(CudaInit::Unknown);
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &result)?;
    output.write_all(b"\n")?;
    Ok(output.flush()?)
}

fn init(options: &ChildOptions) -> Result<CudaInit, String> {
    if let Some(root) = &options.chroot {
        confinement::bring_proc(root)
            .map_err(|error| format!("cannot mount /proc below {}: {error}", root.display()))?;
    }
    let root = LibraryRoot::open(&options.host_root, options.chroot.as_deref()).map_err(|error| error.to_string())?;
    let library = root.find(&options.library).map_err(|error| error.to_string())?;
    confinement::confine().map_err(|error| format!("cannot confine the process: {error}"))?;
    let (code, name) = library::init(&library.path).map_err(|error| error.to_string())?;
    Ok(match code {
        SUCCESS => CudaInit::Succeeded,
        code if OF_THE_PROCESS.contains(&code) => {
            CudaInit::Unknown(format!("cuInit fails in this process with {name}"))
        }
        code => CudaInit::Failed(CudaError { code, name }),
    })
}
