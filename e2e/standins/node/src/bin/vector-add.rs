//! The stand-in of NVIDIA's vectorAdd: passes where its container has been given a GPU.

use std::{fs, process::ExitCode};

use standin_node::report;

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
    report("Test PASSED");
    ExitCode::SUCCESS
}
