//! NVIDIA's GPU feature discovery, configured as for the operator's device plugin.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command, sync::LazyLock};

use gpu_operator_crd::{keys, policy::MigStrategy};
use gpu_operator_plan::world::ResourceLayout;
use serde_json::json;

use crate::machine::Machine;

/// Labels by their keys.
pub type Labels = BTreeMap<String, String>;

/// A script that mounts another machine's sysfs over `/sys`, and then replaces itself with the program.
const OTHER_SYSFS: &str = "mount --bind \"$0\" /sys && exec \"$@\"";

fn program() -> PathBuf {
    // Tests call this at the same time.
    static PROGRAM: LazyLock<PathBuf> =
        LazyLock::new(|| harness::tools::feature_discovery().unwrap_or_else(|error| panic!("{error:#}")));
    PROGRAM.clone()
}

/// Returns the plugin's configuration file for shared GPUs.
fn config(offer: &ResourceLayout) -> String {
    let kind = if offer.mps { "mps" } else { "timeSlicing" };
    let mut resources = vec![json!({"name": keys::GPU_RESOURCE, "replicas": offer.replicas})];
    if offer.mig == MigStrategy::Mixed {
        let of = |profile| json!({"name": format!("{}mig-{profile}", keys::RESOURCES), "replicas": offer.replicas});
        resources.extend(["1g.10gb", "3g.40gb"].map(of));
    }
    json!({"version": "v1", "sharing": {kind: {"renameByDefault": offer.renamed, "resources": resources}}}).to_string()
}

/// Returns the labels that the program writes for a machine with this resource layout, without the timestamp.
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
