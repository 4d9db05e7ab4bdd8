//! `demo`: shows how bare GPU nodes become schedulable, one of them after its driver has failed.

use std::{io::IsTerminal, sync::mpsc, thread, time::Duration};

use anyhow::{Context, Result};
use cluster::{
    chart::{NAMESPACE, apply_policy},
    clients::kubectl,
    diagnosis::diagnosis,
    lifecycle::{self, Extent},
    standin::{DriverMode, Standin},
    state::Purpose,
};
use harness::{
    interrupts::{interrupted, pause},
    node_id::{DEFAULT_NODES, NodeId},
    outln,
    paths::Paths,
    progress::{Step, heading},
    wait::poll,
};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_mins(5);
/// The image of the pods that show that a GPU can be used. nvidia-smi is part of the driver, not of the image.
const PLAIN_IMAGE: &str = "localhost:5999/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0";

/// How to run the demo.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
}

/// The node whose driver fails at first, and the last line of the installer's log.
const FAILS: NodeId = NodeId::numbered(2);
const FAILURE: &str = "E: Unable to locate package linux-headers-6.8.0-60-generic";

/// Runs the demo. A cluster that was already running keeps running, and no driver fails in it.
pub(super) fn run(paths: &Paths, options: &Options) -> Result<()> {
    let was_running = lifecycle::running(paths).is_some();
    let is_kept = options.keep || was_running;
    let purpose = if options.keep { Purpose::Up } else { Purpose::Demo };
    let show = || {
        let state = lifecycle::up(paths, purpose, Extent::Chart, lifecycle::choose_nodes(DEFAULT_NODES))?;
        let is_real = state.nodes.is_real();
        if is_real && !was_running {
            fail_at_first(paths)?;
        } else {
            apply_policy(paths)?;
        }
        if is_real {
            watch(paths, "waiting until the policy is Ready", |fleet| fleet.is_ready)?;
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
    if !options.keep {
        return lifecycle::then_down(paths, show);
    }
    show().or_else(|error| lifecycle::then_down(paths, || Err(error)))
}

/// Applies the policy while the driver of one node cannot be installed, waits until all other nodes are Ready, and removes the
/// cause.
fn fail_at_first(paths: &Paths) -> Result<()> {
    let standin = Standin::new(paths.standin(FAILS));
    standin.set_driver_mode(&DriverMode::Crash { message: FAILURE.to_owned() })?;
    heading("a policy is applied; the repositories of one node lack its kernel's headers");
    apply_policy(paths)?;
    watch(paths, "waiting until every other node is Ready", Fleet::only_lacks_headers)?;
    let name = FAILS.name();
    show(paths, &["get", "clustergpupolicy"])?;
    show(paths, &["get", "gpunodes"])?;
    show(paths, &["get", "gpunode", &name, "-o=jsonpath={.status.message}"])?;
    heading("the headers become available");
    standin.set_driver_mode(&DriverMode::Ok)
}

/// Runs kubectl, and prints the command and its output.
fn show(paths: &Paths, args: &[&str]) -> Result<()> {
    let quoted: Vec<String> = args
        .iter()
        .map(|arg| if arg.contains(['\\', '{']) { format!("\"{arg}\"") } else { (*arg).to_owned() })
        .collect();
    outln!("\n$ kubectl {}\n{}", quoted.join(" "), kubectl(paths, args)?.trim_end());
    Ok(())
}

/// The progress of policies and nodes.
struct Fleet {
    /// Whether there are policies, and all of them are Ready.
    is_ready: bool,
    /// The phase, with the reason, of each node that is not Ready.
    others: Vec<String>,
    /// One line about all of them.
    summary: String,
}

impl Fleet {
    fn only_lacks_headers(&self) -> bool {
        matches!(&self.others[..], [phase] if phase == "Driver (KernelHeadersUnavailable)")
    }
}

/// Prints the progress until it is as expected.
fn watch(paths: &Paths, name: &str, is_expected: impl Fn(&Fleet) -> bool) -> Result<()> {
    let step = Step::start(name);
    let mut last = String::new();
    poll(name, DEADLINE, || {
        let text = kubectl(paths, &["get", "clustergpupolicies,gpunodes", "-o", "json"])?;
        let fleet = summarize(&serde_json::from_str(&text).context("parsing kubectl's output")?);
        if fleet.summary != last {
            step.print(&fleet.summary);
            last.clone_from(&fleet.summary);
        }
        step.tick("");
        pause(Duration::from_millis(200))?;
        Ok(if is_expected(&fleet) { Ok(()) } else { Err(fleet.summary) })
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

/// Returns the progress that a list of policies and GpuNodes shows.
fn summarize(list: &Value) -> Fleet {
    let empty = Vec::new();
    let items = list["items"].as_array().unwrap_or(&empty);
    let (mut policies, mut ready) = (0, 0);
    let (mut parts, mut others) = (Vec::new(), Vec::new());
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
            others.extend((phase != "Ready").then(|| format!("{phase}{reason}")));
        }
    }
    Fleet { is_ready: policies > 0 && ready == policies, others, summary: parts.join(", ") }
}

fn print_objects(paths: &Paths) -> Result<()> {
    let columns = "-o=custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\.com/gpu";
    heading("the result");
    let commands: [&[&str]; 4] = [
        &["get", "clustergpupolicy"],
        &["get", "gpunodes"],
        &["get", "nodes", columns],
        &["get", "pods", "--namespace", NAMESPACE],
    ];
    for args in commands {
        show(paths, args)?;
    }
    Ok(())
}

fn print_next_steps(paths: &Paths, is_kept: bool) {
    let is_interactive = std::io::stdin().is_terminal();
    outln!("\nWhat to try next{}:\n", if is_interactive && !is_kept { ", in another shell" } else { "" });
    if !is_interactive && !is_kept {
        outln!("  cargo xtask demo --keep   # run the demo again and keep the cluster");
    }
    outln!("  export KUBECONFIG=\"{}\" PATH=\"{}:$PATH\"", paths.kubeconfig().display(), paths.bin().display());
    outln!("  kubectl describe clustergpupolicy fleet");
    outln!("  kubectl get gpunode gpu-node-1 -o yaml");
    outln!("  kubectl get events --sort-by=.lastTimestamp");
    outln!("  kubectl explain clustergpupolicy.spec");
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
