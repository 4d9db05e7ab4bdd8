use gpu_host::{
    nvml::protocol::MigId,
    observe::pod_resources::{Assignment, Source},
};

use super::*;

fn address(number: usize) -> String {
    format!("0000:0{number}:00.0")
}

/// Returns a node of eight GPUs; the last one has two MIG devices.
fn eight() -> (Vec<String>, NvmlStatus) {
    let addresses: Vec<_> = (0..8).map(address).collect();
    let mut gpus: Vec<_> = (0..8).map(|number| known(&address(number), &format!("GPU-{number}"), warm(41))).collect();
    for (gpu, minor) in gpus.iter_mut().zip(0..) {
        gpu.minor = Some(minor);
    }
    gpus[7].mig_ids = [1, 2]
        .map(|number| MigId {
            uuid: format!("MIG-{number}"),
            gpu_instance: Some(number + 6),
            profile: "1g.10gb".into(),
        })
        .into();
    (addresses, answering(gpus))
}

fn assigned(pod: &str, resource: &str, devices: &[&str]) -> Assignment {
    let devices = devices.iter().map(|id| (*id).to_owned()).collect();
    let source = Source::Resource(format!("nvidia.com/{resource}"));
    Assignment { namespace: "team".into(), pod: pod.into(), container: "main".into(), source, devices }
}

/// Returns the metrics of the eight GPUs, and what was assigned: GPU, pod and the labels after the resource of each series, sorted.
fn attributed(metrics: &Metrics, assignments: Vec<Assignment>) -> Vec<String> {
    metrics.show_pods(assignments);
    let text = metrics.text().unwrap();
    let value = |line: &str, label: &str| {
        let (_, rest) = line.split_once(&format!(r#",{label}=""#))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let mut series: Vec<_> =
        samples(&text, &["nvml_probe_gpu_pod_info{", r#"namespace="team""#, r#"container="main""#])
            .into_iter()
            .map(|line| {
                let labels = ["uuid", "pod", "resource", "mig_uuid", "mig_profile", "replicas"];
                labels.iter().filter_map(|label| value(line, label)).collect::<Vec<_>>().join(" ")
            })
            .collect();
    series.sort_unstable();
    series
}

#[test]
fn each_gpu_names_its_pods_and_none_after_they_ended() {
    let metrics = Metrics::new("n1");
    let (addresses, look) = eight();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    show(&metrics, &addresses, &look);
    let one = assigned("one", "gpu", &["GPU-0"]);
    let five = assigned("five", "gpu", &["GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5"]);
    let shared = [
        assigned("shared-a", "gpu.shared", &["GPU-6::0", "GPU-6::2"]),
        assigned("shared-b", "gpu.shared", &["GPU-6::1"]),
        assigned("shared-c", "gpu.shared", &["GPU-6::3"]),
    ];
    let mig = assigned("mig", "mig-1g.10gb", &["MIG-2"]);
    let unknown = assigned("unknown", "gpu", &["GPU-9", "nvidia9", ""]);
    let all = [vec![one.clone(), five.clone(), mig.clone(), unknown], shared.to_vec()].concat();
    let expected = [
        "GPU-0 one nvidia.com/gpu",
        "GPU-1 five nvidia.com/gpu",
        "GPU-2 five nvidia.com/gpu",
        "GPU-3 five nvidia.com/gpu",
        "GPU-4 five nvidia.com/gpu",
        "GPU-5 five nvidia.com/gpu",
        "GPU-6 shared-a nvidia.com/gpu.shared 2",
        "GPU-6 shared-b nvidia.com/gpu.shared 1",
        "GPU-6 shared-c nvidia.com/gpu.shared 1",
        "GPU-7 mig nvidia.com/mig-1g.10gb MIG-2 1g.10gb",
    ];
    assert_eq!(attributed(&metrics, all), expected);
    // While NVML is released, the pods still have their GPUs.
    show(&metrics, &addresses, &NvmlStatus::Released);
    let left = [expected[0], expected[8], expected[9]];
    assert_eq!(attributed(&metrics, vec![one, shared[2].clone(), mig]), left);
    assert_eq!(attributed(&metrics, Vec::new()), [""; 0]);
    assert!(!metrics.text().unwrap().contains("gpu_pod_info"));
}

#[test]
fn devices_that_kubelet_lists_one_by_one_are_one_series() {
    let metrics = Metrics::new("n1");
    let (addresses, look) = eight();
    show(&metrics, &addresses.iter().map(String::as_str).collect::<Vec<_>>(), &look);
    // Each device on its own, and again for each of its NUMA nodes.
    let replicas = ["GPU-6::0", "GPU-6::2", "GPU-6::2"].map(|id| assigned("shared", "gpu.shared", &[id]));
    let whole = ["GPU-0", "GPU-0"].map(|id| assigned("whole", "gpu", &[id]));
    let expected = ["GPU-0 whole nvidia.com/gpu", "GPU-6 shared nvidia.com/gpu.shared 2"];
    assert_eq!(attributed(&metrics, [&replicas[..], &whole].concat()), expected);
}

#[test]
fn ids_of_googles_plugin_name_gpus_by_minor_and_mig_by_instance() {
    let metrics = Metrics::new("n1");
    let (addresses, look) = eight();
    show(&metrics, &addresses.iter().map(String::as_str).collect::<Vec<_>>(), &look);
    let two = assigned("two", "gpu", &["nvidia0", "nvidia1"]);
    let shared = assigned("shared", "gpu", &["nvidia2/vgpu3", "nvidia2/vgpu0"]);
    let mig = assigned("mig", "gpu", &["nvidia7/gi8"]);
    let part = assigned("part", "gpu", &["nvidia7/gi7/vgpu1"]);
    let gone = assigned("gone", "gpu", &["nvidia7/gi1", "nvidia10"]);
    let nic = Assignment { source: Source::Resource("vendor.example/nic".into()), ..assigned("nic", "", &["nvidia0"]) };
    let expected = [
        "GPU-0 two nvidia.com/gpu",
        "GPU-1 two nvidia.com/gpu",
        "GPU-2 shared nvidia.com/gpu 2",
        "GPU-7 mig nvidia.com/gpu MIG-2 1g.10gb",
        "GPU-7 part nvidia.com/gpu MIG-1 1g.10gb 1",
    ];
    assert_eq!(attributed(&metrics, vec![two, shared, mig, part, gone, nic]), expected);
}

#[test]
fn claims_name_gpus_by_minor() {
    let metrics = Metrics::new("n1");
    let (addresses, look) = eight();
    show(&metrics, &addresses.iter().map(String::as_str).collect::<Vec<_>>(), &look);
    let claims = |pod, driver: &str, devices: &[&str]| Assignment {
        source: Source::Claim(driver.into()),
        ..assigned(pod, "", devices)
    };
    let gpu = claims("claims", "gpu.nvidia.com", &["gpu-3"]);
    let others = [
        claims("mig", "gpu.nvidia.com", &["gpu-7-mig-1g10gb-19-0"]),
        claims("gone", "gpu.nvidia.com", &["gpu-9", "gpu-", "nvidia0", ""]),
        claims("other", "gpu.vendor.example", &["gpu-0"]),
    ];
    assert_eq!(attributed(&metrics, [vec![gpu], others.to_vec()].concat()), ["GPU-3 claims gpu.nvidia.com"]);
}
