//! The stand-in of nvidia-smi: the GPUs that its container has been given, as the driver's library tells of them, which it
//! finds where a container is given the driver. With `--loop=SECONDS` it shows them again and again, and has the driver open
//! all the while.

use std::{env, fmt::Write, path::Path, process::ExitCode, thread::sleep, time::Duration};

use nvml_wrapper::{Nvml, error::NvmlError};
use standin_node::report;

/// By this name programs load the library, from where the loader finds it.
const LIBRARY: &str = "libnvidia-ml.so.1";

fn main() -> ExitCode {
    let pause = env::args().find_map(|arg| arg.strip_prefix("--loop=")?.parse().ok());
    match show(pause.map(Duration::from_secs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("Failed to initialize NVML: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Shows the GPUs once, or with a pause between for ever.
fn show(pause: Option<Duration>) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init()?;
    loop {
        print!("{}", table(&nvml)?);
        let Some(pause) = pause else { return Ok(()) };
        sleep(pause);
    }
}

fn table(nvml: &Nvml) -> Result<String, NvmlError> {
    let cuda = nvml.sys_cuda_driver_version()?;
    let mut table = format!(
        "Driver Version: {}  CUDA Version: {}.{}\n",
        nvml.sys_driver_version()?,
        nvml_wrapper::cuda_driver_version_major(cuda),
        nvml_wrapper::cuda_driver_version_minor(cuda)
    );
    let mut shown = 0;
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        // NVML itself leaves out those that a container was not given; the stand-in's cannot know.
        if !Path::new(&format!("/dev/nvidia{}", device.minor_number()?)).exists() {
            continue;
        }
        let memory = device.memory_info()?.total / (1 << 20);
        // Writing to a string cannot fail.
        let _ = writeln!(table, "GPU {shown}: {} {memory}MiB", device.name()?);
        shown += 1;
    }
    Ok(table)
}
