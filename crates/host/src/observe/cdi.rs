//! The CDI specification of NVIDIA's device plugin. The plugin writes it when it starts, with the device nodes that exist then, and a
//! container gets only the nodes that the specification lists.

use gpu_operator_crd::report::CDI_SPECS;

use crate::root::HostRoot;

/// The vendor of the plugin's specification, with which the file's name begins.
const PLUGIN: &str = "k8s.device-plugin.nvidia.com";
/// More than the specification of sixteen GPUs with all their MIG devices has.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// The nodes that every CUDA program opens and that the plugin lists only if they exist.
const NEEDED: [&str; 2] = ["nvidia-uvm", "nvidia-uvm-tools"];

/// Returns the device nodes that CUDA programs need and the specification lacks; none if there is no specification.
pub fn unlisted(host: &HostRoot) -> Vec<String> {
    let names = host.names(CDI_SPECS).unwrap_or_default();
    let files = names.iter().filter(|name| name.starts_with(PLUGIN));
    let texts: Vec<String> = files
        .filter_map(|name| host.bytes(format!("{CDI_SPECS}/{name}"), MAX_BYTES).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect();
    let lists = |text: &str, name: &str| {
        // The name of one node begins with that of the other.
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-');
        text.split(&format!("/dev/{name}")).skip(1).any(ends)
    };
    let lacks = |name: &&str| !texts.is_empty() && !texts.iter().any(|text| lists(text, name));
    NEEDED.into_iter().filter(lacks).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_plugins_specification_decides() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostRoot::new(folder.path());
        let cdi = folder.path().join("var/run/cdi");
        fs::create_dir_all(&cdi).unwrap();
        let write = |name: &str, nodes: &[&str]| {
            let nodes: Vec<_> = nodes.iter().map(|node| format!(r#"{{"path":"/dev/{node}"}}"#)).collect();
            let text = format!(r#"{{"containerEdits":{{"deviceNodes":[{}]}}}}"#, nodes.join(","));
            fs::write(cdi.join(name), text).unwrap();
        };
        let plugin = "k8s.device-plugin.nvidia.com-gpu.json";
        // Another program's specification.
        write("nvidia.yaml", &["nvidiactl"]);
        assert!(unlisted(&host).is_empty(), "no specification of the plugin");
        write(plugin, &["nvidia0", "nvidiactl"]);
        assert_eq!(unlisted(&host), ["nvidia-uvm", "nvidia-uvm-tools"]);
        write(plugin, &["nvidiactl", "nvidia-uvm-tools"]);
        assert_eq!(unlisted(&host), ["nvidia-uvm"]);
        write(plugin, &["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]);
        assert!(unlisted(&host).is_empty());
    }
}
