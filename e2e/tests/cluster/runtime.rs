//! A container runtime that is configured: NVIDIA's own installer, our restart of the real containerd, and what is left of
//! it all afterwards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use e2e::{RealNode, eventually};
use gpu_operator_crd::policy::Stage;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, ResourceExt};

use crate::support::{Fixture, READY, started, test};

/// What an init system does: containerd is started again whenever it ends.
struct Init {
    starts: Arc<AtomicU32>,
    done: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Init {
    fn of(host: &RealNode) -> Self {
        let (starts, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, told, host) = (Arc::clone(&starts), Arc::clone(&done), host.clone());
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                if host.revive_containerd().is_ok_and(|started| started) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Self { starts, done, thread: Some(thread) }
    }

    fn starts(&self) -> u32 {
        self.starts.load(Ordering::Relaxed)
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends");
        }
    }
}

/// The files of containerd's configuration, with their names.
fn configuration(f: &Fixture) -> Result<String> {
    let script = "cd /etc/containerd; for file in $(find . -type f | sort); do echo \"== $file\"; cat $file; done";
    f.host.exec(&["/bin/sh", "-ec", script])
}

#[test]
fn nvidias_runtime_is_entered_into_containerd_by_one_restart_and_taken_out_without_a_trace() {
    test(|f| async move {
        let found = configuration(&f)?;
        let init = Init::of(&f.host);
        f.apply("{defaults: {toolkit: {injection: Runtime}}}").await?;
        f.wait_until_ready().await?;
        ensure!(init.starts() == 1, "containerd was started {} times", init.starts());
        let entered = configuration(&f)?;
        ensure!(entered.contains("nvidia-container-runtime"), "{entered}");
        let class = Api::<RuntimeClass>::all(f.cluster.client()).get("nvidia").await?;
        ensure!(class.handler == "nvidia", "{class:?}");

        // A pod that is made anew finds all as it should be.
        f.remake(Stage::Toolkit).await?;
        ensure!(configuration(&f)? == entered && init.starts() == 1, "started {} times", init.starts());

        // Somebody takes it out: a pod of the toolkit's sees that within a minute, and another one enters it again.
        f.host.exec(&["/bin/rm", "/etc/containerd/conf.d/99-nvidia.toml"])?;
        eventually(2 * READY, "what was taken out", || async {
            ensure!(configuration(&f)? == entered, "it is still out");
            let pod = f.operand(Stage::Toolkit).await?;
            ensure!(started(&pod).is_some(), "it is not done yet: {:?}", pod.status);
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        ensure!(init.starts() == 1, "what containerd has loaded all the while needs no restart");

        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=60s"])?;
        f.wait_for_no_operands().await?;
        let left = configuration(&f)?;
        ensure!(left == found, "{left}");
        ensure!(init.starts() == 1, "what is taken out needs no restart");
        Ok(())
    });
}

#[test]
fn nvidias_nri_plugin_runs_beside_containerd_which_nobody_configures_or_restarts() {
    test(|f| async move {
        let found = configuration(&f)?;
        let init = Init::of(&f.host);
        f.apply("{defaults: {toolkit: {injection: Nri}}}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("nri").await?;
        f.sees_one_gpu("nri")?;
        let toolkit = f.operand(Stage::Toolkit).await?;
        ensure!(started(&toolkit).is_some(), "NVIDIA's installer stays and answers: {:?}", toolkit.status);
        let log = f.cluster.kubectl(&["logs", &toolkit.name_any(), "-n", f.cluster.namespace()])?;
        ensure!(log.contains("NRI"), "{log}");
        ensure!(configuration(&f)? == found && init.starts() == 0, "containerd was started {} times", init.starts());
        Ok(())
    });
}
