//! NVIDIA's real device plugin: the number of GPUs that a pod gets.

use anyhow::ensure;
use gpu_operator_crd::{keys, policy::Stage};
use kube::ResourceExt;

use crate::support::{GPUS, test};

#[test]
fn a_pod_sees_as_many_gpus_as_it_requests() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let plugin = f.operand(Stage::DevicePlugin).await?.name_any();
        let log = f.cluster.kubectl(&["logs", &plugin, "-n", f.cluster.namespace()])?;
        ensure!(
            log.contains("Registered device plugin for 'nvidia.com/gpu' with Kubelet"),
            "this is not NVIDIA's plugin: {log}"
        );
        for count in [1, 2, GPUS] {
            let name = format!("asks-for-{count}");
            let mut pod = f.gpu_pod(&name, &["/usr/bin/entrypoint", "hold"]);
            pod["spec"]["containers"][0]["resources"]["limits"][keys::GPU_RESOURCE] = count.to_string().into();
            f.create(pod).await?;
            f.runs(&name).await?;
            f.sees_gpus(&name, count)?;
            f.cluster.kubectl(&["delete", "pod", &name, "-n", &f.users()])?;
        }
        Ok(())
    });
}
