//! Deciding where a node's driver comes from: what the policy says, the node's system, and what is there already.

use gpu_operator_crd::{
    policy::{Driver, DriverSource, Images, KernelModule, Stage},
    reason::Reason,
    report::{CONTAINER_ROOT, GKE_ROOT, InstalledDriver, Report},
};

use crate::{
    catalogue::{Catalogue, Flavour, branch_of, common_module_flavour},
    desired::{
        driver::{choice::DriverChoice, precompiled, run_file},
        fault::Fault,
    },
    inventory::gpus::Discovery,
    world::{NodeFacts, Word},
};

/// The label that GKE puts on every node of its. That of the accelerator proves less: people copy it to other nodes,
/// for manifests that select by it.
const GKE_NODE_POOL: &str = "cloud.google.com/gke-nodepool";
/// The word by which Google's installer takes the version that goes with the release of COS.
pub const GKE_DEFAULT: &str = "default";
/// The label by which GKE says which driver it installs by itself.
pub const GKE_DRIVER: &str = "cloud.google.com/gke-gpu-driver-version";

/// What a driver is chosen by, beside what the policy says of it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The catalogue.
    pub catalogue: &'a Catalogue,
    /// Where images come from.
    pub images: &'a Images,
    /// The Node.
    pub node: &'a NodeFacts,
    /// Its GPUs.
    pub discovery: &'a Discovery<'a>,
    /// What its probe says.
    pub report: &'a Report,
    /// The precompiled image that is known not to be there.
    pub missing_image: Option<&'a str>,
}

impl Subject<'_> {
    /// Whether the node has a driver of ours, by its label.
    fn has_ours(&self) -> bool {
        self.node.labels.get(Stage::Driver.key()).is_some_and(|group| !group.is_empty())
    }

    /// Whether the driver under a root is the one that is loaded.
    fn works(&self, root: &str) -> bool {
        let mut found = self.report.driver.installed.iter().filter(|installed| installed.root == root);
        found.any(|found| self.report.driver.loaded.as_ref() == Some(&found.version))
    }

    /// The loaded module, where nothing says who has loaded it: no driver of this operator is on the node, nor the libraries of
    /// any driver, and no driver's container has run since it booted. (One that is gone leaves its module behind while that is
    /// used, and its libraries never.)
    fn unexplained(&self) -> Option<&str> {
        let driver = &self.report.driver;
        let explained = self.has_ours() || driver.container_ran;
        let loaded = driver.loaded.as_deref().filter(|_| !explained)?;
        driver.installed.iter().all(|found| found.version != loaded).then_some(loaded)
    }

    /// Google's installer for the node's system, on nodes that Google's are.
    fn google(&self) -> Option<DriverSource> {
        match self.report.os.id.as_str() {
            "cos" => Some(DriverSource::GkeCos),
            "ubuntu" if self.node.labels.contains_key(GKE_NODE_POOL) => Some(DriverSource::GkeUbuntu),
            _ => None,
        }
    }

    /// Without a model in the catalogue nothing says which driver and which modules run it: a newer card may need more than
    /// the newest recommended driver, and an older one cannot run it.
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

    /// The newest recommended version for the node's GPUs.
    fn recommended(&self) -> Result<String, Fault> {
        let release =
            self.catalogue.default_driver(&self.discovery.accelerators).map_err(|error| unsupported(&error))?;
        Ok(release.version.clone())
    }

    /// The same among those that have an image for the node's system, if any has.
    fn recommended_image(&self) -> Result<String, Fault> {
        let os = &self.report.os;
        let release = self.catalogue.default_driver_for(&self.discovery.accelerators, &os.id, &os.version_id);
        release.map_or_else(|| self.recommended(), |release| Ok(release.version.clone()))
    }

    /// An installer that was made for one system is not let at another.
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

/// That a driver is loaded whose libraries are nowhere: another one is never installed over it.
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

fn unsupported(error: &dyn std::error::Error) -> Fault {
    Fault { reason: Reason::DriverUnsupported, message: error.to_string() }
}

/// Which of its drivers GKE installs on a node by itself, if any.
#[must_use]
pub fn installed_by_gke(node: &NodeFacts) -> Option<&str> {
    node.labels.get(GKE_DRIVER).map(Word::as_str).filter(|which| ["default", "latest"].contains(which))
}

/// Decides where a node's driver comes from.
///
/// # Errors
/// A [`Fault`] where the policy asks for what this node cannot have.
pub fn choose(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    match driver.source.unwrap_or_default() {
        DriverSource::Auto => auto(driver, on),
        // Where the folder is named, the probe has to know of it before it can find anything there.
        DriverSource::Preinstalled if let Some(root) = &driver.install_dir => {
            Ok(DriverChoice::Preinstalled { root: root.clone() })
        }
        DriverSource::Preinstalled => {
            preinstalled(on, |_| true).ok_or_else(|| on.unexplained().map_or_else(not_installed, library_not_found))
        }
        source => from(source, driver, on, driver.install_dir.as_deref().unwrap_or(GKE_ROOT)),
    }
}

/// The driver of a node on which somebody else's DaemonSet installs it, wherever that puts it.
#[must_use]
pub fn theirs(report: &Report) -> DriverChoice {
    let loaded = report.driver.installed.iter().find(|found| report.driver.loaded.as_ref() == Some(&found.version));
    let found = loaded.or(report.driver.installed.first());
    DriverChoice::Preinstalled { root: found.map_or_else(|| CONTAINER_ROOT.to_owned(), |found| found.root.clone()) }
}

fn from(source: DriverSource, driver: &Driver, on: &Subject<'_>, root: &str) -> Result<DriverChoice, Fault> {
    let root = root.to_owned();
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

/// An installer's image has no tag that follows from the driver's version, and the tag of a default image is not that of
/// another repository.
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

/// What is loaded and good stays; what a cloud installs is waited for; else the installer that fits the system.
fn auto(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    let google = on.google();
    let ours = if google.is_some() { GKE_ROOT } else { CONTAINER_ROOT };
    // A driver of ours that works is not given up because somebody put libraries on the host.
    let ours_works = on.has_ours() && on.works(ours);
    // What an installer of Google's has left is no driver of the host's until it is loaded without one of ours.
    let foreign = |installed: &InstalledDriver| {
        !ours_works && (google.is_none() || installed.root != GKE_ROOT || !on.has_ours() && on.works(GKE_ROOT))
    };
    match (preinstalled(on, foreign), on.unexplained()) {
        (Some(choice), _) => Ok(choice),
        (None, Some(loaded)) => Err(library_not_found(loaded)),
        (None, None) => from(google.unwrap_or(DriverSource::Container), driver, on, GKE_ROOT),
    }
}

/// The host's own driver, or the one that GKE is about to put there. What lies under the container's root was put there by
/// a container, ours or another's; it is not the host's.
fn preinstalled(on: &Subject<'_>, counts: impl Fn(&InstalledDriver) -> bool) -> Option<DriverChoice> {
    let mut installed = on.report.driver.installed.iter().filter(|installed| installed.root != CONTAINER_ROOT);
    let root = installed.find(|installed| counts(installed)).map(|installed| installed.root.as_str());
    let root = root.or_else(|| installed_by_gke(on.node).map(|_| GKE_ROOT))?;
    Some(DriverChoice::Preinstalled { root: root.to_owned() })
}

fn gke_cos(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    on.must_run(driver, "cos", "GkeCos requires Container-Optimized OS")?;
    let flavour = driver.version.clone().unwrap_or_else(|| GKE_DEFAULT.to_owned());
    if branch_of(&flavour).is_some() {
        on.supports(&flavour)?;
    }
    Ok(DriverChoice::GkeCos { flavour, root })
}

fn gke_ubuntu(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    on.must_run(driver, "ubuntu", "GkeUbuntu requires Ubuntu")?;
    if let Some(version) = &driver.version {
        on.supports(version)?;
    }
    Ok(DriverChoice::GkeUbuntu { version: driver.version.clone(), root })
}

/// No table of operating systems binds a `.run` file: the user's installer is made for the nodes' system.
fn run_file(driver: &Driver, on: &Subject<'_>, root: String) -> Result<DriverChoice, Fault> {
    if driver.operand.image.as_ref().is_none_or(|image| image.repository.is_none()) {
        let message = "driver.source RunFile has no default image; write driver.image.repository and driver.image.tag of an installer built for the nodes' operating system, such as this project's images/run-file";
        return Err(Fault { reason: Reason::NoDriverImageForOS, message: message.into() });
    }
    if driver.url.is_none() {
        on.must_be_known("driver.url")?;
    }
    let told = driver.url.as_deref().and_then(run_file::version_of);
    let version = match (&driver.version, &driver.url) {
        (Some(version), _) if told.is_some_and(|told| told != version) => {
            let message = format!(
                "driver.version is {version}, but driver.url is the address of {}; write the url of {version}, or remove driver.version",
                told.unwrap_or_default()
            );
            return Err(Fault { reason: Reason::DriverUnsupported, message });
        }
        (Some(version), _) => Some(version.clone()),
        (None, Some(_)) => told.map(str::to_owned),
        (None, None) => Some(on.recommended()?),
    };
    if let Some(version) = &version {
        on.supports(version)?;
    }
    let public = || {
        let version = version.as_deref().unwrap_or_default();
        run_file::public_url(version, &on.discovery.accelerators, &on.node.arch)
    };
    let url = driver.url.clone().unwrap_or_else(public);
    Ok(DriverChoice::RunFile { version, url, root })
}

fn container(driver: &Driver, on: &Subject<'_>) -> Result<DriverChoice, Fault> {
    if driver.version.is_none() || driver.kernel_module.unwrap_or_default() == KernelModule::Auto {
        on.must_be_known("driver.version and driver.kernelModule: Open or Proprietary")?;
    }
    // A tag of the user's own names its operating system itself; the table of published images does not bind it.
    let own_image = driver.operand.image.as_ref().is_some_and(|image| image.tag.is_some() || image.digest.is_some());
    let version = driver.version.clone().map_or_else(|| on.recommended_image(), Ok)?;
    on.supports(&version)?;
    // There is one driver to a node, so all of its models get the same modules.
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
    let kernel = precompiled::image(driver, on, branch, &os).filter(|image| Some(image.as_str()) != on.missing_image);
    Ok(match kernel {
        Some(_) => {
            let kernel = Some(on.node.kernel.to_string());
            DriverChoice::Container { version: branch.to_string(), os, open, kernel, parameters }
        }
        None => DriverChoice::Container { version, os, open, kernel: None, parameters },
    })
}
