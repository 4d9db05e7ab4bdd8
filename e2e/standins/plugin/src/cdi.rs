//! The CDI specification, which lists the parts of a GPU for the container runtime.

use std::{fs, io, path::Path};

use serde_json::{Value, json};

use super::{config::Config, gpus::Gpu};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_lists_exactly_what_exists_on_the_node() {
        let here = tempfile::tempdir().unwrap();
        fs::create_dir_all(here.path().join(LIBRARIES)).unwrap();
        fs::write(here.path().join(LIBRARIES).join("libcuda.so.595.91.07"), "").unwrap();
        fs::create_dir_all(here.path().join("dev")).unwrap();
        fs::write(here.path().join("dev/nvidia-uvm"), "").unwrap();
        let config = Config {
            driver_root: "/run/nvidia/driver".into(),
            dev_root: "/run/nvidia/driver".into(),
            driver_root_here: here.path().into(),
            kubelet_socket: "unused".into(),
            cdi_root: here.path().join("cdi"),
            hook: Some("/toolkit/nvidia-cdi-hook".into()),
        };
        let gpus = [Gpu { uuid: "GPU-b".into(), minor: 7, profile: None, healthy: true }];
        write(&config, &gpus, "595.91.07").unwrap();

        let written: Value = serde_json::from_slice(&fs::read(config.cdi_root.join(FILE)).unwrap()).unwrap();
        assert_eq!(written["kind"], "k8s.device-plugin.nvidia.com/gpu");
        let device = &written["devices"][0];
        assert_eq!(device["name"], "GPU-b");
        let node = &device["containerEdits"]["deviceNodes"][0];
        assert_eq!(
            (node["path"].as_str(), node["hostPath"].as_str()),
            (Some("/dev/nvidia7"), Some("/run/nvidia/driver/dev/nvidia7"))
        );
        let paths = |nodes: &Value| -> Vec<String> {
            nodes.as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(paths(&written["containerEdits"]["deviceNodes"]), ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
        let mounts = written["containerEdits"]["mounts"].as_array().unwrap();
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0]["hostPath"], "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.595.91.07");
        assert_eq!(mounts[0]["containerPath"], "/usr/lib/x86_64-linux-gnu/libcuda.so.595.91.07");
        let link = &written["containerEdits"]["hooks"][0]["args"][3];
        assert_eq!(link, "libcuda.so.595.91.07::/usr/lib/x86_64-linux-gnu/libcuda.so.1");
        assert_eq!(fs::read_dir(&config.cdi_root).unwrap().count(), 1);
    }
}
