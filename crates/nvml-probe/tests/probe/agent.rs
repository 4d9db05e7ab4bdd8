//! The agent's loop: a host in a directory, the stand-in NVML, and a mocked API server.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gpu_host::{
    nvml::supervisor::{ChildCommand, Supervisor, child_command},
    observe::{containerd::SOCKETS, driver::CONTAINER_ROOT},
};
use gpu_operator_crd::report::{Holder, LoadedRuntime, NvmlState, Report};
use nvml_probe::report::gpu_node::GpuNodeView;
use serde_json::json;
use test_support::kubelet::{Answer, Kubelet, pod, runtime_status};
use tokio::process::Command;

use crate::{
    PROBE,
    api_server::PATH,
    running::{GPUS, Running, existing, node, patient, served, soon},
};

#[tokio::test]
async fn a_bare_node_is_reported_and_then_its_loaded_driver() {
    let host = node();
    let agent = Running::start(&host, GpuNodeView::Absent, patient());
    let bare = agent.reports(|_| true).await;
    assert_eq!(bare.gpus.len(), 2);
    assert_eq!(bare.nvml.state, NvmlState::Absent);
    assert_eq!((bare.os.id.as_str(), bare.os.version_id.as_str()), ("ubuntu", "22.04"));
    assert_eq!(bare.boot_id, "11111111-2222-3333-4444-555555555555");
    assert_eq!(bare.selinux, Some(false));
    host.install(CONTAINER_ROOT, "580.173.02", &GPUS);
    host.load("580.173.02");
    let ready = agent.reports(|report| report.nvml.state == NvmlState::Answering).await;
    assert_eq!(ready.driver.loaded.as_deref(), Some("580.173.02"));
    assert_eq!(ready.driver.cuda_version.as_deref(), Some("13.1"));
    assert_eq!(ready.driver.installed[0].root, CONTAINER_ROOT);
    assert_eq!(ready.gpus[1].uuid.as_deref(), Some("GPU-seven"));
    agent.end().await;
    assert!(!host.is_held(CONTAINER_ROOT));
}

#[tokio::test]
async fn programs_that_hold_the_gpus_are_listed_on_request() {
    let host = node();
    host.write("proc/4711/comm", "nvidia-smi");
    host.write("proc/4711/cgroup", "0::/user.slice");
    fs::create_dir_all(host.path("proc/4711/fd")).unwrap();
    symlink("/dev/nvidia0", host.path("proc/4711/fd/3")).unwrap();
    let agent = Running::start(&host, existing(false, None), patient());
    let before = agent.reports(|_| true).await;
    assert_eq!(before.driver.holders, None);
    agent.lists_holders(true);
    let listed = agent.awaits(|report| report.driver.holders.is_some()).await;
    let holder = Holder { pod_uid: None, pid: Some(4711), process: "nvidia-smi".into() };
    assert_eq!(listed.driver.holders, Some(vec![holder]));
    agent.lists_holders(false);
    agent.awaits(|report| report.driver.holders.is_none()).await;
    agent.end().await;
}

#[tokio::test]
async fn pods_with_gpus_are_listed_on_request_until_they_end() {
    let host = node();
    let socket = host.path("var/lib/kubelet/pod-resources/kubelet.sock");
    let names = |pods: &[&str]| pods.iter().map(|name| pod(name, "nvidia.com/gpu", &["GPU-six::0"])).collect();
    let kubelet = Kubelet::serve(&socket, Answer::Pods(names(&["team/b", "team/a"])));
    let agent = Running::start(&host, existing(false, None), patient());
    assert_eq!(agent.reports(|_| true).await.gpu_pods, None);
    agent.lists_holders(true);
    let listed = agent.awaits(|report| report.gpu_pods.is_some()).await.gpu_pods.unwrap();
    assert_eq!((listed.count, listed.names), (2, vec!["team/a".to_owned(), "team/b".to_owned()]));
    // Ten names are enough for a message; the number is exact.
    let many: Vec<_> = (10..22).map(|number| format!("team/{number}")).collect();
    kubelet.answers(Answer::Pods(names(&many.iter().map(String::as_str).collect::<Vec<_>>())));
    let pods = |count| move |report: &Report| report.gpu_pods.as_ref().is_some_and(|pods| pods.count == count);
    assert_eq!(agent.awaits(pods(12)).await.gpu_pods.unwrap().names, many[..10]);
    kubelet.answers(Answer::Pods(Vec::new()));
    agent.awaits(pods(0)).await;
    // Without an answer, nothing is known; the rest of the report is current.
    kubelet.answers(Answer::Status("14"));
    agent.awaits(|report| report.gpu_pods.is_none() && report.driver.holders.is_some()).await;
    // Kubelet restarts, with a new socket.
    drop(kubelet);
    let _kubelet = Kubelet::serve(&socket, Answer::Pods(names(&["team/c"])));
    agent.awaits(pods(1)).await;
    agent.lists_holders(false);
    agent.awaits(|report| report.gpu_pods.is_none()).await;
    agent.end().await;
}

#[tokio::test]
async fn the_driver_is_released_before_the_report_and_opened_again() {
    let host = served();
    let agent = Running::start(&host, GpuNodeView::Absent, patient());
    let before = agent.reports(|report| report.nvml.state == NvmlState::Answering).await;
    agent.sees(true, Some(before));
    let released = agent
        .reports(|report| {
            let released = report.nvml.state == NvmlState::Released;
            assert!(
                !released || !host.is_held(CONTAINER_ROOT),
                "the release was reported before the driver was released"
            );
            released
        })
        .await;
    assert_eq!(released.gpus.len(), 2);
    agent.sees(false, Some(released));
    agent.reports(|report| report.nvml.state == NvmlState::Answering).await;
    assert!(host.is_held(CONTAINER_ROOT));
    agent.end().await;
}

#[tokio::test]
async fn neither_a_release_nor_a_shutdown_waits_for_a_hanging_nvml() {
    let host = node();
    host.write("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1.2", "");
    host.load("1.2");
    // The child answers once, and hangs on the second request.
    let hangs = host.path("hangs");
    let answer = r#"{"inventory":{"driverVersion":"1.2","cudaVersion":null,"gpus":[]}}"#;
    let script = format!("read line; echo '{answer}'; read line; touch {}; exec sleep 1000", hangs.display());
    let launch: ChildCommand = Box::new(move |_, _| {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&script);
        command
    });
    let agent = Running::launch(&host, GpuNodeView::Absent, Supervisor::new(launch, patient()));
    let before = agent.reports(|report| report.nvml.state == NvmlState::Answering).await;
    soon(appears(&hangs)).await;
    agent.sees(true, Some(before));
    let released = agent.reports(|report| report.nvml.state == NvmlState::Released).await;
    fs::remove_file(&hangs).unwrap();
    agent.sees(false, Some(released));
    soon(appears(&hangs)).await;
    agent.end().await;
}

async fn appears(path: &Path) {
    while !path.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn nvml_is_not_queried_before_or_during_a_release() {
    let host = served();
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let real = child_command(PathBuf::from(PROBE));
    let launch: ChildCommand = Box::new(move |api, target| {
        counted.fetch_add(1, Ordering::SeqCst);
        real(api, target)
    });
    let agent = Running::launch(&host, GpuNodeView::Unknown, Supervisor::new(launch, patient()));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(starts.load(Ordering::SeqCst), 0, "it is not known whether a release is requested");
    agent.server.put(PATH, json!({"metadata": {"name": "n1"}}));
    agent.sees(true, None);
    let released = agent.reports(|_| true).await;
    assert_eq!((released.nvml.state, starts.load(Ordering::SeqCst)), (NvmlState::Released, 0));
    agent.sees(false, Some(released));
    agent.reports(|report| report.nvml.state == NvmlState::Answering).await;
    assert_eq!(starts.load(Ordering::SeqCst), 1);
    agent.end().await;
}

#[tokio::test]
async fn the_configuration_that_containerd_has_loaded_is_reported() {
    let host = node();
    let socket = SOCKETS[1];
    let status = |config: &str| Answer::Message(runtime_status(config));
    let enabled = status(
        r#"{"enableCDI": true, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"], "containerd": {"defaultRuntimeName": "runc"}}"#,
    );
    host.write("proc/9/comm", "containerd");
    host.write("proc/9/status", "PPid:\t1\nUid:\t0\t0\t0\t0\n");
    host.write("proc/9/cmdline", &format!("containerd\0-c\0/data/config.toml\0-a\0{socket}\0"));
    let containerd = Kubelet::serve(&host.path(socket), enabled);
    let agent = Running::start(&host, GpuNodeView::Absent, patient());
    let first = agent.reports(|_| true).await;
    let loaded = [LoadedRuntime {
        socket: socket.to_owned(),
        cdi: Some(true),
        cdi_spec_dirs: vec!["/etc/cdi".to_owned(), "/var/run/cdi".to_owned()],
        default_runtime: Some("runc".to_owned()),
        config: Some("/data/config.toml".to_owned()),
    }];
    assert_eq!(first.loaded_runtimes, loaded);

    // While it restarts, it answers with an error or not in its protocol, which proves nothing.
    let answers = [Answer::Status("14"), Answer::Body(Vec::new()), status("no JSON")];
    for (number, answer) in answers.into_iter().enumerate() {
        containerd.answers(answer);
        host.gpu(&format!("0000:08:0{number}.0"), "0x2330");
        let kept = agent.reports(|report| report.gpus.len() == 3 + number).await;
        assert_eq!(kept.loaded_runtimes, loaded);
    }
    containerd.answers(status(r#"{"enableCDI": false, "cdiSpecDirs": []}"#));
    let disabled = agent.reports(|report| report.loaded_runtimes != loaded).await;
    assert_eq!(
        disabled.loaded_runtimes,
        [LoadedRuntime { cdi: Some(false), cdi_spec_dirs: vec![], default_runtime: None, ..loaded[0].clone() }]
    );
    containerd.answers(status("{}"));
    agent.reports(|report| report.loaded_runtimes.iter().any(|loaded| loaded.cdi.is_none())).await;
    // A containerd without its CRI plugin serves Docker, for example.
    containerd.answers(Answer::Status("12"));
    agent.reports(|report| report.loaded_runtimes.is_empty()).await;
    agent.end().await;
}
