//! `demo`: shows how bare GPU nodes become schedulable.

use std::{io::IsTerminal, sync::mpsc, thread, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    cluster::{
        chart::RELEASE,
        clients::kubectl,
        diagnosis::diagnosis,
        lifecycle::{self, Extent},
        state::Purpose,
    },
    harness::{
        interrupts::{interrupted, pause},
        node_id::{DEFAULT_NODES, NodeId},
        paths::Paths,
        progress::{Step, heading},
        wait::poll,
    },
};

const DEADLINE: Duration = Duration::from_mins(5);
/// The image of the pods that show that a GPU can be used. nvidia-smi is part of the driver, not of the image.
const PLAIN_IMAGE: &str = "localhost:5999/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0";

/// Runs the demo. With `keep` the cluster keeps running afterwards, and so does a cluster that was already running.
pub(super) fn run(paths: &Paths, keep: bool) -> Result<()> {
    let was_running = lifecycle::running(paths).is_some();
    let is_kept = keep || was_running;
    let purpose = if keep { Purpose::Up } else { Purpose::Demo };
    let show = || {
        let state = lifecycle::up(paths, purpose, Extent::Policy, lifecycle::choose_nodes(DEFAULT_NODES))?;
        heading("what the operator does");
        if state.nodes.is_real() {
            watch(paths)?;
            run_plain_pods(paths)?;
        }
        print_objects(paths)?;
        print_next_steps(paths, is_kept);
        if !is_kept && std::io::stdin().is_terminal() {
            wait_for_enter();
        }
        Ok(())
    };
    if was_running {
        return show();
    }
    if !keep {
        return lifecycle::then_down(paths, show);
    }
    show().or_else(|error| lifecycle::then_down(paths, || Err(error)))
}

/// Prints the progress until the policy is Ready.
fn watch(paths: &Paths) -> Result<()> {
    let step = Step::start("waiting for the policy to become Ready");
    let mut last = String::new();
    poll("the policy's readiness", DEADLINE, || {
        let text = kubectl(paths, &["get", "clustergpupolicies,gpunodes", "-o", "json"])?;
        let (ready, line) = summarize(&serde_json::from_str(&text).context("parsing kubectl's output")?);
        if line != last {
            step.print(&line);
            last.clone_from(&line);
        }
        step.tick("");
        pause(Duration::from_millis(200))?;
        Ok(if ready { Ok(()) } else { Err(line) })
    })
    .with_context(|| diagnosis(paths, lifecycle::real_nodes(paths)))?;
    step.done();
    Ok(())
}

/// Runs a pod on each node that sets a limit of `nvidia.com/gpu` and nothing else, and prints which GPU it finds.
fn run_plain_pods(paths: &Paths) -> Result<()> {
    let step = Step::start("running a pod with a limit of nvidia.com/gpu on each node");
    let label = "app=plain";
    kubectl(paths, &["delete", "pods", "--selector", label, "--ignore-not-found"])?;
    let nodes = lifecycle::real_nodes(paths);
    for node in &nodes {
        let spec = json!({"spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{
                "name": "plain",
                "image": PLAIN_IMAGE,
                "command": ["nvidia-smi"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        }});
        let (name, image) = (format!("plain-on-{node}"), format!("--image={PLAIN_IMAGE}"));
        let overrides = format!("--overrides={spec}");
        kubectl(paths, &["run", &name, &image, "--restart=Never", "--labels", label, &overrides])?;
    }
    let succeeded = "--for=jsonpath={.status.phase}=Succeeded";
    kubectl(paths, &["wait", succeeded, "pods", "--selector", label, "--timeout=1m"])
        .with_context(|| diagnosis(paths, nodes.clone()))?;
    for node in &nodes {
        let log = kubectl(paths, &["logs", &format!("plain-on-{node}")])?;
        let gpus: Vec<&str> = log.lines().filter(|line| line.starts_with("GPU ")).collect();
        step.print(&format!("pod plain-on-{node}: {}", gpus.join(", ")));
    }
    step.done();
    Ok(())
}

/// Returns whether all policies are Ready, and a line with the state of all policies and nodes.
fn summarize(list: &Value) -> (bool, String) {
    let empty = Vec::new();
    let items = list["items"].as_array().unwrap_or(&empty);
    let mut policies = 0;
    let mut ready = 0;
    let mut parts = Vec::new();
    for item in items {
        let name = item["metadata"]["name"].as_str().unwrap_or("?");
        let status = &item["status"];
        if item["kind"] == "ClusterGpuPolicy" {
            policies += 1;
            let conditions = status["conditions"].as_array().unwrap_or(&empty);
            let condition = conditions.iter().find(|condition| condition["type"] == "Ready");
            let current = condition.is_some_and(|found| {
                found["observedGeneration"].is_null() || found["observedGeneration"] == item["metadata"]["generation"]
            });
            let is_ready = current && condition.is_some_and(|found| found["status"] == "True");
            ready += u32::from(is_ready);
            let reason = condition.and_then(|found| found["reason"].as_str()).unwrap_or("not seen yet");
            parts.push(format!("policy {name}: {reason}"));
        } else {
            let phase = status["phase"].as_str().unwrap_or("new");
            let reason = status["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
            parts.push(format!("node {name}: {phase}{reason}"));
        }
    }
    (policies > 0 && ready == policies, parts.join(", "))
}

fn print_objects(paths: &Paths) -> Result<()> {
    let columns = "-o=custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\.com/gpu";
    let commands: [&[&str]; 4] = [
        &["get", "clustergpupolicy"],
        &["get", "gpunodes"],
        &["get", "nodes", columns],
        &["get", "pods", "--namespace", RELEASE],
    ];
    for args in commands {
        let quoted: Vec<String> =
            args.iter().map(|arg| if arg.contains('\\') { format!("\"{arg}\"") } else { (*arg).to_owned() }).collect();
        outln!("\n$ kubectl {}\n{}", quoted.join(" "), kubectl(paths, args)?.trim_end());
    }
    Ok(())
}

fn print_next_steps(paths: &Paths, is_kept: bool) {
    let is_interactive = std::io::stdin().is_terminal();
    outln!("\nWhat to try next{}:\n", if is_interactive && !is_kept { ", in another shell" } else { "" });
    if !is_interactive && !is_kept {
        outln!("  cargo xtask demo --keep   # run the demo again and keep the cluster");
    }
    outln!("  export KUBECONFIG={}", paths.kubeconfig().display());
    outln!("  export PATH={}:$PATH", paths.bin().display());
    outln!("  kubectl describe clustergpupolicy fleet");
    outln!("  kubectl get gpunode gpu-node-1 -o yaml");
    outln!("  kubectl get events --sort-by=.lastTimestamp");
    outln!("  # a driver that fails, and recovers when the file is removed:");
    let driver = paths.standin(NodeId::FIRST).join("driver.json");
    outln!("  echo '{{\"mode\":\"crash\",\"message\":\"no kernel headers\"}}' > {}", driver.display());
    outln!("  kubectl delete pods --namespace gpu-operator --selector gpu.nodestack.dev/stage=driver");
    outln!("  kubectl get gpunodes --watch");
    outln!("  rm {}", driver.display());
    if is_kept {
        outln!("\nStop the cluster with: cargo xtask down");
    } else if is_interactive {
        outln!("\nTo keep the cluster: cargo xtask demo --keep");
    }
}

/// Waits for Enter or Ctrl-C.
fn wait_for_enter() {
    outln!("\nThe cluster keeps running until you press Enter or Ctrl-C.");
    let (sender, entered) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        // The end of the input counts as Enter.
        drop(std::io::stdin().read_line(&mut line));
        let _ = sender.send(());
    });
    while entered.try_recv().is_err() && !interrupted() {
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(status: &str, observed: u32) -> Value {
        json!({"items": [{
            "kind": "ClusterGpuPolicy",
            "metadata": {"name": "fleet", "generation": 2},
            "status": {"conditions": [{"type": "Ready", "status": status, "reason": "R", "observedGeneration": observed}]},
        }]})
    }

    #[test]
    fn a_policy_is_ready_only_at_its_current_generation() {
        assert!(summarize(&list("True", 2)).0);
        assert!(!summarize(&list("True", 1)).0);
        assert!(!summarize(&list("False", 2)).0);
        assert!(!summarize(&json!({"items": []})).0);
    }
}
