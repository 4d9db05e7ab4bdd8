//! The states of a pod's containers on a simulated node.

use k8s_openapi::jiff::Timestamp;

/// The state of a pod's containers, in the order of the pod's spec.
#[derive(Clone, Debug, Default)]
pub(super) struct PodState {
    /// When the node first saw the pod.
    pub since: Option<Timestamp>,
    /// Whether it is a driver's pod: its end removes the driver.
    pub is_driver: bool,
    pub restarts: i32,
    pub init: Vec<Run>,
    pub main: Vec<Run>,
}

/// The state of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Run {
    /// Earlier containers of the pod have not finished yet.
    #[default]
    NotYet,
    /// It has been pulled and started since then.
    Starting(Timestamp),
    /// Its image cannot be pulled.
    NoImage,
    /// It crashed, and is not started again before the cause is gone.
    Crashed(Crash),
    /// It has been running since then; with the crash of the previous run, if it crashed.
    Running(Timestamp, Option<Crash>),
    /// It exited with code 0 then.
    Done(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crash {
    pub at: Timestamp,
    /// The last line of its log.
    pub message: String,
}

impl Run {
    /// Returns the state after a crash. A crash with the same message as the previous one is the same crash.
    pub fn crashed(message: &str, now: Timestamp, previous: &Self) -> Self {
        match previous {
            Self::Crashed(crash) if crash.message == message => previous.clone(),
            _ => Self::Crashed(Crash { at: now, message: message.to_owned() }),
        }
    }

    /// Returns the state after a start.
    pub fn started(now: Timestamp, previous: &Self) -> Self {
        match previous {
            Self::Crashed(crash) => Self::Running(now, Some(crash.clone())),
            _ => Self::Running(now, None),
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(..))
    }

    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

impl PodState {
    /// Returns whether any of its main containers is running.
    pub fn is_running(&self) -> bool {
        self.main.iter().any(Run::is_running)
    }
}
