//! A pod's status as kubelet reports it.

use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
        PodCondition, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

use super::pod::{Crash, PlacedContainer, PlacedPod, PodState, Run};

/// Returns the status of a pod whose containers are in this state.
pub(super) fn pod_status(pod: &PlacedPod, state: &PodState) -> PodStatus {
    let since = state.since.unwrap_or(Timestamp::UNIX_EPOCH);
    let initialized = state.init.iter().map(done_at).collect::<Option<Vec<_>>>().map(|times| latest(&times, since));
    let ready = state.main.iter().map(running_since).collect::<Option<Vec<_>>>().map(|times| latest(&times, since));
    let ready = initialized.and(ready);
    let waiting = if pod.init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let containers = |placed: &[PlacedContainer], runs: &[Run], ready: fn(&Run) -> bool| {
        let status = |(container, run)| ContainerStatus {
            ready: ready(run),
            ..container_status(container, run, state.restarts, waiting)
        };
        (!placed.is_empty()).then(|| placed.iter().zip(runs).map(status).collect::<Vec<_>>())
    };
    PodStatus {
        phase: Some(if ready.is_some() { "Running" } else { "Pending" }.to_owned()),
        start_time: Some(Time(since)),
        conditions: Some(vec![
            condition("Initialized", initialized, since),
            condition("ContainersReady", ready, since),
            condition("Ready", ready, since),
        ]),
        init_container_statuses: containers(&pod.init, &state.init, Run::is_done),
        container_statuses: containers(&pod.main, &state.main, Run::is_running),
        ..PodStatus::default()
    }
}

fn latest(times: &[Timestamp], or: Timestamp) -> Timestamp {
    times.iter().copied().max().unwrap_or(or)
}

fn done_at(run: &Run) -> Option<Timestamp> {
    if let Run::Done(at) = run { Some(*at) } else { None }
}

fn running_since(run: &Run) -> Option<Timestamp> {
    if let Run::Running(since, _) = run { Some(*since) } else { None }
}

fn condition(kind: &str, since: Option<Timestamp>, created: Timestamp) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if since.is_some() { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(Time(since.unwrap_or(created))),
        ..PodCondition::default()
    }
}

fn container_status(container: &PlacedContainer, run: &Run, restarts: i32, waiting: &str) -> ContainerStatus {
    let image = &container.image;
    let (state, last_state) = match run {
        Run::NotYet | Run::Starting(_) => (waiting_state(waiting, None), None),
        Run::NoImage => {
            let error =
                format!("rpc error: code = NotFound desc = failed to pull and unpack image {image:?}: not found");
            (
                waiting_state(
                    "ImagePullBackOff",
                    Some(format!("Back-off pulling image {image:?}: ErrImagePull: {error}")),
                ),
                None,
            )
        }
        Run::Crashed(crash) => {
            let message = format!("back-off 10s restarting failed container={}", container.name);
            (waiting_state("CrashLoopBackOff", Some(message)), Some(crashed_state(crash)))
        }
        Run::Running(since, before) => {
            let running = ContainerStateRunning { started_at: Some(Time(*since)) };
            (ContainerState { running: Some(running), ..ContainerState::default() }, before.as_ref().map(crashed_state))
        }
        Run::Done(at) => (terminated_state(0, "Completed", None, *at), None),
    };
    ContainerStatus {
        name: container.name.clone(),
        image: image.clone(),
        started: Some(run.is_running()),
        restart_count: restarts + i32::from(last_state.is_some()),
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn crashed_state(crash: &Crash) -> ContainerState {
    terminated_state(1, "Error", Some(crash.message.clone()), crash.at)
}

fn terminated_state(exit_code: i32, reason: &str, message: Option<String>, at: Timestamp) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code,
        reason: Some(reason.to_owned()),
        message,
        finished_at: Some(Time(at)),
        started_at: Some(Time(at)),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}
