//! Configuration of a container runtime: NVIDIA's own installer, the restart of the real containerd, and the state
//! after the removal.

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{
    support::{
        DEFAULT_DRIVER, Fixture, READY, UNCHECKED, long_test, started, test, test_on_containerd_1, test_on_docker,
    },
    systems::nvidia_smi_shows,
};

/// Returns the files of containerd's configuration, with their names.
fn configuration(f: &Fixture) -> Result<String> {
    let script = "cd /etc/containerd; for file in $(find . -type f | sort); do echo \"== $file\"; cat $file; done";
    f.host.exec(&["/bin/sh", "-ec", script])
}

/// Deletes the pods and the policy, and waits until the operands are gone.
async fn remove(f: &Fixture) -> Result<()> {
    f.cluster.kubectl(&["delete", "pods", "--all", "-n", &f.users(), "--grace-period=1"])?;
    f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=5m"])?;
    f.wait_for_no_operands().await
}

/// Checks that the Job of the described systems, which sets a limit and no RuntimeClass, gets one GPU.
async fn plain_job_gets_one_gpu(f: &Fixture) -> Result<()> {
    nvidia_smi_shows(f, (keys::MODEL, "nvidia-h100-80gb"), "NVIDIA H100 80GB HBM3 81559MiB", DEFAULT_DRIVER).await
}

/// Checks that a pod that sets the RuntimeClass gets one GPU, with these variables.
async fn pod_of_the_class_gets_one_gpu(f: &Fixture, env: &[(&str, &str)]) -> Result<()> {
    let mut pod = f.gpu_pod("classed", &["/usr/bin/entrypoint", "hold"]);
    pod["spec"]["runtimeClassName"] = "nvidia".into();
    let env = env.iter().map(|(name, value)| json!({"name": name, "value": value}));
    pod["spec"]["containers"][0]["env"].as_array_mut().context("an environment")?.extend(env);
    f.create(pod).await?;
    f.runs("classed").await?;
    f.sees_one_gpu("classed")
}

#[test]
fn nvidias_runtime_takes_one_restart_and_leaves_no_trace() {
    long_test(async |f| {
        let found = configuration(&f)?;
        f.host.restart_containerd()?;
        let before = f.host.containerd_starts()?;
        let restarts = || anyhow::Ok(f.host.containerd_starts()? - before);
        f.apply("{defaults: {toolkit: {injection: Runtime, setAsDefault: false}}}").await?;
        f.wait_until_ready().await?;
        ensure!(restarts()? == 1, "containerd was restarted {} times", restarts()?);
        let configured = configuration(&f)?;
        ensure!(configured.contains("nvidia-container-runtime"), "{configured}");
        let class = Api::<RuntimeClass>::all(f.cluster.client()).get("nvidia").await?;
        ensure!(class.handler == "nvidia", "{class:?}");
        let message = f.status().await?.message;
        ensure!(message.contains("must set runtimeClassName: nvidia"), "{message}");
        pod_of_the_class_gets_one_gpu(&f, &[]).await?;

        // A recreated pod finds the configuration up to date.
        f.remake(Stage::Toolkit).await?;
        ensure!(configuration(&f)? == configured && restarts()? == 1, "restarted {} times", restarts()?);

        // If a user removes it, the toolkit's pod detects that within a minute, and another pod configures it again.
        f.host.exec(&["/bin/rm", "/etc/containerd/conf.d/99-nvidia.toml"])?;
        eventually(2 * READY, "the restored configuration", || async {
            ensure!(configuration(&f)? == configured, "the configuration is still missing");
            let pod = f.operand(Stage::Toolkit).await?;
            ensure!(started(&pod).is_some(), "the toolkit's pod is not running yet: {:?}", pod.status);
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        ensure!(restarts()? == 1, "containerd was restarted for a configuration that it still has loaded");

        f.apply("{defaults: {toolkit: {injection: Runtime}}}").await?;
        f.wait_for_status("a node on which pods need no RuntimeClass", |status| {
            ensure!(status.is_ready() && !status.message.contains("runtimeClassName"), "{}", status.message);
            Ok(())
        })
        .await?;
        eventually(READY, "NVIDIA's runtime as the default", || async {
            let configured = configuration(&f)?;
            ensure!(configured.contains("default_runtime_name = \"nvidia\"") && restarts()? == 2, "{configured}");
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        plain_job_gets_one_gpu(&f).await?;

        remove(&f).await?;
        let left = configuration(&f)?;
        ensure!(left == found, "{left}");
        ensure!(restarts()? == 3, "new containers would still be started by the removed default");
        Ok(())
    });
}

#[test]
fn cdi_is_enabled_in_containerd_and_plain_pods_get_a_gpu() {
    test_on_containerd_1(async |f| {
        let found = configuration(&f)?;
        // containerd keeps the configuration of an earlier test loaded until it is restarted.
        f.host.restart_containerd()?;
        let before = f.host.containerd_starts()?;
        let restarts = || anyhow::Ok(f.host.containerd_starts()? - before);
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        ensure!(restarts()? == 1, "containerd was restarted {} times", restarts()?);
        plain_job_gets_one_gpu(&f).await?;
        // With CDI, a variable that asks NVIDIA's runtime for all GPUs has no effect.
        pod_of_the_class_gets_one_gpu(&f, &[("NVIDIA_VISIBLE_DEVICES", "all")]).await?;

        remove(&f).await?;
        let left = configuration(&f)?;
        ensure!(left == found, "{left}");
        ensure!(restarts()? == 1, "containerd was restarted for the removal");
        Ok(())
    });
}

#[test]
fn cdi_that_the_host_disables_is_enabled_first() {
    long_test(async |f| {
        let host_has = |enabled: bool| {
            let edit = format!("s/enable_cdi = {}/enable_cdi = {enabled}/", !enabled);
            f.host.exec(&["/bin/sed", "-i", &edit, "/etc/containerd/config.toml"])?;
            f.host.restart_containerd()
        };
        // A run that failed has left it disabled.
        host_has(true)?;
        let found = configuration(&f)?;
        f.apply("{rollout: {paused: true}}").await?;
        f.wait_until_ready().await?;
        host_has(false)?;
        let message = f.wait_for_reason(Reason::CdiDisabled).await?;
        ensure!(message.contains("enable_cdi = false"), "{message}");
        // Kubelet still offers the GPUs.
        f.create_on_gpu("refused", &["/usr/bin/entrypoint", "hold"]).await?;
        eventually(READY, "kubelet's Event on the pod", || async {
            let of_pod = "involvedObject.name=refused";
            let events = f.cluster.kubectl(&["get", "events", "-n", &f.users(), "--field-selector", of_pod])?;
            ensure!(events.contains("CDI support is explicitly disabled"), "{events}");
            Ok(())
        })
        .await?;
        let gpu_nodes = f.cluster.kubectl(&["get", "gpunodes", &f.host.name()])?;
        ensure!(gpu_nodes.contains("0/8") && gpu_nodes.contains("CdiDisabled"), "{gpu_nodes}");
        f.cluster.kubectl(&["delete", "pod", "refused", "-n", &f.users(), "--grace-period=1"])?;

        f.apply("{}").await?;
        f.wait_until_ready().await?;
        ensure!(configuration(&f)?.contains("enable_cdi = true"), "{}", configuration(&f)?);
        f.run_gpu_pod("classless").await?;
        f.sees_one_gpu("classless")?;

        remove(&f).await?;
        host_has(true)?;
        let left = configuration(&f)?;
        ensure!(left == found, "{left}");
        Ok(())
    });
}

#[test]
fn cdi_is_enabled_for_a_driver_in_a_plain_folder() {
    test_on_containerd_1(async |f| {
        f.host.set_install_dir(true)?;
        let file = format!("version: 580.173.02, runFile: {{sha256: {UNCHECKED}}}");
        let image = "image: {repository: localhost:5999/google/stand-in, tag: dev}";
        f.apply(&format!("{{defaults: {{driver: {{source: RunFile, {file}, {image}}}}}}}")).await?;
        f.wait_until_ready().await?;
        ensure!(configuration(&f)?.contains("enable_cdi = true"), "{}", configuration(&f)?);
        f.run_gpu_pod("classless").await?;
        f.sees_one_gpu("classless")
    });
}

#[test]
fn nvidias_nri_plugin_needs_no_configuration_of_containerd() {
    test(async |f| {
        let found = configuration(&f)?;
        let before = f.host.containerd_starts()?;
        let restarts = || anyhow::Ok(f.host.containerd_starts()? - before);
        f.apply("{defaults: {toolkit: {injection: NRI}}}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("nri").await?;
        f.sees_one_gpu("nri")?;
        let toolkit = f.operand(Stage::Toolkit).await?;
        ensure!(started(&toolkit).is_some(), "NVIDIA's installer is not running: {:?}", toolkit.status);
        let log = f.cluster.kubectl(&["logs", &toolkit.name_any(), "-n", f.cluster.namespace()])?;
        ensure!(log.contains("NRI"), "{log}");
        ensure!(configuration(&f)? == found && restarts()? == 0, "containerd was restarted {} times", restarts()?);
        Ok(())
    });
}

/// Returns the GPUs that a pod sees that requests none and asks NVIDIA's runtime for all.
async fn greedy_pod_sees(f: &Fixture) -> Result<Vec<String>> {
    let mut pod = f.gpu_pod("greedy", &["/usr/bin/entrypoint", "hold"]);
    pod["spec"]["runtimeClassName"] = "nvidia".into();
    let container = &mut pod["spec"]["containers"][0];
    container["resources"] = json!({});
    let all = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"});
    container["env"].as_array_mut().context("an environment")?.push(all);
    f.create(pod).await?;
    f.runs("greedy").await?;
    let mut devices = f.lists("greedy", "/dev")?;
    devices.retain(|device| device.starts_with("nvidia"));
    f.cluster.kubectl(&["delete", "pod", "greedy", "-n", &f.users(), "--grace-period=1"])?;
    Ok(devices)
}

#[test]
fn the_settings_for_tenants_hide_gpus_from_greedy_pods() {
    test(async |f| {
        let page = include_str!("../../../docs/guides/runtimes.md");
        let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
        let settings = blocks.find(|block| block.contains("volume-mounts")).context("the settings")?;
        f.apply("{defaults: {toolkit: {injection: Runtime}}}").await?;
        f.wait_until_ready().await?;
        let seen = greedy_pod_sees(&f).await?;
        ensure!(seen.contains(&"nvidia7".to_owned()), "the settings are not needed: {seen:?}");
        f.apply(settings).await?;
        f.wait_for_condition("Reconciling", "False").await?;
        f.wait_until_ready().await?;
        let seen = greedy_pod_sees(&f).await?;
        ensure!(seen.is_empty(), "a pod that requests no GPU sees {seen:?}");
        f.run_gpu_pod("modest").await?;
        f.sees_one_gpu("modest")?;
        // Otherwise, pods that other tests create here would be started by a runtime that the next test deletes.
        remove(&f).await
    });
}

#[test]
fn a_flag_that_docker_does_not_merge_is_named() {
    test_on_docker(async |f| {
        let daemon_json = || f.host.exec(&["/bin/cat", "/etc/docker/daemon.json"]);
        let found = daemon_json()?;
        f.host.restart_docker(&["--add-runtime=other=/usr/bin/other", "--default-runtime=runc"])?;
        f.apply("{}").await?;
        let message = f.wait_for_reason(Reason::RuntimeConfigRejected).await?;
        ensure!(message.contains("--default-runtime=runc") && !message.contains("--add-runtime"), "{message}");
        ensure!(daemon_json()? == found, "{}", daemon_json()?);
        f.host.restart_docker(&["--add-runtime=other=/usr/bin/other"])?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("on-docker").await?;
        f.sees_one_gpu("on-docker")?;
        // As after a reboot. A reload alone drops the runtimes that are flags.
        f.host.restart_docker(&["--add-runtime=other=/usr/bin/other"])?;
        let runtimes = f.host.docker_runtimes()?;
        ensure!(runtimes.contains("Docker nvidia of") && runtimes.contains("other"), "{runtimes}");
        f.wait_until_ready().await?;
        remove(&f).await?;
        ensure!(daemon_json()? == found, "{}", daemon_json()?);
        f.host.restart_docker(&[])
    });
}
