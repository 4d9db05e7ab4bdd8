//! The functions of NVML that real libraries lack, and the values that are then missing from the probe's answer.
//!
//! Without a GPU a real library returns nothing, so the stand-in answers, reduced to the functions of the real library.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use gpu_host::{
    nvml::{
        supervisor::{Limits, NvmlStatus, Supervisor, child_command},
        trusted::Target,
    },
    observe::driver::{CONTAINER_ROOT, all_libraries},
};
use serde_json::{Value, json};

use crate::support::{GPU, Host, built, host_with_gpu, library, real};

/// A function, and the values that are missing from the probe's answer without it: none if an older function replaces
/// it.
type Call = (&'static str, &'static [&'static str]);

/// The functions that the probe calls and the library lacks, by branch.
const LACKING: [(&str, &[Call]); 3] = [
    (
        "470",
        &[
            ("nvmlDeviceGetComputeRunningProcesses_v3", &["/readings/processes"]),
            ("nvmlDeviceGetCurrentClocksEventReasons", &[]),
            ("nvmlDeviceGetGpuFabricInfoV", &FABRIC),
            ("nvmlDeviceGetGpuInstanceProfileInfoV", &["/mig/state/enabled", "/mig/state/pending", "/mig/profiles"]),
            ("nvmlDeviceGetMarginTemperature", &["/readings/thermal/margin"]),
            ("nvmlDeviceGetMemoryInfo_v2", &[]),
            ("nvmlDeviceGetSramEccErrorStatus", &["/readings/ecc/sramThresholdExceeded"]),
        ],
    ),
    (
        "535",
        &[("nvmlDeviceGetGpuFabricInfoV", &FABRIC), ("nvmlDeviceGetMarginTemperature", &["/readings/thermal/margin"])],
    ),
    ("550", &[("nvmlDeviceGetMarginTemperature", &["/readings/thermal/margin"])]),
];
const FABRIC: [&str; 3] = ["/readings/fabric/health", "/readings/fabric/state", "/readings/fabric/status"];

/// Returns the symbols that a shared library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm, of binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names");
    // A version may follow the name after an @.
    let names = text.lines().filter_map(|line| line.rsplit(' ').next()?.split('@').next());
    names.map(str::to_owned).collect()
}

/// Returns a host with the stand-in as its driver and with a GPU that supports all values.
fn host(version: &str) -> Host {
    let host = host_with_gpu();
    let at = |path: &str| format!("{CONTAINER_ROOT}/{path}");
    host.write(&at("etc/standin/module/nvidia/version"), version);
    host.write(&at("etc/standin/lock/nvml.lock"), "");
    host.write(&at("dev/nvidiactl"), "");
    let gpu = json!({
        "pciAddress": GPU,
        "pciDeviceId": "0x233010DE",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-six",
        "memoryMiB": 81_559,
        "minor": 0,
        "mig": {},
        "readings": {
            "thermal": {"gpu": 41, "margin": 46},
            "clockReasons": 1,
            "ecc": {"enabled": true, "sramThresholdExceeded": false},
            "fabric": {"state": 3, "status": 0, "health": 1},
            "processes": 2,
        },
    });
    host.write(&at("etc/standin/gpus.json"), &json!({"cuda": "13.1", "devices": [gpu]}).to_string());
    host
}

/// Installs the stand-in as the host's library. If `kept` is given, only these of NVML's functions remain.
fn install(host: &Host, version: &str, kept: Option<&BTreeSet<String>>) {
    let mut bytes = fs::read(built("libstandin_nvml.so")).expect("the stand-in");
    let mut at = 0;
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(&bytes[at..at + length]);
        if name.starts_with("nvml") && kept.is_some_and(|kept| !kept.contains(&*name)) {
            // The renamed function cannot be found.
            bytes[at] = b'_';
        }
        at += length + 1;
    }
    let library = host.path(&format!("{CONTAINER_ROOT}/usr/lib64/libnvidia-ml.so.{version}"));
    fs::create_dir_all(library.parent().expect("a folder")).expect("folders");
    fs::write(library, bytes).expect("written");
}

/// Returns the path of each value that the probe's child reports for the GPU.
async fn answered(host: &Host, version: &str) -> BTreeSet<String> {
    let root = host.root();
    let libraries = all_libraries(&root, None).expect("read");
    let target = Target::choose(&root, false, "boot", Some(version), &libraries);
    let mut supervisor = Supervisor::new(child_command(built("nvml-probe")), Limits::default());
    let inventory = match supervisor.query_with_mig(target, &[GPU.to_owned()]).await {
        NvmlStatus::Answering(inventory) => inventory,
        other => panic!("NVML does not answer: {other:?}"),
    };
    supervisor.end().await.expect("its end");
    assert_eq!((inventory.gpus.len(), inventory.refused.len()), (1, 0), "{inventory:?}");
    let gpu = serde_json::to_value(&inventory.gpus[0]).expect("JSON");
    let mut paths = BTreeSet::new();
    leaves("", &gpu, &mut paths);
    paths
}

fn leaves(path: &str, value: &Value, paths: &mut BTreeSet<String>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&format!("{path}/{name}"), value, paths);
            }
        }
        Value::Array(list) if list.is_empty() => {}
        _ => {
            paths.insert(path.to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_library_lacks_only_what_its_functions_lack() {
    for (branch, lacking) in LACKING {
        let driver = real(branch);
        let has = exported(&driver.root.join(library(&driver).trim_start_matches('/')));
        for (call, _) in lacking {
            assert!(!has.contains(*call), "{branch} has {call}");
        }
        let host = host(&driver.version);
        install(&host, &driver.version, None);
        let all = answered(&host, &driver.version).await;
        install(&host, &driver.version, Some(&has));
        let reduced = answered(&host, &driver.version).await;
        let lost: BTreeSet<&str> = all.difference(&reduced).map(String::as_str).collect();
        let expected: BTreeSet<&str> = lacking.iter().flat_map(|(_, lost)| lost.iter().copied()).collect();
        assert_eq!(lost, expected, "{branch}");
    }
}
