//! `demo`: a bare GPU node becomes schedulable while you watch.

use std::{io::IsTerminal, sync::mpsc, thread, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    chart,
    lifecycle::{self, Extent},
    paths::Paths,
    process::{interrupted, pause, poll},
    progress::{Step, heading},
    state::{NodeId, Purpose, USUAL},
};

const DEADLINE: Duration = Duration::from_mins(5);

/// Shows it all. With `keep` the cluster runs on; so does one that ran before.
pub(crate) fn run(paths: &Paths, keep: bool) -> Result<()> {
    let was_running = lifecycle::running(paths).is_some();
    let stays = keep || was_running;
    let purpose = if keep { Purpose::Up } else { Purpose::Demo };
    let show = || {
        let state = lifecycle::up(paths, purpose, Extent::Policy, lifecycle::nodes(USUAL))?;
        heading("what the operator does");
        if state.nodes.is_real() {
            watch(paths)?;
        }
        tables(paths)?;
        next_steps(paths, stays);
        if !stays && std::io::stdin().is_terminal() {
            hold();
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

/// Shows what happens until the policy is Ready.
fn watch(paths: &Paths) -> Result<()> {
    let step = Step::start("waiting for the policy to become Ready");
    let mut last = String::new();
    poll("the policy's readiness", DEADLINE, || {
        let text = chart::kubectl(paths, &["get", "clustergpupolicies,gpunodes", "-o", "json"])?;
        let (ready, line) = judge(&serde_json::from_str(&text).context("reading kubectl's answer")?);
        if line != last {
            step.say(&line);
            last.clone_from(&line);
        }
        step.tick("");
        pause(Duration::from_millis(200))?;
        Ok(if ready { Ok(()) } else { Err(line) })
    })
    .with_context(|| chart::diagnosis(paths, lifecycle::real_nodes(paths)))?;
    step.done();
    Ok(())
}

/// Whether every policy is Ready, and one line on where everything stands.
fn judge(list: &Value) -> (bool, String) {
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
            let reason = condition.and_then(|found| found["reason"].as_str()).unwrap_or("not looked at yet");
            parts.push(format!("policy {name}: {reason}"));
        } else {
            let phase = status["phase"].as_str().unwrap_or("new");
            let reason = status["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
            parts.push(format!("node {name}: {phase}{reason}"));
        }
    }
    (policies > 0 && ready == policies, parts.join(", "))
}

fn tables(paths: &Paths) -> Result<()> {
    let columns = "-o=custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\.com/gpu";
    let asked: [&[&str]; 4] = [
        &["get", "clustergpupolicy"],
        &["get", "gpunodes"],
        &["get", "nodes", columns],
        &["get", "pods", "--namespace", chart::RELEASE],
    ];
    for args in asked {
        let shown: Vec<String> =
            args.iter().map(|arg| if arg.contains('\\') { format!("\"{arg}\"") } else { (*arg).to_owned() }).collect();
        say!("\n$ kubectl {}\n{}", shown.join(" "), chart::kubectl(paths, args)?.trim_end());
    }
    Ok(())
}

fn next_steps(paths: &Paths, stays: bool) {
    let attended = std::io::stdin().is_terminal();
    say!("\nWhat to try next{}:\n", if attended && !stays { ", in another shell" } else { "" });
    if !attended && !stays {
        say!("  cargo xtask demo --keep   # the same once more, and the cluster stays");
    }
    say!("  export KUBECONFIG={}", paths.kubeconfig().display());
    say!("  export PATH={}:$PATH", paths.bin().display());
    say!("  kubectl describe clustergpupolicy fleet");
    say!("  kubectl get gpunode gpu-node-1 -o yaml");
    say!("  kubectl get events --sort-by=.lastTimestamp");
    say!("  # a driver that fails, told on the node's own line; and healed again:");
    let driver = paths.standin(NodeId::FIRST).join("driver.json");
    say!("  echo '{{\"mode\":\"crash\",\"message\":\"no kernel headers\"}}' > {}", driver.display());
    say!("  kubectl delete pods --namespace gpu-operator --selector gpu.nodestack.dev/stage=driver");
    say!("  kubectl get gpunodes --watch");
    say!("  rm {}", driver.display());
    if stays {
        say!("\nEnd it with: cargo xtask down");
    } else if attended {
        say!("\nTo keep a cluster: cargo xtask demo --keep");
    }
}

/// Until Enter or Ctrl-C.
fn hold() {
    say!("\nThe cluster runs until you press Enter or Ctrl-C.");
    let (sender, entered) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        // An end of the input counts as Enter.
        drop(std::io::stdin().read_line(&mut line));
        let _ = sender.send(());
    });
    while entered.try_recv().is_err() && !interrupted() {
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(status: &str, observed: u32) -> Value {
        json!({"items": [{
            "kind": "ClusterGpuPolicy",
            "metadata": {"name": "fleet", "generation": 2},
            "status": {"conditions": [{"type": "Ready", "status": status, "reason": "R", "observedGeneration": observed}]},
        }]})
    }

    #[test]
    fn a_policy_is_ready_only_by_its_current_generation() {
        assert!(judge(&list("True", 2)).0);
        assert!(!judge(&list("True", 1)).0);
        assert!(!judge(&list("False", 2)).0);
        assert!(!judge(&json!({"items": []})).0);
    }
}
