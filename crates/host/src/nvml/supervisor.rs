//! Supervises the NVML child: starts it, queries it, ends it, and never waits for it longer than its limits.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use gpu_operator_crd::report::NvmlState;
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{
    protocol::{CudaInit, Inventory, MigStep, Request, Response},
    trusted::Target,
};
use crate::process::Backoff;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One response of the child, including its start and loading the library.
    pub answer: Duration,
    /// The child's exit after its input is closed.
    pub end: Duration,
    /// The child's exit after SIGKILL. A process that is stuck in the driver survives even that.
    pub kill: Duration,
    /// The pause after the first failure; it doubles up to `longest_pause`.
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            end: Duration::from_secs(2),
            kill: Duration::from_secs(5),
            first_pause: Duration::from_secs(5),
            longest_pause: Duration::from_mins(5),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvmlStatus {
    /// There is no driver to query; the text gives the reason where it is worth reporting.
    Absent(Option<String>),
    Answering(Inventory),
    /// NVML failed, or is in the pause after a failure.
    Failing(String),
    /// No process of the probe holds the driver, as requested.
    Released,
}

impl NvmlStatus {
    pub fn inventory(&self) -> Option<&Inventory> {
        match self {
            Self::Answering(inventory) => Some(inventory),
            Self::Absent(_) | Self::Failing(_) | Self::Released => None,
        }
    }

    /// Returns the state as the API has it.
    pub fn state(&self) -> NvmlState {
        match self {
            Self::Absent(_) => NvmlState::Absent,
            Self::Answering(_) => NvmlState::Answering,
            Self::Failing(_) => NvmlState::Failing,
            Self::Released => NvmlState::Released,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    InUse(String),
    Failed(String),
}

/// In bytes: many times the readings of sixteen GPUs.
const MAX_RESPONSE: u64 = 4 * 1024 * 1024;

/// The libraries that have a process of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Nvml,
    Cuda,
}

pub type ChildCommand = Box<dyn Fn(Api, &Target) -> Command + Send>;

/// The only owner of the NVML child, and of the one that calls CUDA. There is never more than one of each, including stuck ones.
///
/// Any future of the supervisor can be dropped midway: the child stays known, and the next call ends it.
pub struct Supervisor {
    command: ChildCommand,
    limits: Limits,
    running: Option<Running>,
    cuda: Option<Running>,
    target: Option<Target>,
    backoff: Backoff,
    failure: String,
}

struct Running {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// A request is in progress, or was abandoned without its response.
    awaiting_response: bool,
    killed: bool,
}

#[derive(Debug, thiserror::Error)]
enum ChildFailure {
    #[error("cannot start the process: {0}")]
    Start(std::io::Error),
    #[error("NVML gave no answer within {} s; its process was killed", .0.as_secs_f32())]
    TimedOut(Duration),
    #[error("cannot encode the request to NVML: {0}")]
    Encode(serde_json::Error),
    #[error("the NVML process {0}")]
    Ended(String),
    #[error("cannot parse the NVML process's response: {0}")]
    Decode(serde_json::Error),
    #[error("the NVML process's response is longer than {MAX_RESPONSE} bytes")]
    TooLong,
    #[error("{0}")]
    Nvml(String),
    #[error("a process that called NVML or CUDA is stuck in the driver and cannot be killed; reboot the node")]
    Stuck,
}

impl Supervisor {
    pub fn new(command: ChildCommand, limits: Limits) -> Self {
        let backoff = Backoff::new(limits.first_pause, limits.longest_pause);
        Self { command, limits, running: None, cuda: None, target: None, backoff, failure: String::new() }
    }

    /// Returns the driver that a running child serves, if it is the loaded one. Its library may be gone by now,
    /// together with the container that provided it: the child's mapped copy still answers, and holds the module until
    /// the child exits.
    pub fn running_target(&self, loaded: Option<&str>, boot_id: &str) -> Option<Target> {
        let alive = self.running.as_ref().is_some_and(|child| !child.awaiting_response && !child.killed);
        let serves = |target: &&Target| loaded == Some(&target.version) && target.boot_id == boot_id;
        self.target.as_ref().filter(|_| alive).filter(serves).cloned()
    }

    /// Queries NVML for the GPUs on the bus, with a child for exactly this driver. Takes no longer than the limits.
    pub async fn query(
        &mut self,
        target: Result<Target, Option<String>>,
        on_bus: &[String],
        now: Instant,
    ) -> NvmlStatus {
        self.query_child(target, Request::Gpus(on_bus.to_vec()), now).await
    }

    /// Queries NVML as above, and also for how the GPUs are partitioned by MIG.
    pub async fn query_with_mig(&mut self, target: Result<Target, Option<String>>, on_bus: &[String]) -> NvmlStatus {
        let request = Request::GpusAndMig { with_mig: on_bus.to_vec() };
        self.query_child(target, request, Instant::now()).await
    }

    async fn query_child(
        &mut self,
        target: Result<Target, Option<String>>,
        request: Request,
        now: Instant,
    ) -> NvmlStatus {
        let (target, why) = match target {
            Ok(target) => (Some(target), None),
            Err(why) => (None, why),
        };
        let changed = self.target != target;
        if changed {
            self.backoff.succeeded();
            self.target.clone_from(&target);
        }
        let left_over = self.running.as_ref().is_some_and(|child| child.awaiting_response || child.killed);
        if (changed || left_over)
            && let Err(stuck) = self.end().await
        {
            return NvmlStatus::Failing(stuck);
        }
        let Some(target) = target else { return NvmlStatus::Absent(why) };
        if !self.backoff.is_due(now) {
            return NvmlStatus::Failing(self.failure.clone());
        }
        let response = self.send(&target, &request).await.and_then(|response| match response {
            Response::Inventory(inventory) => Ok(inventory),
            // Loading again takes a new process: a partly loaded library may belong to a driver that is being replaced.
            Response::Failed(why) | Response::InUse(why) => Err(ChildFailure::Nvml(why)),
            Response::StepDone => Err(ChildFailure::Nvml("NVML was queried and applied a MIG step instead".to_owned())),
        });
        match response {
            Ok(inventory) => {
                self.backoff.succeeded();
                NvmlStatus::Answering(inventory)
            }
            Err(failure) => {
                let pause = self.backoff.failed(now);
                self.failure = failure.to_string();
                tracing::warn!(failure = self.failure, retry_in_s = pause.as_secs(), "NVML does not answer");
                // A stuck child stays known; the next query finds it again and reports it.
                drop(kill(&mut self.running, self.limits).await);
                NvmlStatus::Failing(self.failure.clone())
            }
        }
    }

    pub async fn apply_mig_step(&mut self, pci_address: &str, step: &MigStep) -> Result<(), StepError> {
        let target = self.target.clone().ok_or_else(|| StepError::Failed("there is no driver to query".to_owned()))?;
        let request = Request::ApplyMigStep { pci_address: pci_address.to_owned(), step: step.clone() };
        match self.send(&target, &request).await {
            Ok(Response::InUse(why)) => Err(StepError::InUse(why)),
            Ok(Response::Failed(why)) => Err(StepError::Failed(why)),
            Ok(Response::StepDone | Response::Inventory(_)) => Ok(()),
            Err(failure) => {
                // A stuck child stays known; the next query finds it again and reports it.
                drop(kill(&mut self.running, self.limits).await);
                Err(StepError::Failed(failure.to_string()))
            }
        }
    }

    /// Calls `cuInit` in a short process of its own, which does not hold the driver afterwards.
    pub async fn init_cuda(&mut self, target: &Target) -> CudaInit {
        self.ask_cuda(target).await.unwrap_or_else(CudaInit::Unknown)
    }

    async fn ask_cuda(&mut self, target: &Target) -> Result<CudaInit, String> {
        kill(&mut self.cuda, self.limits).await?;
        let started = start((self.command)(Api::Cuda, target));
        let child = self.cuda.insert(started.map_err(|error| ChildFailure::Start(error).to_string())?);
        let answer = timeout(self.limits.answer, child.response()).await;
        kill(&mut self.cuda, self.limits).await?;
        let line =
            answer.map_err(|_| format!("cuInit has not returned within {} s", self.limits.answer.as_secs_f32()))?;
        let line = line.ok_or("its process ended without an answer")?;
        serde_json::from_str(&line).map_err(|error| format!("cannot parse the answer of its process: {error}"))
    }

    /// Releases the driver as [`Self::end`] does, and also forgets the pause after an earlier failure.
    pub async fn release(&mut self) -> Result<(), String> {
        self.target = None;
        self.end().await
    }

    /// Ends the children, if there are any: NVML's first by closing its input, then by SIGKILL. Returns once they are gone.
    pub async fn end(&mut self) -> Result<(), String> {
        kill(&mut self.cuda, self.limits).await?;
        let Some(child) = &mut self.running else { return Ok(()) };
        // A child that owes a response does not read its input.
        if !child.awaiting_response && !child.killed {
            child.input = None;
            if timeout(self.limits.end, child.process.wait()).await.is_ok() {
                self.running = None;
                return Ok(());
            }
        }
        kill(&mut self.running, self.limits).await
    }

    async fn send(&mut self, target: &Target, request: &Request) -> Result<Response, ChildFailure> {
        let request = serde_json::to_string(request).map_err(ChildFailure::Encode)?;
        let child = match &mut self.running {
            Some(child) => child,
            none => none.insert(start((self.command)(Api::Nvml, target)).map_err(ChildFailure::Start)?),
        };
        child.awaiting_response = true;
        let line = timeout(self.limits.answer, child.exchange(request))
            .await
            .map_err(|_| ChildFailure::TimedOut(self.limits.answer))?;
        let Some(line) = line else {
            // Its output is closed, so it has exited or is about to.
            let status = timeout(self.limits.kill, child.process.wait()).await;
            return Err(ChildFailure::Ended(
                status.ok().and_then(Result::ok).map_or("closed its output".into(), exit_description),
            ));
        };
        if !line.ends_with('\n') {
            return Err(ChildFailure::TooLong);
        }
        let response = serde_json::from_str(&line).map_err(ChildFailure::Decode)?;
        child.awaiting_response = false;
        Ok(response)
    }
}

impl Running {
    /// Returns the response line, at most [`MAX_RESPONSE`] of it, or `None` once the child has closed its output.
    async fn exchange(&mut self, request: String) -> Option<String> {
        let input = self.input.as_mut()?;
        input.write_all((request + "\n").as_bytes()).await.ok()?;
        input.flush().await.ok()?;
        self.response().await
    }

    async fn response(&mut self) -> Option<String> {
        let mut line = String::new();
        (&mut self.output).take(MAX_RESPONSE).read_line(&mut line).await.ok()?;
        let is_complete = line.ends_with('\n') || line.len() as u64 == MAX_RESPONSE;
        is_complete.then_some(line)
    }
}

async fn kill(child: &mut Option<Running>, limits: Limits) -> Result<(), String> {
    let Some(running) = child else { return Ok(()) };
    running.killed = true;
    // This fails only if the child has already exited.
    drop(running.process.start_kill());
    if timeout(limits.kill, running.process.wait()).await.is_err() {
        return Err(ChildFailure::Stuck.to_string());
    }
    *child = None;
    Ok(())
}

fn start(mut command: Command) -> std::io::Result<Running> {
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(std::io::Error::other("no pipe to the process"));
    };
    Ok(Running { process, input: Some(input), output: BufReader::new(output), awaiting_response: false, killed: false })
}

fn exit_description(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            format!("was ended by signal {number} ({name})")
        }
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

pub fn child_command(program: PathBuf) -> ChildCommand {
    Box::new(move |api, target| {
        let mut command = Command::new(&program);
        let (name, library) = match api {
            Api::Nvml => ("nvml-child", target.library.clone()),
            Api::Cuda => ("cuda-child", target.cuda()),
        };
        command.arg(name).arg("--parent").arg(std::process::id().to_string());
        command.arg("--host-root").arg(&target.host_root);
        if let Some(root) = &target.chroot {
            command.arg("--chroot").arg(root);
        }
        command.arg("--library").arg(library);
        // The vendor's libraries get nothing of the probe's environment, least of all the location of its API token.
        command.env_clear();
        if api == Api::Cuda {
            // No MPS daemon listens there: its clients get CUDA's errors from the daemon.
            command.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
        }
        command
    })
}
