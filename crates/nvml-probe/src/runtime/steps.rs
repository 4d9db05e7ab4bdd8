//! The steps of a toolkit's pod, each a command of its own.

use std::{path::PathBuf, time::Duration};

use tokio::time::sleep;

use super::{
    daemon::Daemon,
    files::{self, File, Kind, Loaded, Ours},
    record::{self, AtFile, Entered, Record, Texts},
    restart::{self, OnDisk, Patience, RestartError},
    state::{self, StateError},
};
use crate::words::chain;

/// What is kept of the configuration, below [`Setup::state`].
const RECORD: &str = "record.json";
/// What the runtime has loaded, below [`Setup::loaded`].
pub const LOADED: &str = "loaded.json";
/// Why it would not, below [`Setup::loaded`].
const REJECTED: &str = "rejected.json";

/// How a runtime is configured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its files.
    pub files: Vec<File>,
    /// What in them is ours.
    pub ours: Ours,
    /// The runtime.
    pub daemon: Daemon,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
    /// Folder of what has to outlive a reboot.
    pub state: PathBuf,
    /// Folder of what must not.
    pub loaded: PathBuf,
    /// How long is waited for the runtime.
    pub patience: Patience,
}

/// Why a step fails.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A file.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file is not of its form.
    #[error("cannot enter NVIDIA's runtime, nor take it out")]
    File(#[from] AtFile),
    /// The runtime.
    #[error(transparent)]
    Restart(#[from] RestartError),
    /// It would not take it before.
    #[error("{0}")]
    Rejected(String),
    /// The installer did not do its part.
    #[error("NVIDIA's installer has entered no runtime {handler} into {files}")]
    NotEntered {
        /// Its name.
        handler: String,
        /// Where it should be.
        files: String,
    },
    /// The runtime makes its own files when it starts.
    #[error(
        "RuntimeConfigRejected: the container runtime has written {files} anew when it started, without runtime {handler}; write the file that it makes them from as toolkit.hostPaths.config"
    )]
    Overwritten {
        /// Its name.
        handler: String,
        /// Where it should be.
        files: String,
    },
    /// What was entered is not there any more. The operator makes the pod anew, and that enters it again.
    #[error("RuntimeConfigDrifted: {0}")]
    Drifted(String),
    /// The runtime could not be restarted without NVIDIA's.
    #[error("the container runtime is not restarted: {0}")]
    NotRestarted(String),
}

/// Before the installer: keeps what is there.
///
/// # Errors
/// Where a file cannot be read, or is not of its form: the installer must not touch it then.
pub fn snapshot(setup: &Setup) -> Result<(), StepError> {
    let mut known: Option<Record> = state::recall(&setup.state, RECORD)?;
    let entered = Entered { ours: setup.ours.clone(), default: setup.default };
    // A pod that died with its node has taken nothing out, and the installer only adds: a default would stay one.
    if let Some(other) = known.take_if(|known| !known.is_of(&setup.files, &entered)) {
        take_out(setup, &other)?;
    }
    let now = read(setup)?;
    let record = Record::snapshot(&setup.files, &now, known.as_ref(), &setup.ours)?;
    state::remember(&setup.state, RECORD, &Record { entered: Some(entered), ..record })?;
    state::forget(&setup.loaded, REJECTED)?;
    Ok(())
}

/// After the installer: has the runtime load what it entered, if it has not.
///
/// # Errors
/// Where it does not come back: what it had is there again then. Asked again, it says the same again.
pub async fn apply(setup: &Setup) -> Result<(), StepError> {
    if let Some(writes) = record::take_in_version_1(&setup.files, &read(setup)?) {
        state::write_all(&writes)?;
    }
    let now = read(setup)?;
    if !is_entered(setup, &now) {
        return Err(match state::recall(&setup.loaded, REJECTED)? {
            Some(words) => StepError::Rejected(words),
            None => StepError::NotEntered { handler: setup.ours.handler.clone(), files: names(setup) },
        });
    }
    let record: Record = state::recall(&setup.state, RECORD)?.unwrap_or_default();
    let record = record.settle(&now);
    state::remember(&setup.state, RECORD, &record)?;
    let disk = OnDisk { digest: digest(&now), written: state::newest(&setup.files) };
    let known: Option<Loaded> = state::recall(&setup.loaded, LOADED)?;
    let roll_back = || take_out(setup, &record).map_err(|error| chain(&error));
    match restart::load(&setup.daemon, &disk, known.as_ref(), setup.patience, roll_back).await {
        Ok(process) => {
            // Some runtimes write their own files when they start.
            let now = read(setup)?;
            if !is_entered(setup, &now) {
                let overwritten = StepError::Overwritten { handler: setup.ours.handler.clone(), files: names(setup) };
                state::remember(&setup.loaded, REJECTED, &overwritten.to_string())?;
                return Err(overwritten);
            }
            state::remember(&setup.loaded, LOADED, &Loaded { process, digest: digest(&now) })?;
            Ok(())
        }
        Err(error) => {
            state::remember(&setup.loaded, REJECTED, &error.to_string())?;
            Err(error.into())
        }
    }
}

/// Watches over what was entered, for as long as it is there. Looks once per `interval`, and at dates and sizes only while
/// those stay, so that it cannot have the pod made anew more often than that.
///
/// # Errors
/// As soon as it is not there any more, in words for the operator.
pub async fn keep(setup: &Setup, interval: Duration) -> StepError {
    let mut seen = None;
    loop {
        let glance = state::glance(&setup.files);
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
    if !is_entered(setup, &now) {
        let handler = &setup.ours.handler;
        return Err(StepError::Drifted(format!("runtime {handler} is not in {} any more", names(setup))));
    }
    let loaded: Option<Loaded> = state::recall(&setup.loaded, LOADED)?;
    // containerd before 2.1 takes a whole section of the drop-in for that of the main file, so that what the installer
    // copied from there hides what has been written there since.
    let copied = setup.daemon.kind == Kind::Containerd;
    if copied && loaded.is_some_and(|loaded| loaded.digest != digest(&now)) {
        return Err(StepError::Drifted(format!(
            "{} changed after runtime {} was entered",
            names(setup),
            setup.ours.handler
        )));
    }
    Ok(())
}

/// When the pod goes: takes out what was entered.
///
/// The runtime is not restarted: a runtime that nobody names harms nobody, and a restart disturbs every pod of the node. A
/// default is another matter: whatever starts next would still be run by it.
///
/// # Errors
/// Where a file is not of its form any more, or the runtime does not come back.
pub async fn revert(setup: &Setup) -> Result<(), StepError> {
    let Some(record) = state::recall::<Record>(&setup.state, RECORD)? else { return Ok(()) };
    take_out(setup, &record)?;
    if setup.default {
        let restarted = restart::restart(&setup.daemon, setup.patience).await;
        let process = restarted.map_err(|error| StepError::NotRestarted(chain(&error)))?;
        state::remember(&setup.loaded, LOADED, &Loaded { process, digest: digest(&read(setup)?) })?;
    }
    Ok(())
}

/// Gives the files of a record back what they were, and forgets it.
fn take_out(setup: &Setup, record: &Record) -> Result<(), StepError> {
    let now = state::read_all(record.files.keys())?;
    let ours = record.entered.as_ref().map_or(&setup.ours, |entered| &entered.ours);
    state::write_all(&record.revert(&now, ours)?)?;
    Ok(state::forget(&setup.state, RECORD)?)
}

fn read(setup: &Setup) -> Result<Texts, StateError> {
    state::read_all(setup.files.iter().map(|file| &file.path))
}

fn is_entered(setup: &Setup, now: &Texts) -> bool {
    setup.files.iter().any(|file| now.get(&file.path).is_some_and(|text| file.role.has(text, &setup.ours)))
}

fn digest(now: &Texts) -> String {
    files::digest(now.iter().map(|(path, text)| (path.as_path(), text)))
}

fn names(setup: &Setup) -> String {
    setup.files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>().join(" or ")
}
