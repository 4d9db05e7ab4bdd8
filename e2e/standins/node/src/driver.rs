//! The stand-in driver container.
//!
//! To other components it behaves as NVIDIA's container does: it replaces the loaded kernel module unless the module is
//! in use, creates device nodes, and makes its own root filesystem visible on the node under `/run/nvidia/driver`. The
//! behaviour of a second start depends on the kind of image, see [`Kind`]. `driver.json` in the stand-in's folder
//! controls it, see [`Steering`].

pub mod devices;
mod installer;
mod kind;
mod module;
mod root;
mod steering;

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time,
};

pub use installer::{Folders, install as install_on_host};
pub use kind::Kind;
use module::Module;
use root::Lock;
pub use steering::{Mode, Steering};

use crate::FOLDER;

/// The interval at which the steering file is read.
const POLL: Duration = Duration::from_millis(200);

/// The last message of a container that finds the driver in use.
const IN_USE: &str = "Could not unload NVIDIA driver kernel modules, driver is in use";

/// The container's folders. The defaults are those of the real container; tests set other folders with these
/// environment variables.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `STANDIN_DIR`, the test harness's folder.
    pub standin: PathBuf,
    /// `STANDIN_OWN_ROOT`, the container's root filesystem.
    pub own_root: PathBuf,
    /// `STANDIN_RUN`, the folder in which the root filesystem becomes visible on the node; it also contains the lock
    /// and state files.
    pub run: PathBuf,
}

impl Paths {
    /// Returns the folders that the environment sets.
    pub fn from_env() -> Self {
        let path = |name, default: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| default.into()));
        Self {
            standin: path("STANDIN_DIR", FOLDER),
            own_root: path("STANDIN_OWN_ROOT", "/"),
            run: path("STANDIN_RUN", "/run/nvidia"),
        }
    }

    /// Returns the path of the harness's folder in the container, and so in the driver root.
    fn etc(&self) -> PathBuf {
        self.own_root.join("etc/standin")
    }

    fn dev(&self) -> PathBuf {
        self.own_root.join("dev")
    }

    fn driver_root(&self) -> PathBuf {
        self.run.join("driver")
    }
}

/// The kind of image, and the container's settings.
#[derive(Clone, Debug)]
pub struct Image {
    /// `STANDIN_KIND`.
    pub kind: Kind,
    /// `DRIVER_VERSION`.
    pub version: String,
    /// `DRIVER_CONFIG_DIGEST`; empty if it is not set.
    pub digest: String,
}

impl Image {
    /// Returns the container's settings from the environment.
    pub fn from_env() -> Result<Self> {
        Ok(Self {
            kind: env::var("STANDIN_KIND").map_or(Ok(Kind::default()), |name| name.parse())?,
            version: env::var("DRIVER_VERSION").context("DRIVER_VERSION")?,
            digest: env::var("DRIVER_CONFIG_DIGEST").unwrap_or_default(),
        })
    }
}

/// Installs the image's driver and keeps it until SIGTERM.
pub async fn run(paths: &Paths, image: &Image) -> Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let lock = Lock::take(&paths.run)?;
    root::bind_standin(&paths.standin, &paths.etc())?;
    let container = Container { paths, image, lock, module: Module::new(&paths.etc()) };
    match container.start(&mut stop).await {
        Ok(loaded) => container.stay(loaded, &mut stop).await,
        Err(error) => {
            // A failed start removes the parts of the driver that it has installed, if possible.
            if let Err(left) = container.shut_down() {
                println!("{left:#}");
            }
            Err(error)
        }
    }
}

struct Container<'a> {
    paths: &'a Paths,
    image: &'a Image,
    lock: Lock,
    module: Module,
}

impl Container<'_> {
    /// Loads the driver, or keeps the loaded one, and makes the root visible. Returns the loaded version.
    async fn start(&self, stop: &mut Signal) -> Result<String> {
        let Image { kind, version, digest } = self.image;
        println!("Starting installation of NVIDIA driver version {version}");
        let wanted = self.wait_for_permission(stop).await?;
        let recorded = root::recorded_digest(&self.paths.run);
        if !kind.keeps_driver(self.module.is_loaded(), digest, recorded.as_deref()) {
            self.reinstall(&wanted, stop).await?;
            return Ok(wanted);
        }
        println!("The driver is loaded with the same configuration: only its libraries and programs are installed");
        root::release(&self.paths.driver_root())?;
        root::install(&self.paths.own_root, version)?;
        self.show()?;
        Ok(self.module.version().unwrap_or(wanted))
    }

    /// Waits while the mode is `hold`, then returns the version to load.
    async fn wait_for_permission(&self, stop: &mut Signal) -> Result<String> {
        let mut is_logged = false;
        loop {
            let steering = Steering::read(&self.paths.standin)?;
            match steering.mode {
                Mode::Crash => bail!(steering.failure()),
                Mode::Ok | Mode::WrongVersion => return steering.version(&self.image.version),
                Mode::Hold => {
                    if !is_logged {
                        println!("held back");
                        is_logged = true;
                    }
                }
            }
            unless_stopped(POLL, stop).await?;
        }
    }

    /// Replaces the loaded driver, unless it is in use.
    async fn reinstall(&self, version: &str, stop: &mut Signal) -> Result<()> {
        if !self.unload()? {
            bail!(IN_USE);
        }
        root::release(&self.paths.driver_root())?;
        root::install(&self.paths.own_root, &self.image.version)?;
        // Long enough for an observer to distinguish a loading driver from a loaded one.
        unless_stopped(load_time(), stop).await?;
        println!("Loading NVIDIA driver kernel modules...");
        self.module.load(version)?;
        self.show()
    }

    /// Makes the container's root visible on the node, and records the configuration with which the driver was loaded.
    fn show(&self) -> Result<()> {
        devices::make(&self.paths.standin, &self.paths.dev())?;
        println!("Mounting NVIDIA driver rootfs...");
        let kernel = root::kernel(&self.image.version);
        root::show(&self.paths.own_root, &self.paths.driver_root(), &kernel)?;
        if self.image.kind.records_digest() {
            root::record_digest(&self.paths.run, &self.image.digest)?;
        }
        println!("Done, now waiting for signal");
        Ok(())
    }

    /// Runs until SIGTERM, or until SIGKILL if the driver is in use then.
    async fn stay(&self, mut loaded: String, stop: &mut Signal) -> Result<()> {
        loop {
            if is_stopped_within(POLL, stop).await {
                println!("Caught signal");
                if self.shut_down()? {
                    return Ok(());
                }
                println!("{IN_USE}");
            }
            if let Some(other) = self.other_version(&loaded)? {
                println!("steered to load {other} instead of {loaded}");
                self.reinstall(&other, stop).await?;
                loaded = other;
            }
            devices::make(&self.paths.standin, &self.paths.dev()).context("device nodes of new GPUs")?;
        }
    }

    /// Returns the version that the steering file requests, if it differs from the loaded one.
    fn other_version(&self, loaded: &str) -> Result<Option<String>> {
        // A file that cannot be read at the moment is being written.
        let Ok(steering) = Steering::read(&self.paths.standin) else { return Ok(None) };
        match steering.mode {
            Mode::Crash => bail!(steering.failure()),
            // Hold affects only installations that have not begun.
            Mode::Hold => Ok(None),
            Mode::Ok | Mode::WrongVersion => {
                Ok(steering.version(&self.image.version).ok().filter(|wanted| wanted != loaded))
            }
        }
    }

    /// Unloads the driver and removes its root; returns false if the driver is in use, in which case both stay.
    fn shut_down(&self) -> Result<bool> {
        if !self.unload()? {
            return Ok(false);
        }
        println!("Unmounting NVIDIA driver rootfs...");
        root::release(&self.paths.driver_root())?;
        self.lock.remove()?;
        Ok(true)
    }

    fn unload(&self) -> Result<bool> {
        println!("Unloading NVIDIA driver kernel modules...");
        self.module.unload(self.image.kind)
    }
}

async fn is_stopped_within(duration: Duration, stop: &mut Signal) -> bool {
    time::timeout(duration, stop.recv()).await.is_ok()
}

/// Sleeps; a signal meanwhile aborts the start.
async fn unless_stopped(duration: Duration, stop: &mut Signal) -> Result<()> {
    if is_stopped_within(duration, stop).await {
        bail!("Caught signal");
    }
    Ok(())
}

/// `STANDIN_LOAD_MS`, half a second by default.
fn load_time() -> Duration {
    let configured = env::var("STANDIN_LOAD_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(configured.unwrap_or(500))
}
