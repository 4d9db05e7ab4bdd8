//! What the schema does not contain: values of fields that have a meaning, the fields that they need beside them, and the nodes
//! on which their effect is visible.

use serde_json::{Value, json};

use super::fields::merge;

/// What is known of a field beside its schema.
#[derive(Clone, Copy)]
pub struct Row {
    /// The end of the field's path.
    at: &'static str,
    /// Values, if they do not follow from the type.
    pub values: &'static [&'static str],
    /// Fields that the field needs, relative to the object in which `at` begins.
    with: &'static str,
    pub nodes: &'static [&'static str],
    /// Whether a rule requires the field.
    pub required: bool,
    /// Why no effect can be observed.
    pub no_effect: Option<&'static str>,
    /// Why the state without the field differs from that before it was set.
    pub stays: Option<&'static str>,
}

const ANY: Row = Row { at: "", values: &[], with: "", nodes: &["cdi"], required: false, no_effect: None, stays: None };
const ON_OLD_RUNTIME: Row = Row { nodes: &["runtime"], ..ANY };
const UNKNOWN_MODEL: Row = Row { nodes: &["unknown"], ..ANY };
const UNHEALTHY: Row = Row { nodes: &["unhealthy"], ..ANY };
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const FROM_RUN_FILE: &str = "{driver: {source: RunFile, version: 570.211.01, runFile: {sha256: 0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}, image: {repository: own/run-file, tag: a}}}";
const SHA256: &str = "0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const PINNED: &str = "{driver: {version: 580.173.02}}";
const INSTALLED: &str = "the installer leaves the driver on the host, and Auto uses a driver of the host";
const LAYOUT: &str = "{mig: {strategy: Mixed, layout: [{profiles: [{profile: 1g.20gb, count: 1}]}]}}";
const EVICTS: &str = "{rollout: {gpuPods: {mode: Evict}}}";
const LIFTED: &str = "a startup taint that has been removed is not set again";
const BY_CLAIMS: &str = "{allocation: {mode: DRA}}";
const TESTED: &str = "{readiness: {validation: {mode: OnInstall}}}";

/// Parts of a policy without an observable effect in a settled fleet, and why.
const LATER: [(&str, &str); 2] = [
    ("rollout.windows", "it decides when updates begin; see windows.rs"),
    ("rollout", "it acts during updates; see budgets.rs, canary.rs and eviction.rs"),
];

/// What all fields of a part of a policy need, in the object in which the part begins.
const PARTS: [(&[&str], &str); 1] = [(&["allocation", "dra"], BY_CLAIMS)];

/// The row with the longest path that matches a field applies; if there are several of them, each one applies.
const ROWS: &[Row] = &[
    Row { at: "env.[].name", values: &["A", "B"], ..ANY },
    Row { at: "image.digest", values: &[DIGEST], ..ANY },
    Row { at: "deletionPolicy", no_effect: Some("it acts when nodes leave the policy; see leaving.rs"), ..ANY },
    Row { at: "priority", no_effect: Some("it decides between several policies; see mixed.rs"), ..ANY },
    Row { at: "driver.image.digest", values: &[DIGEST], with: PINNED, ..ANY },
    Row { at: "driver.image.tag", with: PINNED, ..ANY },
    Row {
        at: "driver.cloudInstaller.channel",
        values: &["Latest"],
        with: "{driver: {source: CloudInstaller}}",
        nodes: &["cos"],
        ..ANY
    },
    Row {
        at: "driver.runFile.sha256",
        values: &[SHA256, "1f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],
        with: "{driver: {source: RunFile, version: 570.211.01, image: {repository: own/run-file, tag: a}}}",
        required: true,
        ..ANY
    },
    Row { at: "kernelModules.keys.[]", values: &["nvidia.conf", "nvidia-uvm.conf"], ..ANY },
    Row { at: "driver.runFile.installDir", values: &["/opt/some/nvidia"], with: FROM_RUN_FILE, ..ANY },
    Row {
        at: "driver.preinstalled.installDir",
        values: &["/opt/some/driver"],
        with: "{driver: {source: Preinstalled}}",
        stays: Some(INSTALLED),
        ..ANY
    },
    Row { at: "driver.container.kernelModule", nodes: &["cdi", "docker"], ..ANY },
    Row { at: "driver.container.precompiled", nodes: &["runtime"], ..ANY },
    Row {
        at: "driver.source",
        values: &["Auto", "Container", "CloudInstaller"],
        nodes: &["cdi", "cos", "gke-ubuntu"],
        ..ANY
    },
    Row {
        at: "driver.source",
        values: &["Preinstalled"],
        nodes: &["cdi", "gke-ubuntu"],
        stays: Some(INSTALLED),
        ..ANY
    },
    Row {
        at: "driver.runFile.url",
        values: &["https://mirror.example.com/NVIDIA-Linux-x86_64-570.211.01.run"],
        with: FROM_RUN_FILE,
        ..ANY
    },
    Row { at: "driver.version", values: &["580.173.02"], ..ANY },
    Row { at: "toolkit.distribution", nodes: &["runtime", "k3s"], ..ANY },
    Row { at: "toolkit.hostPaths.config", values: &["/etc/some/config.toml"], ..ON_OLD_RUNTIME },
    Row { at: "toolkit.hostPaths.dropIn", values: &["/etc/some/99-nvidia.toml"], ..ON_OLD_RUNTIME },
    Row { at: "toolkit.hostPaths.socket", values: &["/run/some/containerd.sock"], ..ON_OLD_RUNTIME },
    Row {
        at: "toolkit.hostPaths.nriSocket",
        values: &["/run/some/nri.sock"],
        with: "{toolkit: {injection: NRI}}",
        ..ANY
    },
    Row { at: "toolkit.injection", nodes: &["cdi", "docker"], ..ANY },
    Row { at: "toolkit.installDir", values: &["/opt/some/nvidia"], ..ANY },
    Row { at: "toolkit.runtime", nodes: &["runtime", "docker"], ..ANY },
    Row { at: "toolkit.runtimeClass", ..ON_OLD_RUNTIME },
    Row { at: "toolkit.setAsDefault", nodes: &["runtime", "docker"], ..ANY },
    Row { at: "devicePlugin.google.metricsPort", nodes: &["cos"], ..ANY },
    Row { at: "devicePlugin.flavor", nodes: &["cdi", "cos"], ..ANY },
    Row { at: "mig.mode", values: &["Disabled"], ..ANY },
    Row {
        at: "mig.mode",
        values: &["Layout"],
        with: LAYOUT,
        no_effect: Some("it is the default with a layout"),
        ..ANY
    },
    Row { at: "mig.mode", values: &["Unmanaged"], no_effect: Some("it is the default without a layout"), ..ANY },
    Row { at: "mig.layout.[].devices.[]", values: &["0", "1"], with: LAYOUT, ..ANY },
    Row {
        at: "mig.layout.[].profiles.[].profile",
        values: &["1g.10gb", "2g.20gb"],
        with: "{mig: {strategy: Mixed}}",
        ..ANY
    },
    Row { at: "mig.layout.[].profiles.[].count", values: &["1", "2"], with: "{mig: {strategy: Mixed}}", ..ANY },
    Row {
        at: "devicePlugin.external.resourceName",
        values: &["example.com/gpu"],
        with: "{devicePlugin: {flavor: External}}",
        nodes: &["third-party"],
        ..ANY
    },
    Row { at: "foreignStack", nodes: &["third-party"], ..ANY },
    Row { at: "pools.[].foreignStack", values: &["TakeOver"], nodes: &["third-party"], ..ANY },
    Row { at: "pools.[].gpusPerNode", values: &["1", "3"], ..ANY },
    Row { at: "pools.[].name", values: &["p", "q"], ..ANY },
    Row { at: "tolerations.[].key", with: "{tolerations: [{operator: Exists}]}", ..ANY },
    Row { at: "tolerations.[].operator", values: &["Exists"], with: "{tolerations: [{key: a}]}", ..ANY },
    Row { at: "tolerations.[].effect", with: "{tolerations: [{key: a}]}", ..ANY },
    Row { at: "tolerations.[].value", with: "{tolerations: [{key: a}]}", ..ANY },
    Row { at: "tolerations.[].tolerationSeconds", with: "{tolerations: [{key: a, effect: NoExecute}]}", ..ANY },
    Row { at: "health.interval", values: &["45s"], ..ANY },
    Row { at: "health.minHealthyGPUs", values: &["100%", "1", "50%"], ..UNHEALTHY },
    Row { at: "onUnhealthy.taint.effect", with: "{onUnhealthy: {taint: {}}}", ..UNHEALTHY },
    Row { at: "onUnhealthy.taint.key", values: &["example.com/unhealthy"], ..UNHEALTHY },
    Row { at: "models.[].name", values: &["custom", "other"], ..UNKNOWN_MODEL },
    Row { at: "models.[].pciIDs.[]", values: &["fff1", "fff2"], ..UNKNOWN_MODEL },
    Row {
        at: "models.[].architecture",
        values: &["Hopper", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Blackwell"],
        with: "{defaults: {driver: {version: 470.256.02}}}",
        ..UNKNOWN_MODEL
    },
    Row { at: "models.[].driver.firstBranch", values: &["999"], ..UNKNOWN_MODEL },
    Row { at: "models.[].driver.lastBranch", values: &["580"], ..UNKNOWN_MODEL },
    Row {
        at: "models.[].memoryMiB",
        values: &["8192"],
        with: "{models: [{name: nvidia-custom-4gb, pciIDs: [fff2]}]}",
        nodes: &["named-by-cloud"],
        ..ANY
    },
    Row { at: "models.[].modules", values: &["ProprietaryOnly"], ..UNKNOWN_MODEL },
    Row {
        at: "models.[].modules",
        values: &["Either", "OpenOnly"],
        with: "{models: [{architecture: Pascal}]}",
        ..UNKNOWN_MODEL
    },
    Row { at: "nodeLabels.[].key", values: &["example.com/a", "example.com/b"], ..ANY },
    Row { at: "matchExpressions.[].key", values: &["zone", "room"], ..ANY },
    Row { at: "matchExpressions.[].operator", values: &["Exists", "DoesNotExist"], ..ANY },
    Row {
        at: "matchExpressions.[].operator",
        values: &["In", "NotIn"],
        with: "{matchExpressions: [{values: [a]}]}",
        ..ANY
    },
    Row {
        at: "matchExpressions.[].values.[]",
        values: &["a", "b"],
        with: "{matchExpressions: [{operator: In}]}",
        required: true,
        ..ANY
    },
    Row { at: "proxy.httpProxy", values: &["http://proxy.example.com:3128"], ..ANY },
    Row { at: "proxy.httpsProxy", values: &["http://proxy.example.com:3128"], ..ANY },
    Row { at: "rollout.canary.nodes", values: &["1", "25%"], ..ANY },
    Row { at: "rollout.canary.soak", values: &["1h", "20s"], with: "{rollout: {canary: {nodes: 1}}}", ..ANY },
    Row { at: "rollout.gpuPods.timeout", values: &["4h", "20s"], with: "{rollout: {gpuPods: {mode: Await}}}", ..ANY },
    Row { at: "rollout.gpuPods.barePods", with: EVICTS, ..ANY },
    Row { at: "rollout.gpuPods.emptyDir", with: EVICTS, ..ANY },
    Row { at: "rollout.gpuPods.waitForJobs.matchLabels.{}", values: &["a", "b"], with: EVICTS, ..ANY },
    Row { at: "rollout.gpuPods.waitForJobs.matchExpressions.[].key", values: &["a", "b"], with: EVICTS, ..ANY },
    Row {
        at: "rollout.gpuPods.waitForJobs.matchExpressions.[].operator",
        values: &["Exists", "DoesNotExist"],
        with: EVICTS,
        ..ANY
    },
    Row {
        at: "rollout.gpuPods.waitForJobs.matchExpressions.[].values.[]",
        values: &["a", "b"],
        with: "{rollout: {gpuPods: {mode: Evict, waitForJobs: {matchExpressions: [{operator: In}]}}}}",
        required: true,
        ..ANY
    },
    Row { at: "rollout.maxUnavailable", values: &["25%", "2"], ..ANY },
    Row { at: "rollout.windows.[].duration", values: &["6h", "90m", "168h"], ..ANY },
    Row { at: "rollout.windows.[].start", values: &["'22:00'", "'00:00'", "'23:59'"], ..ANY },
    Row { at: "rollout.windows.[].timeZone", values: &["Europe/Berlin", "UTC"], ..ANY },
    Row { at: "readiness.minReadyNodes", values: &["100%", "0", "0%"], ..UNHEALTHY },
    Row {
        at: "readiness.startupTaint.key",
        values: &["example.com/startup"],
        nodes: &["starting"],
        stays: Some(LIFTED),
        ..ANY
    },
    Row { at: "readiness.progressDeadline", values: &["30m", "40s"], nodes: &["waiting"], ..ANY },
    Row { at: "readiness.validation.mode", nodes: &["failing"], ..ANY },
    Row { at: "readiness.validation.image.repository", with: TESTED, nodes: &["failing"], ..ANY },
    Row { at: "readiness.validation.image.tag", with: TESTED, nodes: &["failing"], ..ANY },
    Row { at: "readiness.validation.image.digest", values: &[DIGEST], with: TESTED, nodes: &["failing"], ..ANY },
    Row {
        at: "readiness.validation.timeout",
        values: &["5m", "20s"],
        with: TESTED,
        no_effect: Some("it applies to tests that are started later"),
        ..ANY
    },
];

/// Returns the rows of a field.
pub fn rows(path: &[String]) -> Vec<Row> {
    let path = format!(".{}", path.join("."));
    let matches: Vec<_> = ROWS.iter().filter(|row| path.ends_with(&format!(".{}", row.at))).copied().collect();
    let longest = matches.iter().map(|row| row.at.len()).max();
    let mut rows: Vec<_> = matches.into_iter().filter(|row| Some(row.at.len()) == longest).collect();
    if rows.is_empty() {
        rows.push(ANY);
    }
    if let Some((_, why)) = LATER.iter().find(|(part, _)| path.contains(&format!(".{part}."))) {
        for row in &mut rows {
            row.no_effect = Some(why);
        }
    }
    rows
}

impl Row {
    /// Returns the fields that the field needs, as a spec.
    pub fn neighbours(&self, path: &[String]) -> Value {
        let of_part = PARTS.iter().find_map(|(part, with)| {
            let begins = path.windows(part.len()).position(|names| names == *part)?;
            Some(within(&path[..begins], with))
        });
        let mut spec = of_part.unwrap_or_else(|| json!({}));
        if !self.with.is_empty() {
            merge(&mut spec, within(&path[..path.len() - self.at.split('.').count()], self.with));
        }
        spec
    }
}

/// Returns these fields as a spec, in the object at a path.
fn within(path: &[String], with: &str) -> Value {
    let with = serde_yaml::from_str(with).expect("YAML");
    let outer = path.iter().enumerate().rev();
    outer.fold(with, |inner, (at, name)| match name.as_str() {
        "[]" => json!([inner]),
        "{}" => json!({key(&path[..at]): inner}),
        name => json!({name: inner}),
    })
}

/// Returns a key for the entries of a map.
pub fn key(map: &[String]) -> &'static str {
    match map.last().map(String::as_str) {
        Some("limits" | "requests") => "cpu",
        _ => "zone",
    }
}
