//! Chooses the source of a node's driver by the policy, the operating system and the drivers that the node has.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    policy::{Driver, DriverSource, KernelModule},
    reason::Reason,
    report::{CONTAINER_ROOT, GKE_ROOT, InstalledDriver, Report, VirtualGpus},
};

use crate::{
    catalogue::{Flavour, branch_of, common_module_flavour},
    desired::driver::{DriverChoice, Subject, precompiled_image, run_file_url, run_file_version},
    note::Fault,
    world::NodeFacts,
};

/// The label of every GKE node. Users copy the accelerator's label to other nodes, so that proves less.
pub const GKE_NODE_POOL: &str = "cloud.google.com/gke-nodepool";
/// The folder outside GKE.
const RUN_FILE_ROOT: &str = "/opt/nvidia";
/// The label that shows which driver GKE installs.
pub const GKE_DRIVER: &str = "cloud.google.com/gke-gpu-driver-version";

impl Subject<'_> {
    fn works(&self, root: &str) -> bool {
        let mut found = self.report.driver.installed.iter().filter(|installed| installed.root == root);
        found.any(|found| self.report.driver.loaded.as_ref() == Some(&found.version))
    }

    /// Returns the loaded version if its origin is unknown: the node has no driver of this operator, no libraries, and no driver's
    /// container since its boot. (A container that is gone may leave its module behind, but never its libraries.)
    fn unexplained(&self) -> Option<&str> {
        let driver = &self.report.driver;
        let explained = self.has_driver || driver.container_ran;
        let loaded = driver.loaded.as_deref().filter(|_| !explained)?;
        driver.installed.iter().all(|found| found.version != loaded).then_some(loaded)
    }

    fn google(&self) -> Option<DriverSource> {
        match self.report.os.id.as_str() {
            "cos" => Some(DriverSource::GkeCos),
            "ubuntu" if self.node.labels.contains_key(GKE_NODE_POOL) => Some(DriverSource::GkeUbuntu),
            _ => None,
        }
    }

    /// Without a known GPU no driver can be chosen: a newer GPU may need a newer driver, and an older one may not be supported.
    fn must_be_known(&self, write: &str) -> Result<(), Fault> {
        if !self.discovery.accelerators.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the node's GPU {} is not in the catalogue, so no driver can be chosen; add the GPU's PCI id and architecture to spec.models, or write {write}",
            self.discovery.model.as_deref().unwrap_or("of an unknown model"),
        );
        Err(Fault { reason: Reason::UnknownGpu, message })
    }

    fn supports(&self, version: &str) -> Result<(), Fault> {
        for accelerator in &self.discovery.accelerators {
            self.catalogue.supports(accelerator, version).map_err(|error| unsupported(&error))?;
        }
        Ok(())
    }

    fn recommended(&self) -> Result<String, Fault> {
        let release =
            self.catalogue.default_driver(&self.discovery.accelerators).map_err(|error| unsupported(&error))?;
        Ok(release.version.clone())
    }

    /// Returns the newest recommended version with an image for the node's system, or else without one.
    fn recommended_image(&self) -> Result<String, Fault> {
        let os = &self.report.os;
        let release = self.catalogue.default_driver_for(&self.discovery.accelerators, &os.id, &os.version_id);
        release.map_or_else(|| self.recommended(), |release| Ok(release.version.clone()))
    }

    /// Checks that an installer is made for the node's system.
    fn must_run(&self, driver: &Driver, os: &str, required: &str) -> Result<(), Fault> {
        let own = driver.operand.image.as_ref().is_some_and(|image| image.repository.is_some());
        if own || self.report.os.id == os {
            return Ok(());
        }
        let running = format!("{} {}", self.report.os.id, self.report.os.version_id);
        let running = Some(running.trim()).filter(|running| !running.is_empty()).unwrap_or("an unknown system");
        let message =
            format!("driver.source {required}; this node runs {running}. Set driver.source: Auto, or driver.image");
        Err(Fault { reason: Reason::NoDriverImageForOS, message })
    }
}

fn library_not_found(loaded: &str) -> Fault {
    let message = format!(
        "kernel module nvidia {loaded} is loaded, but libnvidia-ml.so.{loaded} was found neither by the host's dynamic linker (/etc/ld.so.cache, /etc/ld.so.conf) nor in the usual folders, {CONTAINER_ROOT} and {GKE_ROOT}: the driver is left unchanged; write driver: {{source: Preinstalled, installDir: FOLDER}} with the folder of the host that contains the libraries, or source: Container to replace the driver"
    );
    Fault { reason: Reason::DriverLibraryNotFound, message }
}

fn not_installed() -> Fault {
    let message =
        "no driver is installed on the host; install a driver, or write driver.source: Auto or Container".to_owned();
    Fault { reason: Reason::DriverNotInstalled, message }
}

/// Virtual GPUs need the guest driver of their hypervisor's release, which NVIDIA does not publish: the data centre driver rejects them.
fn of_guest(VirtualGpus { host_driver_version, host_driver_branch, .. }: &VirtualGpus) -> Fault {
    let number = |branch: &String| branch.trim_start_matches('r').split('_').next().unwrap_or_default().to_owned();
    let of_version = |version: &String| version.split('.').next().unwrap_or_default().to_owned();
    let branch = host_driver_branch.as_ref().map(number).or(host_driver_version.as_ref().map(of_version));
    let host = match (host_driver_version, host_driver_branch) {
        (Some(version), Some(branch)) => format!("whose driver is {version} ({branch})"),
        (Some(driver), None) | (None, Some(driver)) => format!("whose driver is {driver}"),
        (None, None) => "whose driver they do not report".to_owned(),
    };
    let wanted = branch.map_or_else(|| "of its release".to_owned(), |branch| format!("of branch {branch}"));
    let message = format!(
        "the node's GPUs are virtual GPUs of a hypervisor {host}: they need NVIDIA's vGPU guest driver {wanted}, and no data centre driver works; install the guest driver in the machine's image, or write driver.source: Container with driver.image, or RunFile with driver.url, of the guest driver"
    );
    Fault { reason: Reason::DriverNotInstalled, message }
}

fn unsupported(error: &dyn std::error::Error) -> Fault {
    Fault { reason: Reason::DriverUnsupported, message: error.to_string() }
}

pub fn installed_by_gke(node: &NodeFacts) -> Option<&str> {
    node.labels.get(GKE_DRIVER).map(Interned::as_str).filter(|which| ["default", "latest"].contains(which))
}

pub fn choose(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    match driver.source.unwrap_or_default() {
        DriverSource::Auto => auto(driver, on),
        // If the policy sets the folder, the probe must know the folder before it can find a driver there.
        DriverSource::Preinstalled if let Some(root) = &driver.install_dir => {
            Ok(DriverChoice::Preinstalled { root: root.clone() })
        }
        DriverSource::Preinstalled => {
            preinstalled(on, |_| true).ok_or_else(|| on.unexplained().map_or_else(not_installed, library_not_found))
        }
        source => from(source, driver, on, driver.install_dir.as_deref()),
    }
}

/// For a node on which a third-party DaemonSet installs the driver.
pub fn third_party(report: &Report) -> DriverChoice {
    let loaded = report.driver.installed.iter().find(|found| report.driver.loaded.as_ref() == Some(&found.version));
    let found = loaded.or(report.driver.installed.first());
    DriverChoice::Preinstalled { root: found.map_or_else(|| CONTAINER_ROOT.to_owned(), |found| found.root.clone()) }
}

fn from(source: DriverSource, driver: &Driver, on: &Subject<'_>, root: Option<&str>) -> Result<DriverChoice, Fault> {
    let of_gke = on.google().is_some() || on.node.labels.contains_key(GKE_NODE_POOL);
    let usual = if source == DriverSource::RunFile && !of_gke { RUN_FILE_ROOT } else { GKE_ROOT };
    let root = root.unwrap_or(usual).to_owned();
    if driver.source == Some(source) {
        installer_image(source, driver)?;
    }
    match source {
        DriverSource::GkeCos => gke_cos(driver, on, root),
        DriverSource::GkeUbuntu => gke_ubuntu(driver, on, root),
        DriverSource::RunFile => run_file(driver, on, root),
        DriverSource::Auto | DriverSource::Container | DriverSource::Preinstalled => container(driver, on),
    }
}

/// The tag of an installer's image cannot be derived from the driver's version, and does not apply to another repository.
fn installer_image(source: DriverSource, driver: &Driver) -> Result<(), Fault> {
    let installs = matches!(source, DriverSource::GkeCos | DriverSource::GkeUbuntu | DriverSource::RunFile);
    let Some(image) = driver.operand.image.as_ref().filter(|_| installs) else {
        return Ok(());
    };
    let message = match (&image.repository, image.tag.is_some() || image.digest.is_some()) {
        (Some(repository), false) => format!(
            "driver.image.repository {repository} has no tag or digest, and the tag of an installer's image cannot be derived from the driver's version; write driver.image.tag or driver.image.digest"
        ),
        (None, true) => "driver.image has a tag or digest but no repository, and installers have no default repository; write driver.image.repository, or remove driver.image".to_owned(),
        _ => return Ok(()),
    };
    Err(Fault { reason: Reason::NoDriverImageForOS, message })
}

/// Prefers a loaded driver that works, then a driver that GKE is about to install, then the installer for the system. For virtual GPUs there
/// is no such installer.
fn auto(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let google = on.google();
    let own_root = if google.is_some() { GKE_ROOT } else { CONTAINER_ROOT };
    // A working driver of this operator is not replaced because libraries were installed on the host.
    let own_works = on.has_driver && on.works(own_root);
    // Files of Google's installers do not count as a host driver until the driver is loaded without this operator's.
    let foreign = |installed: &InstalledDriver| {
        !own_works && (google.is_none() || installed.root != GKE_ROOT || !on.has_driver && on.works(GKE_ROOT))
    };
    match (preinstalled(on, foreign), on.unexplained()) {
        (Some(choice), _) => Ok(choice),
        (None, Some(loaded)) => Err(library_not_found(loaded)),
        (None, None) if let Some(guest) = on.report.vgpu.as_ref().filter(|vgpu| vgpu.present) => Err(of_guest(guest)),
        (None, None) => from(google.unwrap_or(DriverSource::Container), driver, on, None),
    }
}

/// Returns the host's own driver, or the one that GKE is about to install. One in the container's root was installed by a container.
fn preinstalled(on: &Subject<'_>, counts: impl Fn(&InstalledDriver) -> bool) -> Option<DriverChoice> {
    let mut installed = on.report.driver.installed.iter().filter(|installed| installed.root != CONTAINER_ROOT);
    let root = installed.find(|installed| counts(installed)).map(|installed| installed.root.as_str());
    let root = root.or_else(|| installed_by_gke(on.node).map(|_| GKE_ROOT))?;
    Some(DriverChoice::Preinstalled { root: root.to_owned() })
}

fn gke_cos(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    on.must_run(driver, "cos", "GkeCos requires Container-Optimized OS")?;
    if let Some(version) = &driver.version {
        on.supports(version)?;
    }
    let channel = || driver.channel.unwrap_or_default().as_str().to_owned();
    let flavour = driver.version.clone().unwrap_or_else(channel);
    Ok(DriverChoice::GkeCos { flavour, root })
}

fn gke_ubuntu(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    on.must_run(driver, "ubuntu", "GkeUbuntu requires Ubuntu")?;
    if let Some(version) = &driver.version {
        on.supports(version)?;
    }
    Ok(DriverChoice::GkeUbuntu { version: driver.version.clone(), root })
}

/// Any operating system is allowed: the user's installer is built for the nodes' system.
fn run_file(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    if driver.operand.image.as_ref().is_none_or(|image| image.repository.is_none()) {
        let message = "driver.source RunFile has no default image; write driver.image.repository and driver.image.tag of an installer built for the nodes' operating system, such as this project's images/run-file";
        return Err(Fault { reason: Reason::NoDriverImageForOS, message: message.into() });
    }
    // Admission does not see a pool's fields over those of the defaults.
    let Some(sha256) = driver.sha256.clone().filter(|_| driver.version.is_some() || driver.url.is_some()) else {
        let message = "source RunFile executes only a file of a known checksum; write driver.version or driver.url, and the file's checksum as sha256sum prints it in driver.sha256, at the same place";
        return Err(Fault { reason: Reason::ChecksumMissing, message: message.into() });
    };
    let url_version = driver.url.as_deref().and_then(run_file_version);
    let version = match &driver.version {
        Some(version) if url_version.is_some_and(|other| other != version) => {
            let message = format!(
                "driver.version is {version}, but driver.url is the address of {}; write the url of {version}, or remove driver.version",
                url_version.unwrap_or_default()
            );
            return Err(Fault { reason: Reason::DriverUnsupported, message });
        }
        version => version.as_deref().or(url_version).map(str::to_owned),
    };
    if driver.url.is_none() {
        on.must_be_known("driver.url")?;
    }
    if let Some(version) = &version {
        on.supports(version)?;
    }
    let public = || {
        let version = version.as_deref().unwrap_or_default();
        run_file_url(version, &on.discovery.accelerators, &on.node.arch)
    };
    let url = driver.url.clone().unwrap_or_else(public);
    Ok(DriverChoice::RunFile { version, url, sha256, root })
}

fn container(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    if driver.version.is_none() || driver.kernel_module.unwrap_or_default() == KernelModule::Auto {
        on.must_be_known("driver.version and driver.kernelModule: Open or Proprietary")?;
    }
    // A user's tag includes the operating system; the list of published images does not apply.
    let own_image = driver.operand.image.as_ref().is_some_and(|image| image.tag.is_some() || image.digest.is_some());
    let version = driver.version.clone().map_or_else(|| on.recommended_image(), Ok)?;
    on.supports(&version)?;
    // A node has one driver, so all of its GPUs use the same modules.
    let module = driver.kernel_module.unwrap_or_default();
    let flavour =
        common_module_flavour(&on.discovery.accelerators, &version, module).map_err(|error| unsupported(&error))?;
    let open = flavour == Flavour::Open;
    let (running, branch) = (&on.report.os, branch_of(&version).unwrap_or_default());
    let os = if own_image {
        running.id.clone()
    } else {
        on.catalogue
            .driver_image_os(&on.discovery.accelerators, &version, &running.id, &running.version_id)
            .map_err(|error| Fault { reason: Reason::NoDriverImageForOS, message: error.to_string() })?
    };
    let parameters = driver.config_maps.kernel_modules.clone();
    let kernel = precompiled_image(driver, on, branch, &os).filter(|image| Some(image.as_str()) != on.missing_image);
    Ok(match kernel {
        Some(_) => {
            let kernel = Some(on.node.kernel.to_string());
            DriverChoice::Container { version: branch.to_string(), os, open, kernel, parameters }
        }
        None => DriverChoice::Container { version, os, open, kernel: None, parameters },
    })
}
