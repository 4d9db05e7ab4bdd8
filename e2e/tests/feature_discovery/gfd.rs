//! NVIDIA's GPU feature discovery, as it would run beside the operator's device plugin.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command, sync::LazyLock};

use gpu_operator_crd::{keys, policy::MigStrategy};
use gpu_operator_plan::world::ResourceLayout;
use serde_json::json;

use crate::machine::Machine;

/// Labels by their keys.
pub type Labels = BTreeMap<String, String>;

/// Has the program see a machine's sysfs in place of this one's; it becomes the process itself.
const OTHER_SYSFS: &str = "mount --bind \"$0\" /sys && exec \"$@\"";

fn program() -> PathBuf {
    // Tests ask at once.
    static FOLDER: LazyLock<PathBuf> =
        LazyLock::new(|| e2e::nvidia_plugin_programs().unwrap_or_else(|error| panic!("{error:#}")));
    FOLDER.join("gpu-feature-discovery")
}

/// The plugin's configuration, where GPUs are shared.
fn config(offer: &ResourceLayout) -> String {
    let kind = if offer.mps { "mps" } else { "timeSlicing" };
    let mut resources = vec![json!({"name": keys::GPU_RESOURCE, "replicas": offer.replicas})];
    if offer.mig == MigStrategy::Mixed {
        let of = |profile| json!({"name": format!("{}mig-{profile}", keys::RESOURCES), "replicas": offer.replicas});
        resources.extend(["1g.10gb", "3g.40gb"].map(of));
    }
    json!({"version": "v1", "sharing": {kind: {"renameByDefault": offer.renamed, "resources": resources}}}).to_string()
}

/// What it writes of a machine on which GPUs are offered so, but for the time.
pub fn labels(machine: &Machine, offer: &ResourceLayout) -> Labels {
    let output = machine.path("features.d/gfd");
    machine.write("features.d/gfd", "");
    machine.write("etc/plugin.json", &config(offer));
    let mut gfd = Command::new("unshare");
    gfd.args(["--mount", "--propagation", "private", "sh", "-c", OTHER_SYSFS]).arg(machine.sysfs()).arg(program());
    gfd.arg("--oneshot")
        .env("LD_LIBRARY_PATH", machine.libraries())
        .env("GFD_OUTPUT_FILE", &output)
        .env("GFD_NO_TIMESTAMP", "true")
        .env("GFD_USE_NODE_FEATURE_API", "false")
        .env("MIG_STRATEGY", offer.mig.as_str());
    if offer.replicas > 1 {
        gfd.env("CONFIG_FILE", machine.path("etc/plugin.json"));
    }
    let ended = gfd.output().expect("unshare");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let text = fs::read_to_string(output).expect("its output");
    let labels = text.lines().map(|line| line.split_once('=').expect("key=value"));
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
