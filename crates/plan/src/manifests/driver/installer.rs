//! Installers of drivers on the host: Google's, which are preloaded on GKE's nodes, and NVIDIA's `.run` file. The installer is an init
//! container, and the pod stays to show its success. It detects what is already installed, and keeps a cache in its install folder.

use k8s_openapi::api::core::v1::{Container, EnvVar, SecurityContext, Volume, VolumeMount};

use crate::{
    container_names::{GUARD, INSTALLER, UNLOAD_NOUVEAU},
    desired::driver::DriverChoice,
    manifests::pod::{
        HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container, root_with,
    },
    settings::Settings,
};

const INSTALL_DIR_IN_CONTAINER: &str = "/usr/local/nvidia";
const ROOT_IN_CONTAINER: &str = "/root";

struct Installer<'a> {
    /// Or its branch, if known before the installation.
    version: Option<&'a str>,
    /// On the host.
    install_dir: &'a str,
    /// In addition to the paths.
    env: Vec<EnvVar>,
    /// If not the image's own.
    command: Option<Vec<String>>,
    args: Vec<String>,
    /// Volume, path on the host and path in the container.
    folders: Vec<(&'static str, String, &'static str)>,
    /// In no registry.
    preloaded: bool,
    host: HostNamespaces,
    /// Google's systems do not include nouveau.
    unloads_nouveau: bool,
}

fn installer_pod(input: &PodInput<'_>, installer: Installer<'_>) -> PodParts {
    let Installer { version, install_dir, env: more, command, args, folders, preloaded, host, unloads_nouveau } =
        installer;
    let mut variables = vec![
        env(DriverChoice::INSTALL_DIR_VARIABLE, install_dir),
        env("NVIDIA_INSTALL_DIR_CONTAINER", INSTALL_DIR_IN_CONTAINER),
        env("ROOT_MOUNT_DIR", ROOT_IN_CONTAINER),
        // The runtime must not inject a driver into the container that installs it.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    variables.extend(more);
    let container = operand_container(input, INSTALLER, variables, args);
    let mut mounts: Vec<VolumeMount> = vec![
        mount("install", INSTALL_DIR_IN_CONTAINER, Mode::Writable),
        mount("dev", "/dev", Mode::Writable),
        mount("root", ROOT_IN_CONTAINER, Mode::Writable),
    ];
    mounts.extend(folders.iter().map(|(volume, _, inside)| mount(volume, inside, Mode::Writable)));
    let install = Container {
        command,
        image_pull_policy: if preloaded { Some("Never".to_owned()) } else { container.image_pull_policy.clone() },
        // Privileged: it loads kernel modules, creates device nodes and builds in the host's root.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..container
    };
    let mut volumes: Vec<Volume> = vec![
        host_path("sys", "/sys", None),
        host_path("install", install_dir, Some("DirectoryOrCreate")),
        host_path("dev", "/dev", None),
        host_path("root", "/", None),
    ];
    volumes.extend(folders.iter().map(|(volume, path, _)| host_path(volume, path, Some("DirectoryOrCreate"))));
    let unload = unloads_nouveau.then(|| unload_nouveau(input.settings));
    let init = [guard(input, version, install_dir)].into_iter().chain(unload).chain([install]).collect();
    PodParts { init, main: own_container(input.settings, "driver", &["hold"], vec![]), volumes, host, grace_seconds: 5 }
}

/// These installers keep a loaded module, so the guard only checks that it has the desired version. If the installer chooses the version, a
/// loaded driver counts as its own if the driver's libraries are in the install folder.
fn guard(input: &PodInput<'_>, version: Option<&str>, install_dir: &str) -> Container {
    let mut args = vec!["guard", "--host-root", "/host"];
    let mut mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    if let Some(version) = version {
        args.extend(["--version", version]);
    } else {
        args.extend(["--install-dir", install_dir]);
        mounts.push(mount("install", &format!("/host{install_dir}"), Mode::ReadOnly));
    }
    own_container(input.settings, GUARD, &args, mounts)
}

/// Runs Google's installer as Google's manifest does, unless the modules are in use: it would try to replace them. Then the folder is made
/// readable for pods that do not run as root. The shell and the program's path are from that manifest.
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

/// `flavour` is `default`, `latest` or a full version.
pub fn gke_cos_pod(
    input: &PodInput<'_>,
    flavour: &str,
    version: Option<&str>,
    install_dir: &str,
    preloaded: bool,
) -> PodParts {
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
    installer_pod(input, installer)
}

/// Google's own manifest sets no version.
pub fn gke_ubuntu_pod(input: &PodInput<'_>, version: Option<&str>, install_dir: &str, preloaded: bool) -> PodParts {
    let installer = Installer {
        version,
        install_dir,
        env: version.map(|version| env("NVIDIA_DRIVER_VERSION", version)).into_iter().collect(),
        command: None,
        args: Vec::new(),
        // The installer reads the kernel's build configuration there.
        folders: vec![("boot", "/boot".to_owned(), "/boot")],
        preloaded,
        host: HostNamespaces::None,
        unloads_nouveau: false,
    };
    installer_pod(input, installer)
}

pub fn run_file_pod(
    input: &PodInput<'_>,
    version: Option<&str>,
    url: &str,
    sha256: &str,
    install_dir: &str,
) -> PodParts {
    let mut environment = vec![env(DriverChoice::RUN_FILE_URL_VARIABLE, url), env("NVIDIA_DRIVER_SHA256", sha256)];
    environment.extend(version.map(|version| env("NVIDIA_DRIVER_VERSION", version)));
    let installer = Installer {
        version,
        install_dir,
        env: environment,
        command: None,
        args: Vec::new(),
        folders: Vec::new(),
        preloaded: false,
        host: HostNamespaces::None,
        unloads_nouveau: true,
    };
    installer_pod(input, installer)
}

/// Unloads nouveau, the kernel's own driver, if it is not in use, and otherwise waits with a message.
pub fn unload_nouveau(settings: &Settings) -> Container {
    let mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    Container {
        // Not privileged: the kernel requires only this capability to unload a module, with which the default seccomp profiles of
        // the runtimes permit the call.
        security_context: Some(root_with(&["SYS_MODULE"])),
        ..own_container(settings, UNLOAD_NOUVEAU, &["unload-nouveau", "--host-root", "/host"], mounts)
    }
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
