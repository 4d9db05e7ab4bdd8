//! The steps of a toolkit pod, each a command of its own.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use gpu_host::process::error_chain;
use tokio::time::sleep;

use super::{
    config_files::{self, AddedEntries, ConfigFile, ConfigFileError, Record, Texts},
    daemon::{self, Daemon, LoadedConfig},
    docker::{self, DockerError, Wanted},
    entries::{NvidiaEntries, RuntimeKind},
    restart::{self, OnDisk, RestartError, WaitLimits},
    state::{self, Readers, StateError},
};

/// The record of the configuration, below [`Setup::state`].
const RECORD: &str = "record.json";
/// Why the runtime rejected the configuration, below [`Setup::loaded`].
const REJECTED: &str = "rejected.json";

#[derive(Clone, Debug)]
pub struct Setup {
    pub files: Vec<ConfigFile>,
    pub entries: NvidiaEntries,
    pub daemon: Daemon,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
    /// Folder for state that survives a reboot.
    pub state: PathBuf,
    /// Folder for state that does not survive a reboot.
    pub loaded: PathBuf,
    pub limits: WaitLimits,
}

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot add NVIDIA's runtime to the configuration, or remove it")]
    ConfigFile(#[from] ConfigFileError),
    #[error(transparent)]
    Restart(#[from] RestartError),
    #[error("{0}")]
    Rejected(String),
    #[error("NVIDIA's installer has not added runtime {handler} to {files}")]
    NotAdded {
        handler: String,
        /// The files that should have it.
        files: String,
    },
    #[error(
        "RuntimeConfigRejected: the container runtime rewrote {files} on start, without runtime {handler}; set toolkit.hostPaths.config to the file from which it generates them"
    )]
    Overwritten {
        handler: String,
        /// The files that should have it.
        files: String,
    },
    #[error("RuntimeConfigDrifted: {0}")]
    Drifted(String),
    #[error("cannot restart the container runtime: {0}")]
    NotRestarted(String),
    #[error(transparent)]
    Docker(#[from] DockerError),
}

/// Before the installer: stores the current configuration.
pub fn snapshot(setup: &Setup) -> Result<(), StepError> {
    let mut known: Option<Record> = state::load(&setup.state, RECORD)?;
    let added = added(setup);
    // A pod that died with its node has not removed its entries, and the installer only adds entries: an earlier default
    // would remain.
    if let Some(other) = known.take_if(|known| !known.matches(&setup.files, &added)) {
        remove_entries(setup, &other)?;
    }
    let now = read(setup)?;
    let record = Record::snapshot(&setup.files, &now, known.as_ref(), added)?;
    state::store(&setup.state, RECORD, &record, Readers::Root)?;
    state::remove(&setup.loaded, REJECTED)?;
    Ok(())
}

/// Before the installer: fails if Docker's flags keep it from loading its file with NVIDIA's runtime. Docker would not start with such a
/// file, so one that has the runtime already, from an earlier installer, is restored.
pub async fn check_flags(setup: &Setup) -> Result<(), StepError> {
    let Some(wanted) = of_docker(setup) else { return Ok(()) };
    let checked = docker::check_flags(&setup.daemon, wanted, setup.limits).await;
    if let Err(DockerError::Flags { .. }) = &checked
        && let Some(record) = state::load(&setup.state, RECORD)?
    {
        remove_entries(setup, &record)?;
    }
    Ok(checked?)
}

/// After the installer: has the runtime load the new configuration unless it already has.
pub async fn apply(setup: &Setup) -> Result<(), StepError> {
    if let Some(moved) = config_files::move_version_1_to_main(&setup.files, &read(setup)?) {
        state::replace(moved.main, &moved.text, moved.drop_in)?;
    }
    let now = read(setup)?;
    if !is_configured(setup, &now) {
        return Err(match state::load(&setup.loaded, REJECTED)? {
            Some(message) => StepError::Rejected(message),
            None => StepError::NotAdded { handler: setup.entries.handler.clone(), files: names(setup) },
        });
    }
    let record: Option<Record> = state::load(&setup.state, RECORD)?;
    let record = record.unwrap_or_else(|| Record { files: BTreeMap::new(), settled: false, added: added(setup) });
    let record = record.settle(&now);
    state::store(&setup.state, RECORD, &record, Readers::Root)?;
    let disk = OnDisk { digest: digest(&now), written: state::newest(&setup.files) };
    let known: Option<LoadedConfig> = state::load(&setup.loaded, daemon::LOADED_FILE)?;
    let roll_back = || remove_entries(setup, &record).map_err(|error| error_chain(&error));
    let check = async || match of_docker(setup) {
        Some(wanted) => docker::check_loaded(&setup.daemon, wanted, setup.limits).await,
        None => Ok(()),
    };
    match restart::load(&setup.daemon, &disk, known.as_ref(), setup.limits, check, roll_back).await {
        Ok(process) => {
            if !setup.default {
                drop_default(setup).await?;
            }
            // Some runtimes rewrite their own files when they start.
            let now = read(setup)?;
            if !is_configured(setup, &now) {
                let overwritten =
                    StepError::Overwritten { handler: setup.entries.handler.clone(), files: names(setup) };
                state::store(&setup.loaded, REJECTED, &overwritten.to_string(), Readers::Everyone)?;
                return Err(overwritten);
            }
            state::store(
                &setup.loaded,
                daemon::LOADED_FILE,
                &LoadedConfig { process, digest: digest(&now) },
                Readers::Everyone,
            )?;
            Ok(())
        }
        Err(error) => {
            state::store(&setup.loaded, REJECTED, &error.to_string(), Readers::Everyone)?;
            Err(error.into())
        }
    }
}

/// Watches the configuration for as long as it contains NVIDIA's runtime. Checks once per `interval`, so that the pod
/// is not recreated more often than that, and reads the files only if their metadata has changed.
pub async fn keep(setup: &Setup, interval: Duration) -> StepError {
    let mut seen = None;
    loop {
        let glance = state::metadata_snapshot(&setup.files);
        if seen.as_ref() != Some(&glance)
            && let Err(error) = look(setup)
        {
            if seen.is_none() {
                sleep(interval).await;
            }
            return error;
        }
        seen = Some(glance);
        sleep(interval).await;
    }
}

fn look(setup: &Setup) -> Result<(), StepError> {
    let now = read(setup)?;
    if !is_configured(setup, &now) {
        let handler = &setup.entries.handler;
        return Err(StepError::Drifted(format!("runtime {handler} is no longer in {}", names(setup))));
    }
    let loaded: Option<LoadedConfig> = state::load(&setup.loaded, daemon::LOADED_FILE)?;
    // Before version 2.1, containerd replaces a whole section of the main file by that of the drop-in, so the
    // installer's copy hides later changes of the main file.
    let copied = setup.daemon.kind == RuntimeKind::Containerd;
    if copied && loaded.is_some_and(|loaded| loaded.digest != digest(&now)) {
        return Err(StepError::Drifted(format!(
            "{} changed after runtime {} was added",
            names(setup),
            setup.entries.handler
        )));
    }
    Ok(())
}

/// When the pod is deleted: removes NVIDIA's runtime from the configuration.
///
/// The runtime is not restarted: an unused runtime is harmless, and a restart disturbs every pod of the node. A default
/// is different: every new pod would still use it.
pub async fn revert(setup: &Setup) -> Result<(), StepError> {
    let Some(record) = state::load::<Record>(&setup.state, RECORD)? else { return Ok(()) };
    remove_entries(setup, &record)?;
    if setup.default {
        // Docker 20.10 ends if it reads a file with runtimes and without the default that it has loaded.
        drop_default(setup).await?;
        let restarted = restart::restart(&setup.daemon, setup.limits).await;
        let process = restarted.map_err(|error| StepError::NotRestarted(error_chain(&error)))?;
        state::store(
            &setup.loaded,
            daemon::LOADED_FILE,
            &LoadedConfig { process, digest: digest(&read(setup)?) },
            Readers::Everyone,
        )?;
    }
    Ok(())
}

/// Has Docker drop a default runtime that its file does not have any more. Other runtimes are started again, and keep none.
async fn drop_default(setup: &Setup) -> Result<(), StepError> {
    if let Some(Wanted { file, entries, .. }) = of_docker(setup) {
        docker::drop_default(&setup.daemon, file, entries, setup.limits).await?;
    }
    Ok(())
}

fn of_docker(setup: &Setup) -> Option<Wanted<'_>> {
    let file = setup.files.first().filter(|_| setup.daemon.kind == RuntimeKind::Docker)?;
    Some(Wanted { file: &file.path, entries: &setup.entries, default: setup.default })
}

/// Restores the files of a record, and removes the record.
fn remove_entries(setup: &Setup, record: &Record) -> Result<(), StepError> {
    let now = state::read_all(record.files.keys())?;
    state::write_all(&record.revert(&now)?)?;
    Ok(state::remove(&setup.state, RECORD)?)
}

fn added(setup: &Setup) -> AddedEntries {
    AddedEntries { entries: setup.entries.clone(), default: setup.default }
}

fn read(setup: &Setup) -> Result<Texts, StateError> {
    state::read_all(setup.files.iter().map(|file| &file.path))
}

fn is_configured(setup: &Setup, now: &Texts) -> bool {
    setup
        .files
        .iter()
        .any(|file| now.get(&file.path).is_some_and(|text| file.role.contains_entries(text, &setup.entries)))
}

fn digest(now: &Texts) -> String {
    config_files::digest(now.iter().map(|(path, text)| (path.as_path(), text)))
}

fn names(setup: &Setup) -> String {
    setup.files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>().join(" or ")
}
