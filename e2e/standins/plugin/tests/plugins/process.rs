//! The device plugin's program, with the stand-in NVML library in a driver root.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::PathBuf,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use standin_nvml::shared_object;
use tokio::{
    process::{Child, Command},
    time,
};

use super::kubelet::{Kubelet, LIMIT, next, watch};

const VERSION: &str = "595.91.07";

/// A node with a loaded driver.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        let library = "root/usr/lib/x86_64-linux-gnu";
        for folder in ["plugins", "cdi", "root/dev", "root/etc/standin/lock", "root/etc/standin/module/nvidia", library]
        {
            fs::create_dir_all(node.path(folder)).unwrap();
        }
        for file in ["termination-log", "root/dev/nvidiactl", "root/etc/standin/lock/nvml.lock"] {
            fs::write(node.path(file), "").unwrap();
        }
        fs::write(node.path("root/etc/standin/module/nvidia/version"), VERSION).unwrap();
        let file = format!("libnvidia-ml.so.{VERSION}");
        fs::copy(shared_object().expect("the shared object is built with this test"), node.path(library).join(&file))
            .unwrap();
        symlink(file, node.path(library).join("libnvidia-ml.so.1")).unwrap();
        node.serve([true, true]);
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Sets the health of the two GPUs.
    fn serve(&self, healthy: [bool; 2]) {
        let gpu = |minor: u8, uuid: &str, healthy: bool| {
            format!(
                r#"{{"pciAddress":"0000:0{minor}:00.0","pciDeviceId":"0x1EB810DE","name":"Tesla T4","uuid":"{uuid}",
                "memoryMiB":15360,"minor":{minor},"healthy":{healthy}}}"#
            )
        };
        let gpus = [gpu(0, "GPU-a", healthy[0]), gpu(1, "GPU-b", healthy[1])].join(",");
        fs::write(self.path("new"), format!(r#"{{"devices":[{gpus}]}}"#)).unwrap();
        fs::rename(self.path("new"), self.path("root/etc/standin/gpus.json")).unwrap();
    }

    fn plugin(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_nvidia-device-plugin"))
            .env("KUBELET_SOCKET", self.path("plugins/kubelet.sock"))
            .env("DRIVER_ROOT_CTR_PATH", self.path("root"))
            .env("CDI_ROOT", self.path("cdi"))
            .env("TERMINATION_LOG", self.path("termination-log"))
            .env_remove("NVIDIA_CDI_HOOK_PATH")
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    fn driver_is_free(&self) -> bool {
        File::open(self.path("root/etc/standin/lock/nvml.lock")).unwrap().try_lock().is_ok()
    }
}

async fn exit_code(mut plugin: Child) -> Option<i32> {
    time::timeout(LIMIT, plugin.wait()).await.expect("in time").unwrap().code()
}

#[tokio::test]
async fn only_a_restart_of_the_plugin_ends_a_gpus_failure() {
    let node = Node::new();
    let plugin = node.plugin();
    let mut kubelet = Kubelet::start(&node.path("plugins"));
    let (_, mut client) = kubelet.plugin().await;
    let mut lists = watch(&mut client).await;
    assert_eq!(next(&mut lists).await, ["GPU-a Healthy", "GPU-b Healthy"]);
    assert!(node.path("cdi/k8s.device-plugin.nvidia.com-gpu.json").exists());
    assert!(!node.driver_is_free(), "the plugin keeps the driver in use");

    node.serve([true, false]);
    assert_eq!(next(&mut lists).await, ["GPU-a Healthy", "GPU-b Unhealthy"]);
    // The failure of the first GPU shows that the plugin has read the GPUs since the second one recovered.
    node.serve([false, true]);
    assert_eq!(next(&mut lists).await, ["GPU-a Unhealthy", "GPU-b Unhealthy"]);

    kill(Pid::from_raw(plugin.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(exit_code(plugin).await, Some(0));
    assert!(node.driver_is_free());
    assert!(!node.path("plugins/nvidia-gpu.sock").exists());

    node.serve([true, true]);
    let mut plugin = node.plugin();
    let (_, mut client) = kubelet.plugin().await;
    let mut lists = watch(&mut client).await;
    assert_eq!(next(&mut lists).await, ["GPU-a Healthy", "GPU-b Healthy"]);
    plugin.kill().await.unwrap();
}

#[tokio::test]
async fn a_plugin_without_a_driver_exits_and_reports_why() {
    let node = Node::new();
    fs::remove_dir_all(node.path("root/etc/standin/module/nvidia")).unwrap();
    assert_eq!(exit_code(node.plugin()).await, Some(1));
    let message = fs::read_to_string(node.path("termination-log")).unwrap();
    assert!(message.starts_with("could not initialise NVML"), "{message}");
}
