//! How drivers are updated: `upgradePolicy` becomes `rollout`.

use gpu_operator_crd::policy::{Eviction, GpuPodsMode, RolloutGpuPods, RolloutStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::{selector, source::Source};

/// NVIDIA's defaults, which are this operator's, too.
const MAX_UNAVAILABLE: &str = "25%";
const MAX_PARALLEL: u32 = 100;

pub fn rollout(source: &mut Source) -> Option<RolloutStrategy> {
    if !source.has("driver.upgradePolicy") {
        return None;
    }
    let max_unavailable: Option<IntOrString> = source.typed("driver.upgradePolicy.maxUnavailable");
    let rollout = RolloutStrategy {
        max_parallel: max_parallel(source),
        max_unavailable: max_unavailable.filter(|most| *most != IntOrString::String(MAX_UNAVAILABLE.to_owned())),
        gpu_pods: gpu_pods(source),
        paused: (source.switch("driver.upgradePolicy.autoUpgrade") == Some(false)).then_some(true),
        ..RolloutStrategy::default()
    };
    Some(rollout)
}

fn max_parallel(source: &mut Source) -> Option<u32> {
    const PATH: &str = "driver.upgradePolicy.maxParallelUpgrades";
    match source.typed::<u32>(PATH)? {
        1 => None,
        number @ 2..=MAX_PARALLEL => Some(number),
        _ => {
            source.remark(
                &[PATH],
                format!("At most {MAX_PARALLEL} nodes are updated at a time; rollout.maxUnavailable limits them, too."),
            );
            Some(MAX_PARALLEL)
        }
    }
}

fn gpu_pods(source: &mut Source) -> RolloutGpuPods {
    const POLICY: &str = "driver.upgradePolicy";
    let mut seconds = |part: &str| source.typed::<u64>(&format!("{POLICY}.{part}.timeoutSeconds"));
    let (of_jobs, of_pods, of_drain) = (seconds("waitForCompletion"), seconds("podDeletion"), seconds("drain"));
    let selector = source.text(&format!("{POLICY}.waitForCompletion.podSelector"));
    let drains = source.switch(&format!("{POLICY}.drain.enable")) == Some(true);
    let mut is_on = |field: &str| {
        let of_pods = source.switch(&format!("{POLICY}.podDeletion.{field}"));
        let of_drain = source.switch(&format!("{POLICY}.drain.{field}"));
        of_pods == Some(true) || drains && of_drain == Some(true)
    };
    let (bare_pods, empty_dir) = (is_on("force"), is_on("deleteEmptyDir"));
    if drains {
        let path = format!("{POLICY}.drain.enable");
        source.remark(
            &[&path],
            "Only GPU pods are evicted. Nodes that are drained of all pods by hand are updated first.",
        );
    } else {
        source.take(&format!("{POLICY}.drain.podSelector"));
    }
    source.remark(
        &[&format!("{POLICY}.podDeletion")],
        "NVIDIA's operator evicts GPU pods at an update. So does the policy, if the value operator.evictPods of this operator's chart is true; \
         without it no update begins. To wait for the pods instead, as for the move to this operator, write rollout.gpuPods: {mode: Await}; to \
         update only idle nodes, remove rollout.gpuPods.",
    );
    let wait_for_jobs = selector.and_then(|text| {
        let parsed = selector::parse(&text);
        if parsed.is_none() {
            let path = format!("{POLICY}.waitForCompletion.podSelector");
            source.remark(
                &[&path],
                format!("Cannot be translated: {text}. Write the pods to await to rollout.gpuPods.waitForJobs."),
            );
        }
        parsed
    });
    // Zero is no limit: then the operator's own default applies.
    let for_jobs = wait_for_jobs.is_some().then(|| of_jobs.unwrap_or(0));
    let for_pods = of_pods.max(of_drain.filter(|_| drains)).unwrap_or(0);
    let limits: Vec<u64> = for_jobs.into_iter().chain([for_pods]).collect();
    let total = (!limits.contains(&0)).then(|| format!("{}s", limits.iter().sum::<u64>()));
    let timeout = total.and_then(|total| serde_json::from_value(json!(total)).ok());
    let evict = |is_on: bool| is_on.then_some(Eviction::Evict);
    RolloutGpuPods {
        mode: Some(GpuPodsMode::Evict),
        timeout,
        wait_for_jobs,
        bare_pods: evict(bare_pods),
        empty_dir: evict(empty_dir),
    }
}
