//! The stand-in driver container.
//!
//! It does what NVIDIA's does as far as others can see: replaces the loaded kernel module unless something uses it,
//! makes device nodes, and shows its own root filesystem to the node under `/run/nvidia/driver`. `driver.json` in the
//! stand-in folder steers it, see [`Steering`].

mod devices;
mod installer;
mod module;
mod root;
mod steering;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time,
};

pub use installer::{Folders, install as install_on_host};
use module::Module;
pub use steering::{Mode, Steering};

/// How often the steering file is looked at.
const POLL: Duration = Duration::from_millis(200);

/// The folders that the container works on. The defaults are those of the real container; tests set their own through
/// the environment variables named here.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `STANDIN_DIR`, the test harness's folder.
    pub standin: PathBuf,
    /// `STANDIN_OWN_ROOT`, the container's root filesystem.
    pub own_root: PathBuf,
    /// `DRIVER_ROOT`, where that is shown to the node.
    pub driver_root: PathBuf,
}

impl Paths {
    /// From the environment.
    #[must_use]
    pub fn from_env() -> Self {
        let path = |name, default: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| default.into()));
        Self {
            standin: path("STANDIN_DIR", "/run/nvidia/standin"),
            own_root: path("STANDIN_OWN_ROOT", "/"),
            driver_root: path("DRIVER_ROOT", "/run/nvidia/driver"),
        }
    }

    /// Where the harness's folder appears in the container, and so in the driver root.
    fn etc(&self) -> PathBuf {
        self.own_root.join("etc/standin")
    }

    fn dev(&self) -> PathBuf {
        self.own_root.join("dev")
    }
}

/// Installs the driver `version` and keeps it until SIGTERM.
///
/// # Errors
/// If the steering file says so, if another driver is loaded and in use, or if the system refuses something; the
/// error's text is meant for the termination message.
pub async fn run(paths: &Paths, version: &str) -> Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    root::bind_standin(&paths.standin, &paths.etc())?;
    root::link_libraries(&paths.own_root, version)?;
    let module = Module::new(&paths.etc());
    loop {
        let Some(wanted) = wait_for_permission(&paths.standin, version, &mut stop).await? else {
            return Ok(());
        };
        let Some(()) = install(paths, &module, &wanted, &mut stop).await? else {
            return Ok(());
        };
        println!("driver {wanted} is loaded, its root is {}", paths.driver_root.display());
        if !keep(paths, version, &wanted, &mut stop).await? {
            break;
        }
        println!("told to load another version than {wanted}");
    }
    match module.unload() {
        Ok(true) => println!("driver unloaded"),
        Ok(false) => println!("driver left loaded: it is in use"),
        Err(error) => println!("driver left loaded: {error:#}"),
    }
    root::release(&paths.driver_root)
}

/// Waits while the mode is `hold`, then gives the version to load; `None` after SIGTERM.
async fn wait_for_permission(standin: &Path, version: &str, stop: &mut Signal) -> Result<Option<String>> {
    let mut said = false;
    loop {
        let steering = Steering::read(standin)?;
        match steering.mode {
            Mode::Crash => bail!(steering.failure()),
            Mode::Ok | Mode::WrongVersion => return steering.version(version).map(Some),
            Mode::Hold => {
                if !said {
                    println!("held back");
                    said = true;
                }
            }
        }
        if stopped_within(POLL, stop).await {
            return Ok(None);
        }
    }
}

/// `None` after SIGTERM.
async fn install(paths: &Paths, module: &Module, version: &str, stop: &mut Signal) -> Result<Option<()>> {
    let loaded = module.version();
    if loaded.as_deref() == Some(version) {
        println!("driver {version} is loaded already, only its root is renewed");
    } else {
        if let Some(loaded) = loaded {
            println!("unloading driver {loaded}");
            // The root of a predecessor stays where it is until its driver is gone, so that who uses it can go on.
            if !module.unload()? {
                bail!("Could not unload NVIDIA driver kernel modules, driver is in use");
            }
        }
        // Long enough for a watcher to see that loading is not the same as being there.
        if stopped_within(load_time(), stop).await {
            return Ok(None);
        }
        module.load(version)?;
    }
    devices::make(&paths.standin, &paths.dev())?;
    root::release(&paths.driver_root)?;
    root::show(&paths.own_root, &paths.driver_root)?;
    Ok(Some(()))
}

/// Stays until SIGTERM (false) or until the steering file asks for another version (true).
async fn keep(paths: &Paths, version: &str, loaded: &str, stop: &mut Signal) -> Result<bool> {
    while !stopped_within(POLL, stop).await {
        // A file that cannot be read now is being written.
        if let Ok(steering) = Steering::read(&paths.standin) {
            if steering.mode == Mode::Crash {
                bail!(steering.failure());
            }
            // Holding back is for what has not begun.
            if steering.mode != Mode::Hold && steering.version(version).is_ok_and(|wanted| wanted != loaded) {
                return Ok(true);
            }
        }
        devices::make(&paths.standin, &paths.dev()).context("device nodes of new GPUs")?;
    }
    Ok(false)
}

async fn stopped_within(duration: Duration, stop: &mut Signal) -> bool {
    time::timeout(duration, stop.recv()).await.is_ok()
}

/// `STANDIN_LOAD_MS`, half a second by default.
fn load_time() -> Duration {
    let asked = env::var("STANDIN_LOAD_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(asked.unwrap_or(500))
}
