//! Machines with a working stand-in driver.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use cluster::standin::{Gpu, Standin};
use gpu_operator_crd::report::Report;
use serde_json::{Map, Value, json};
use test_support::host::Host;

use e2e::host::{bare, built, report};

const DRIVER: &str = "595.91.07";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// A name with all kinds of characters that are invalid in labels.
const PRODUCT_NAME: &str = "PowerEdge R750 (SKU=0A6B;ModelName=X)\n";

/// A MIG instance: NVML's id of its profile, and its first memory slice.
pub type Instance = (u32, u32);
const ONE_G: u32 = 19;
const THREE_G: u32 = 9;
/// The instances of a GPU with the maximum number of instances, and of a GPU with two profiles.
pub const SEVENTHS: [Instance; 7] =
    [(ONE_G, 0), (ONE_G, 1), (ONE_G, 2), (ONE_G, 3), (ONE_G, 4), (ONE_G, 5), (ONE_G, 6)];
pub const TWO_KINDS: [Instance; 4] = [(THREE_G, 0), (ONE_G, 4), (ONE_G, 5), (ONE_G, 6)];

/// A model: NVML's name, the PCI device id, the memory in MiB.
pub type Model = (&'static str, u16, u64);
pub const K80: Model = ("Tesla K80", 0x102d, 11_441);
pub const K620: Model = ("Quadro K620", 0x13bb, 2_000);
pub const P100: Model = ("Tesla P100-PCIE-16GB", 0x15f8, 16_280);
pub const V100: Model = ("Tesla V100-SXM2-16GB", 0x1db1, 16_160);
pub const T4: Model = ("Tesla T4", 0x1eb8, 15_360);
pub const A100: Model = ("NVIDIA A100-SXM4-80GB", 0x20b2, 81_920);
pub const H100: Model = ("NVIDIA H100 80GB HBM3", 0x2330, 81_559);
pub const L40S: Model = ("NVIDIA L40S", 0x26b9, 46_068);
pub const B200: Model = ("NVIDIA B200", 0x2901, 183_359);

/// GPUs of one kind, next to each other on the bus.
#[derive(Clone, Copy)]
pub struct Cards {
    pub count: u32,
    pub model: Model,
    /// The MIG instances of each GPU; `None` if MIG is off.
    pub divided: Option<&'static [Instance]>,
    /// The cluster and the clique of the fabric that the GPUs have joined; `None` for the default of their model.
    pub fabric: Option<(&'static str, u32)>,
}

pub const fn whole(count: u32, model: Model) -> Cards {
    Cards { count, model, divided: None, fabric: None }
}

pub const fn divided(count: u32, model: Model, into: &'static [Instance]) -> Cards {
    Cards { divided: Some(into), ..whole(count, model) }
}

pub const fn joined(count: u32, model: Model, cluster: &'static str, clique: u32) -> Cards {
    Cards { fabric: Some((cluster, clique)), ..whole(count, model) }
}

pub struct Machine(Host);

impl Machine {
    pub fn new(cards: &[Cards]) -> Self {
        let host = bare();
        host.load(DRIVER);
        host.write("sys/class/dmi/id/product_name", PRODUCT_NAME);
        for (path, text) in [("etc/standin/module/nvidia/version", DRIVER), ("dev/nvidiactl", "")] {
            host.write(path, text);
        }
        symlink("../../sys/bus/pci/devices", host.path("etc/standin/pci")).expect("a link");
        let libraries = host.path(LIBRARIES);
        fs::create_dir_all(&libraries).expect("a folder");
        let file = format!("libnvidia-ml.so.{DRIVER}");
        fs::copy(built("libstandin_nvml.so"), libraries.join(&file)).expect("copied");
        symlink(file, libraries.join("libnvidia-ml.so.1")).expect("a link");
        let (gpus, division) = gpus(cards);
        Standin::new(host.path("etc/standin")).plug(&gpus).expect("plugged");
        host.write("etc/standin/mig.json", &Value::Object(division).to_string());
        Self(host)
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        self.0.write(path, text);
    }

    /// Returns the folder of the driver's libraries.
    pub fn libraries(&self) -> PathBuf {
        self.path(LIBRARIES)
    }

    pub fn sysfs(&self) -> PathBuf {
        self.path("sys")
    }

    /// Turns its first GPU into a virtual GPU, by the PCI capability that only virtual GPUs have. It contains the
    /// version and the branch of the hypervisor's driver, in ten bytes each.
    pub fn virtualise(&self, version: &str, branch: &str) {
        const CAPABILITY: usize = 0x60;
        let path = self.path("sys/bus/pci/devices/0000:06:00.0/config");
        let mut config = fs::read(&path).expect("a configuration");
        // The status bit for a list of capabilities, and the offset of the first one.
        config[0x06] = 0x10;
        config[0x34] = u8::try_from(CAPABILITY).expect("a byte");
        // Kind, next capability, length, signature, and one record.
        let text = format!("\x09\0\x1bVF\0\x16{version:\0<10}{branch:\0<10}");
        config[CAPABILITY..CAPABILITY + text.len()].copy_from_slice(text.as_bytes());
        fs::write(path, config).expect("written");
    }

    /// Returns the report of a probe on this machine.
    pub fn report(&self) -> Report {
        serde_json::from_value(report(&self.0)).expect("a report")
    }
}

/// Returns the GPUs, and the MIG state of those in MIG mode, by PCI address.
fn gpus(cards: &[Cards]) -> (Vec<Gpu>, Map<String, Value>) {
    let (mut gpus, mut division) = (Vec::new(), Map::new());
    for Cards { count, model: (name, id, memory_mib), divided, fabric } in cards {
        for mut gpu in Gpu::several(*count, name, *id, *memory_mib) {
            gpu.minor = u32::try_from(gpus.len()).expect("few GPUs");
            gpu.pci_address = format!("0000:{:02x}:00.0", 6 + gpu.minor);
            gpu.uuid = format!("GPU-00000000-0000-4000-8000-{:012x}", gpu.minor);
            if let Some((cluster, clique)) = fabric {
                let fabric = json!({"state": 3, "health": 1, "cluster": cluster, "clique": clique});
                gpu.state.insert("readings".into(), json!({"fabric": fabric}));
            }
            if let Some(instances) = divided {
                gpu.state.insert("mig".into(), json!({}));
                division.insert(gpu.pci_address.clone(), divided_into(instances));
            }
            gpus.push(gpu);
        }
    }
    (gpus, division)
}

fn divided_into(instances: &[Instance]) -> Value {
    let instance = |(&(profile, start), id): (&Instance, u32)| json!({"id": id, "profile": profile, "start": start, "compute": true});
    let instances: Vec<Value> = instances.iter().zip(1..).map(instance).collect();
    json!({"enabled": true, "pending": true, "instances": instances})
}
