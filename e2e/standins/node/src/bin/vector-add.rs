//! The stand-in for NVIDIA's vectorAdd: succeeds if its container has a GPU and can open the device nodes that CUDA opens.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::ExitCode,
};

use standin_node::report;

const UVM: &str = "/dev/nvidia-uvm";
/// Only tools need it, so it may be missing.
const UVM_TOOLS: &str = "/dev/nvidia-uvm-tools";

fn main() -> ExitCode {
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    let gpus = devices.filter(|device| {
        let name = device.file_name();
        name.to_str().and_then(|name| name.strip_prefix("nvidia")).is_some_and(|number| number.parse::<u32>().is_ok())
    });
    if gpus.count() == 0 {
        report("Failed to allocate device vector A (error code no CUDA-capable device is detected)!");
        return ExitCode::FAILURE;
    }
    for device in [UVM, UVM_TOOLS] {
        if device == UVM_TOOLS && !Path::new(device).exists() {
            continue;
        }
        if let Err(error) = open(device) {
            report(&format!("Failed to allocate device vector A (error code unknown error)! {device}: {error}"));
            return ExitCode::FAILURE;
        }
        println!("opened {device}");
    }
    report("Test PASSED");
    ExitCode::SUCCESS
}

fn open(device: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(device)
}
