//! `cuInit` in the supervised child, with the stand-in library, and in the agent's report.

use std::{fs, time::Duration};

use gpu_host::{
    nvml::{protocol::CudaInit, supervisor::Supervisor},
    observe::driver::CONTAINER_ROOT,
};
use gpu_operator_crd::report::{CudaError, NvmlState};
use nix::{
    errno::Errno,
    sys::{
        signal::kill,
        stat::{Mode, SFlag, makedev, mknod},
    },
    unistd::{Pid, geteuid},
};
use test_support::host::Host;

use crate::{
    child::{anything, limits, patient, probe, script, target},
    running::{GPUS, Running, existing, served},
};

fn not_ready() -> CudaError {
    CudaError { code: 802, name: "CUDA_ERROR_SYSTEM_NOT_READY".into() }
}

fn fail(host: &Host, code: u32) {
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine["cudaError"] = code.into());
}

#[tokio::test]
async fn cuda_is_initialised_in_a_process_that_ends() {
    let host = Host::new();
    host.install(CONTAINER_ROOT, "580.173.02", &GPUS);
    let target = target(&host, false, "580.173.02").unwrap();
    let mut supervisor = Supervisor::new(probe(), patient());
    assert_eq!(supervisor.init_cuda(&target).await, CudaInit::Succeeded);
    assert!(!host.is_held(CONTAINER_ROOT));
    fail(&host, 802);
    assert_eq!(supervisor.init_cuda(&target).await, CudaInit::Failed(not_ready()));
    fail(&host, 304);
    let result = supervisor.init_cuda(&target).await;
    assert!(matches!(&result, CudaInit::Unknown(_)), "{result:?}");
    for (change, expected) in [("hang", "cuInit has not returned within 0.3 s"), ("crash", "its process ended")] {
        let mut supervisor = Supervisor::new(probe(), limits(Duration::from_millis(300)));
        host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine[change] = true.into());
        let result = supervisor.init_cuda(&target).await;
        assert!(matches!(&result, CudaInit::Unknown(why) if why.contains(expected)), "{result:?}");
        assert!(!host.is_held(CONTAINER_ROOT), "{change}");
    }
    fs::remove_file(host.path("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.173.02")).unwrap();
    let result = supervisor.init_cuda(&target).await;
    assert!(matches!(&result, CudaInit::Unknown(why) if why.contains("libcuda.so.580.173.02")), "{result:?}");
}

#[tokio::test]
async fn a_release_ends_a_call_of_cuda_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let mut supervisor = Supervisor::new(
        script(format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", started.display())),
        patient(),
    );
    let process = async {
        loop {
            match fs::read_to_string(&started) {
                Ok(pid) => return Pid::from_raw(pid.trim().parse().unwrap()),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let target = anything();
    let process = tokio::select! {
        result = supervisor.init_cuda(&target) => panic!("{result:?}"),
        process = process => process,
    };
    assert_eq!(kill(process, None), Ok(()));
    supervisor.release().await.unwrap();
    assert_eq!(kill(process, None), Err(Errno::ESRCH));
}

#[tokio::test]
async fn the_report_has_cudas_error_until_a_call_succeeds() {
    if !geteuid().is_root() {
        eprintln!("skipped: creating device nodes requires root privileges");
        return;
    }
    let host = served();
    for (minor, name) in (0..).zip(["nvidia-uvm", "nvidia-uvm-tools"]) {
        let path = host.path("run/nvidia/driver/dev").join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(511, minor)).unwrap();
    }
    let control = host.path("run/nvidia/driver/dev/nvidiactl");
    fs::remove_file(&control).unwrap();
    mknod(&control, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
    fail(&host, 802);
    // An earlier process has seen the error twice.
    let agent = Running::start(&host, existing(false, None), crate::running::patient());
    let mut before = agent.awaits(|report| report.nvml.state == NvmlState::Answering).await;
    assert_eq!(before.driver.cuda_error, None, "one failure does not count");
    agent.end().await;
    before.driver.cuda_error = Some(not_ready());
    let agent = Running::start(&host, existing(false, Some(before)), crate::running::patient());
    agent.releases(true);
    let released = agent.awaits(|report| report.nvml.state == NvmlState::Released).await;
    assert_eq!(released.driver.cuda_error, Some(not_ready()), "the same driver is loaded");
    fail(&host, 0);
    agent.releases(false);
    let works = agent.awaits(|report| report.nvml.state == NvmlState::Answering && report.driver.cuda_error.is_none());
    works.await;
    agent.end().await;
}
