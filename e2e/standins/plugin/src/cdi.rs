//! The CDI specification, which lists the parts of a GPU for the container runtime.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

use super::{gpus::Gpu, offer::Config};

/// The vendor and class of the devices; NVIDIA's plugin uses the same.
const KIND: &str = "k8s.device-plugin.nvidia.com/gpu";
const FILE: &str = "k8s.device-plugin.nvidia.com-gpu.json";
/// The folder of the libraries in a driver root and in containers.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The path of nvidia-smi in a driver root and in containers.
const PROGRAM: &str = "usr/bin/nvidia-smi";
/// The folder in which the stand-in of the driver's library finds what a real one asks the kernel for.
const STANDIN: &str = "etc/standin";

/// Device nodes that every GPU needs besides the control device. A driver's container does not create them.
const OPTIONAL_NODES: [&str; 3] = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// Returns the fully qualified name of the CDI device for this GPU.
pub(super) fn name(uuid: &str) -> String {
    format!("{KIND}={uuid}")
}

/// Writes the specification in one step.
pub(super) fn write(config: &Config, gpus: &[Gpu], driver: &str) -> io::Result<()> {
    fs::create_dir_all(&config.cdi_root)?;
    // The runtime reads only files whose names end in .json or .yaml.
    let unfinished = config.cdi_root.join(format!("{FILE}.new"));
    fs::write(&unfinished, format!("{:#}\n", specification(config, gpus, driver)))?;
    fs::rename(unfinished, config.cdi_root.join(FILE))
}

fn specification(config: &Config, gpus: &[Gpu], driver: &str) -> Value {
    let node = |name: &str| {
        let on_the_node = config.dev_root.join("dev").join(name);
        json!({ "path": format!("/dev/{name}"), "hostPath": on_the_node, "type": "c", "permissions": "rw" })
    };
    let devices: Vec<Value> = gpus
        .iter()
        .map(|gpu| json!({ "name": gpu.uuid, "containerEdits": { "deviceNodes": [node(&format!("nvidia{}", gpu.minor))] } }))
        .collect();

    let present = |name: &&str| config.driver_root_here.join(LIBRARIES).join(format!("{name}.{driver}")).exists();
    let libraries: Vec<&str> = ["libcuda.so", "libnvidia-ml.so"].into_iter().filter(present).collect();
    let mount = |path: &Path| {
        json!({
            "hostPath": config.driver_root.join(path),
            "containerPath": Path::new("/").join(path),
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        })
    };
    let library = |name: &&str| mount(&Path::new(LIBRARIES).join(format!("{name}.{driver}")));
    let mut mounts: Vec<Value> = libraries.iter().map(library).collect();

    let programs = [PROGRAM, STANDIN].into_iter().filter(|path| config.driver_root_here.join(path).exists());
    mounts.extend(programs.map(|path| mount(Path::new(path))));

    // Silently left out if it does not exist yet, as by NVIDIA's plugin.
    let there = |name: &&str| config.dev_here().join(name).exists();
    let nodes: Vec<Value> =
        ["nvidiactl"].into_iter().chain(OPTIONAL_NODES.into_iter().filter(there)).map(node).collect();
    let mut edits = json!({ "deviceNodes": nodes, "mounts": mounts });
    if let Some(hook) = config.hook.as_ref().filter(|_| !libraries.is_empty()) {
        let links =
            libraries.iter().flat_map(|name| ["--link".into(), format!("{name}.{driver}::/{LIBRARIES}/{name}.1")]);
        let args: Vec<String> = ["nvidia-cdi-hook".into(), "create-symlinks".into()].into_iter().chain(links).collect();
        // Programs load the libraries by these names. If the toolkit is missing, the container fails, as it should.
        edits["hooks"] = json!([{ "hookName": "createContainer", "path": hook, "args": args }]);
    }
    json!({ "cdiVersion": "0.5.0", "kind": KIND, "devices": devices, "containerEdits": edits })
}
