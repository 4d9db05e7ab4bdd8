//! Chooses the source of a node's driver by the policy, the operating system and the drivers that the node has.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    policy::{Driver, DriverSource, KernelModule, RunFile},
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
/// `ID` of Container-Optimized OS.
const COS: &str = "cos";
const UBUNTU: &str = "ubuntu";
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

    /// Whether a cloud has an installer for the node.
    fn has_installer(&self) -> bool {
        match self.report.os.id.as_str() {
            COS => true,
            UBUNTU => self.node.labels.contains_key(GKE_NODE_POOL),
            _ => false,
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
}

fn library_not_found(loaded: &str) -> Fault {
    let message = format!(
        "kernel module nvidia {loaded} is loaded, but libnvidia-ml.so.{loaded} was found neither by the host's dynamic linker (/etc/ld.so.cache, /etc/ld.so.conf) nor in the usual folders, {CONTAINER_ROOT} and {GKE_ROOT}: the driver is left unchanged; write driver: {{source: Preinstalled, preinstalled: {{installDir: FOLDER}}}} with the folder of the host that contains the libraries, or source: Container to replace the driver"
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
        "the node's GPUs are virtual GPUs of a hypervisor {host}: they need NVIDIA's vGPU guest driver {wanted}, and no data centre driver works; install the guest driver in the machine's image, or write driver.source: Container with driver.image, or RunFile with driver.runFile.url, of the guest driver"
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
        DriverSource::Preinstalled if let Some(root) = &driver.preinstalled.install_dir => {
            Ok(DriverChoice::Preinstalled { root: root.clone() })
        }
        DriverSource::Preinstalled => {
            preinstalled(on, |_| true).ok_or_else(|| on.unexplained().map_or_else(not_installed, library_not_found))
        }
        DriverSource::Container => container(driver, on),
        DriverSource::CloudInstaller => {
            installer_image(driver)?;
            cloud_installer(driver, on)
        }
        DriverSource::RunFile => {
            installer_image(driver)?;
            run_file(driver, on)
        }
    }
}

/// For a node on which a third-party DaemonSet installs the driver.
pub fn third_party(report: &Report) -> DriverChoice {
    let loaded = report.driver.installed.iter().find(|found| report.driver.loaded.as_ref() == Some(&found.version));
    let found = loaded.or(report.driver.installed.first());
    DriverChoice::Preinstalled { root: found.map_or_else(|| CONTAINER_ROOT.to_owned(), |found| found.root.clone()) }
}

/// The tag of an installer's image cannot be derived from the driver's version, and does not apply to another repository.
fn installer_image(driver: &Driver) -> Result<(), Fault> {
    let image = driver.operand.image.as_ref();
    if image.is_none_or(|image| image.repository.is_some() || image.tag.is_none() && image.digest.is_none()) {
        return Ok(());
    }
    let message = "driver.image has a tag or digest but no repository, and installers have no default repository; write driver.image.repository, or remove driver.image";
    Err(Fault { reason: Reason::NoDriverImageForOS, message: message.to_owned() })
}

/// Prefers a loaded driver that works, then a driver that GKE is about to install, then the installer for the system. For virtual GPUs there
/// is no such installer.
fn auto(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let has_installer = on.has_installer();
    let own_root = if has_installer { GKE_ROOT } else { CONTAINER_ROOT };
    // A working driver of this operator is not replaced because libraries were installed on the host.
    let own_works = on.has_driver && on.works(own_root);
    // Files of Google's installers do not count as a host driver until the driver is loaded without this operator's.
    let foreign = |installed: &InstalledDriver| {
        !own_works && (!has_installer || installed.root != GKE_ROOT || !on.has_driver && on.works(GKE_ROOT))
    };
    match (preinstalled(on, foreign), on.unexplained()) {
        (Some(choice), _) => Ok(choice),
        (None, Some(loaded)) => Err(library_not_found(loaded)),
        (None, None) if let Some(guest) = on.report.vgpu.as_ref().filter(|vgpu| vgpu.present) => Err(of_guest(guest)),
        (None, None) if has_installer => cloud_installer(driver, on),
        (None, None) => container(driver, on),
    }
}

/// Returns the host's own driver, or the one that GKE is about to install. One in the container's root was installed by a container.
fn preinstalled(on: &Subject<'_>, counts: impl Fn(&InstalledDriver) -> bool) -> Option<DriverChoice> {
    let mut installed = on.report.driver.installed.iter().filter(|installed| installed.root != CONTAINER_ROOT);
    let root = installed.find(|installed| counts(installed)).map(|installed| installed.root.as_str());
    let root = root.or_else(|| installed_by_gke(on.node).map(|_| GKE_ROOT))?;
    Some(DriverChoice::Preinstalled { root: root.to_owned() })
}

/// GKE has an installer for each of two systems; an image of the user's runs on any.
fn cloud_installer(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let os = &on.report.os;
    let has_image = driver.operand.image.as_ref().is_some_and(|image| image.repository.is_some());
    if !has_image && !on.has_installer() {
        let running = format!("{} {}", os.id, os.version_id);
        let running = Some(running.trim()).filter(|running| !running.is_empty()).unwrap_or("an unknown system");
        let message = format!(
            "driver.source CloudInstaller requires a node of GKE, with Container-Optimized OS or Ubuntu; this node runs {running}. Set driver.source: Auto, or driver.image"
        );
        return Err(Fault { reason: Reason::NoDriverImageForOS, message });
    }
    if let Some(version) = &driver.version {
        on.supports(version)?;
    }
    let (version, root) = (driver.version.clone(), GKE_ROOT.to_owned());
    if os.id != COS {
        return Ok(DriverChoice::GkeUbuntu { version, root });
    }
    let flavour = version.unwrap_or_else(|| driver.cloud_installer.channel.unwrap_or_default().as_str().to_owned());
    Ok(DriverChoice::GkeCos { flavour, root })
}

/// Any operating system is allowed: the user's installer is built for the nodes' system.
fn run_file(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let Some(RunFile { url, sha256, install_dir }) = &driver.run_file else {
        // Admission has checked it.
        let message = "source RunFile needs the file; write driver.runFile.sha256";
        return Err(Fault { reason: Reason::ChecksumMissing, message: message.into() });
    };
    let url_version = url.as_deref().and_then(run_file_version);
    let version = match &driver.version {
        Some(version) if url_version.is_some_and(|other| other != version) => {
            let message = format!(
                "driver.version is {version}, but driver.runFile.url is the address of {}; write the url of {version}, or remove driver.version",
                url_version.unwrap_or_default()
            );
            return Err(Fault { reason: Reason::DriverUnsupported, message });
        }
        version => version.as_deref().or(url_version).map(str::to_owned),
    };
    if url.is_none() {
        on.must_be_known("driver.runFile.url")?;
    }
    if let Some(version) = &version {
        on.supports(version)?;
    }
    let public = || {
        let version = version.as_deref().unwrap_or_default();
        run_file_url(version, &on.discovery.accelerators, &on.node.arch)
    };
    let url = url.clone().unwrap_or_else(public);
    let of_gke = on.report.os.id == COS || on.node.labels.contains_key(GKE_NODE_POOL);
    let root = install_dir.as_deref().unwrap_or(if of_gke { GKE_ROOT } else { RUN_FILE_ROOT }).to_owned();
    Ok(DriverChoice::RunFile { version, url, sha256: sha256.clone(), root })
}

fn container(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let module = driver.container.kernel_module.unwrap_or_default();
    if driver.version.is_none() || module == KernelModule::Auto {
        on.must_be_known("driver.version and driver.container.kernelModule: Open or Proprietary")?;
    }
    // A user's tag includes the operating system; the list of published images does not apply.
    let own_image = driver.operand.image.as_ref().is_some_and(|image| image.tag.is_some() || image.digest.is_some());
    let version = driver.version.clone().map_or_else(|| on.recommended_image(), Ok)?;
    on.supports(&version)?;
    // A node has one driver, so all of its GPUs use the same modules.
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
    let parameters = driver.container.config_maps.kernel_modules.clone();
    let kernel = precompiled_image(driver, on, branch, &os).filter(|image| Some(image.as_str()) != on.missing_image);
    Ok(match kernel {
        Some(_) => {
            let kernel = Some(on.node.kernel.to_string());
            DriverChoice::Container { version: branch.to_string(), os, open, kernel, parameters }
        }
        None => DriverChoice::Container { version, os, open, kernel: None, parameters },
    })
}
