//! Google's installer for Container-Optimized OS, which is preloaded on GKE's nodes.

use crate::manifests::{
    driver::installer::{self, Installer},
    pod::{HostNamespaces, PodInput, PodParts, env},
};

/// Runs Google's installer with its arguments, as Google's manifest does, unless the modules are in use, because the
/// installer would try to replace them. Afterwards the folder is made readable for pods that do not run as root. That
/// the image has bash, and the program's path, are from that manifest.
const SCRIPT: &str = r#"used() {
  for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm; do
    [ -r "/sys/module/$module/refcnt" ] || continue
    holders=$(ls "/sys/module/$module/holders" | wc -l)
    [ "$(cat "/sys/module/$module/refcnt")" -le "$holders" ] || return 0
  done
  return 1
}
if used; then
  echo "NVIDIA driver $(cat /sys/module/nvidia/version) is loaded and in use; not installing"
else
  /cos-gpu-installer "$@" || exit 1
fi
chmod 755 "$NVIDIA_INSTALL_DIR_CONTAINER"
"#;

/// Returns the pod. `flavour` is `default`, `latest` or a full version.
pub fn pod(input: &PodInput<'_>, flavour: &str, version: Option<&str>, install_dir: &str, preloaded: bool) -> PodParts {
    let vulkan = format!("{install_dir}/vulkan/icd.d");
    let environment = vec![
        env("VULKAN_ICD_DIR_HOST", &vulkan),
        env("VULKAN_ICD_DIR_CONTAINER", "/etc/vulkan/icd.d"),
        env("COS_TOOLS_DIR_HOST", "/var/lib/cos-tools"),
        env("COS_TOOLS_DIR_CONTAINER", "/build/cos-tools"),
    ];
    let installer = Installer {
        version,
        install_dir,
        env: environment,
        command: Some(["bash", "-c", SCRIPT, "cos-gpu-installer"].map(str::to_owned).into()),
        args: vec!["install".to_owned(), format!("--version={flavour}")],
        folders: vec![
            ("vulkan", vulkan, "/etc/vulkan/icd.d"),
            ("cos-tools", "/var/lib/cos-tools".to_owned(), "/build/cos-tools"),
            ("nvidia-config", "/etc/nvidia".to_owned(), "/etc/nvidia"),
        ],
        preloaded,
        // It downloads before the node has a pod network, by the network of the node.
        host: HostNamespaces::PidAndNetwork,
        unloads_nouveau: false,
    };
    installer::pod(input, installer)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    use super::SCRIPT;

    #[test]
    fn googles_installer_runs_unless_modules_are_in_use() {
        let folder = std::env::temp_dir().join(format!("gke-cos-{}", std::process::id()));
        let path = |name: &str| folder.join(name);
        fs::create_dir_all(path("install")).unwrap();
        fs::write(path("installer"), format!("echo \"$@\" >> {}\n", path("log").display())).unwrap();
        fs::set_permissions(path("installer"), fs::Permissions::from_mode(0o755)).unwrap();
        let script = SCRIPT.replace("/sys/", &format!("{}/sys/", folder.display()));
        let script = script.replace("/cos-gpu-installer", &path("installer").display().to_string());
        // Modules with their use counts and holders, and how often the installer has run.
        let module = |name: &str, count: &str, holders: &[&str]| {
            for holder in holders {
                fs::create_dir_all(path(&format!("sys/module/{name}/holders/{holder}"))).unwrap();
            }
            fs::create_dir_all(path(&format!("sys/module/{name}/holders"))).unwrap();
            fs::write(path(&format!("sys/module/{name}/refcnt")), count).unwrap();
            fs::write(path(&format!("sys/module/{name}/version")), "580.173.02\n").unwrap();
        };
        let steps: [(&str, &dyn Fn(), usize); 4] = [
            ("nothing is loaded", &|| (), 1),
            (
                "loaded and idle",
                &|| {
                    module("nvidia", "1\n", &["nvidia_uvm"]);
                    module("nvidia_uvm", "0\n", &[]);
                },
                2,
            ),
            ("a program uses uvm", &|| module("nvidia_uvm", "1\n", &[]), 2),
            (
                "a program uses NVML",
                &|| {
                    module("nvidia_uvm", "0\n", &[]);
                    module("nvidia", "2\n", &["nvidia_uvm"]);
                },
                2,
            ),
        ];
        for (name, prepare, runs) in steps {
            prepare();
            fs::set_permissions(path("install"), fs::Permissions::from_mode(0o700)).unwrap();
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, "cos-gpu-installer", "install", "--version=default"]);
            assert!(shell.env("NVIDIA_INSTALL_DIR_CONTAINER", path("install")).status().unwrap().success(), "{name}");
            let log = fs::read_to_string(path("log")).unwrap();
            assert_eq!(log, "install --version=default\n".repeat(runs), "{name}");
            assert_eq!(fs::metadata(path("install")).unwrap().permissions().mode() & 0o777, 0o755, "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
