//! The stand-in for nvidia-smi: it lists the GPUs of its container, as reported by the driver's library in the container. With
//! `--loop=SECONDS` it lists them repeatedly and keeps the driver open; with `-c MODE` it sets the compute mode of the GPU
//! given by `-i UUID`, or of all GPUs.

use std::{env, fmt::Write, path::Path, process::ExitCode, thread::sleep, time::Duration};

use nvml_wrapper::{Device, Nvml, enum_wrappers::device::ComputeMode, error::NvmlError};
use standin_node::report;

/// The name under which programs load the library.
const LIBRARY: &str = "libnvidia-ml.so.1";

fn main() -> ExitCode {
    let pause = env::args().find_map(|arg| arg.strip_prefix("--loop=")?.parse().ok());
    let (done, failure) = match argument("-c") {
        Some(mode) => (set_compute_mode(&mode, argument("-i").as_deref()), "Unable to set the compute mode"),
        None => (show(pause.map(Duration::from_secs)), "Failed to initialize NVML"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{failure}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the value after an option.
fn argument(option: &str) -> Option<String> {
    env::args().skip_while(|arg| arg != option).nth(1)
}

fn open() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(LIBRARY.as_ref()).init()
}

fn set_compute_mode(mode: &str, of: Option<&str>) -> Result<(), NvmlError> {
    let nvml = open()?;
    let gpus: Vec<Device<'_>> = match of {
        Some(uuid) => vec![nvml.device_by_uuid(uuid)?],
        None => (0..nvml.device_count()?).map(|index| nvml.device_by_index(index)).collect::<Result<_, _>>()?,
    };
    let wanted = match mode {
        "0" | "DEFAULT" => ComputeMode::Default,
        "2" | "PROHIBITED" => ComputeMode::Prohibited,
        "3" | "EXCLUSIVE_PROCESS" => ComputeMode::ExclusiveProcess,
        _ => return Err(NvmlError::InvalidArg),
    };
    for mut gpu in gpus {
        gpu.set_compute_mode(wanted)?;
        println!("Set compute mode to {mode} for GPU {}.", gpu.pci_info()?.bus_id);
    }
    println!("All done.");
    Ok(())
}

/// Prints the GPUs once, or repeatedly with a pause.
fn show(pause: Option<Duration>) -> Result<(), NvmlError> {
    let nvml = open()?;
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
        // The real NVML lists only the container's GPUs; the stand-in library cannot know them.
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
