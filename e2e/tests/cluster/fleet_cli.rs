//! `kubectl gpu-fleet` as its users run it: found by kubectl, with an exec credential plugin, and with the rights of the chart's role only.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::keys;
use serde_json::{Value, json};

use crate::support::{Fixture, test};

/// The service account of the user, which every namespace has.
const USER: &str = "default";
/// The CRD of NVIDIA's `ClusterPolicy`.
const NVIDIAS_CRD: &str = "clusterpolicies.nvidia.com";
/// A value that must not be in a bundle.
const CANARY: &str = "canary-of-the-driver";

/// A user of the command.
struct User {
    folder: tempfile::TempDir,
    kubectl: PathBuf,
}

impl User {
    /// Creates a user with the chart's role, whose kubeconfig gets the token from a program.
    fn new(f: &Fixture) -> Result<Self> {
        let kubectl = |args: &[&str]| f.cluster.kubectl(args);
        let account = format!("--serviceaccount={}:{USER}", f.users());
        kubectl(&["create", "clusterrolebinding", &f.users(), "--clusterrole=nodestack-gpu-operator-cli", &account])?;
        let token = kubectl(&["create", "token", USER, "-n", &f.users()])?;
        let folder = tempfile::tempdir()?;
        let credentials = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token.trim()},
        });
        let program = folder.path().join("login");
        fs::write(&program, format!("#!/bin/sh\necho '{credentials}'\n"))?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let mut config: Value =
            serde_json::from_str(&kubectl(&["config", "view", "--raw", "--flatten", "-o", "json"])?)?;
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": program, "interactiveMode": "Never",
        });
        config["users"][0]["user"] = json!({"exec": exec});
        fs::write(folder.path().join("kubeconfig"), config.to_string())?;
        // Test programs are in target/PROFILE/deps.
        let built = env::current_exe()?.ancestors().nth(2).context("a target folder")?.join("kubectl-gpu_fleet");
        symlink(&built, folder.path().join("kubectl-gpu_fleet"))?;
        Ok(Self { folder, kubectl: f.cluster.paths().bin().join("kubectl") })
    }

    /// Runs `kubectl gpu-fleet`, and returns its exit code and standard output.
    fn run(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        let path = env::join_paths(
            [self.folder.path().to_owned()].into_iter().chain(env::var_os("PATH").iter().flat_map(env::split_paths)),
        )?;
        let mut command = Command::new(&self.kubectl);
        command.arg("gpu-fleet").args(args).env("PATH", path).env("KUBECONFIG", self.folder.path().join("kubeconfig"));
        let Output { status, stdout, stderr } = command.current_dir(self.folder.path()).output()?;
        let (stdout, stderr) = (String::from_utf8(stdout)?, String::from_utf8_lossy(&stderr).into_owned());
        ensure!(!stderr.contains("error:"), "{args:?}: {stderr}");
        ensure!(!stdout.contains("the right to"), "{args:?}: a right is missing: {stdout}");
        Ok((status.code(), stdout))
    }
}

async fn use_all_commands(f: &Fixture, user: &User) -> Result<()> {
    let (node, policy) = (f.host.name(), f.policy.as_str());
    let named = format!("clustergpupolicy/{policy}");
    // As docs/guides/rollouts.md pauses and continues a rollout, and attempts it again.
    let pause = |paused| format!("{{\"spec\":{{\"rollout\":{{\"paused\":{paused}}}}}}}");
    f.cluster.kubectl(&["patch", &named, "--type", "merge", "--patch", &pause(true)])?;
    f.cluster.kubectl(&["patch", &named, "--type", "merge", "--patch", &pause(false)])?;
    f.cluster.kubectl(&["annotate", &named, "--overwrite", &format!("{}=1", keys::RETRY)])?;
    for condition in ["Ready", "Reconciling=False"] {
        f.cluster.kubectl(&["wait", &format!("--for=condition={condition}"), &named, "--timeout=5m"])?;
    }
    let (code, status) = user.run(&["status", policy])?;
    ensure!(code == Some(0) && status.starts_with(&format!("{policy}  Ready  1/1 nodes")), "{status}");
    let (code, explained) = user.run(&["explain", "node", &node])?;
    ensure!(code == Some(0) && explained.contains("8 of 8"), "{explained}");
    f.run_gpu_pod("explained").await?;
    let (code, explained) = user.run(&["explain", "pod", "explained", "-n", &f.users()])?;
    ensure!(code == Some(0) && explained.contains(&node), "{explained}");
    // Other tests' nodes are in the cluster, so that only some checks have a certain result.
    let (_, checked) = user.run(&["check", "-o", "json"])?;
    let checked: Value = serde_json::from_str(&checked)?;
    for code in ["OperatorReady", "Crds", "AdmissionPolicies"] {
        let mut checks = checked["checks"].as_array().into_iter().flatten();
        ensure!(checks.any(|check| check["code"] == code && check["result"] == "Passed"), "{code}: {checked:#}");
    }
    let (code, images) = user.run(&["explain", "reason", "RolloutHalted"])?;
    ensure!(code == Some(0) && images.contains("RolloutHalted"), "{images}");

    let (code, file) = user.run(&["support-bundle", "--output-file", "bundle.tar.gz"])?;
    ensure!(code == Some(0) && file.contains("bundle.tar.gz"), "{file}");
    let unpacked = user.folder.path().join("unpacked");
    fs::create_dir(&unpacked)?;
    let tar = Command::new("tar")
        .arg("-xzf")
        .arg(user.folder.path().join("bundle.tar.gz"))
        .arg("-C")
        .arg(&unpacked)
        .status()?;
    ensure!(tar.success(), "{tar}");
    let found = |text: &str| anyhow::Ok(Command::new("grep").args(["-rlF", text]).arg(&unpacked).output()?.stdout);
    ensure!(!found(&node)?.is_empty(), "the node is not in the bundle");
    let leaked = String::from_utf8_lossy(&found(CANARY)?).into_owned();
    ensure!(leaked.is_empty(), "the canary is in {leaked}");
    Ok(())
}

/// Creates a `ClusterPolicy` and as much of its CRD as `import` needs.
fn create_nvidias_objects(f: &Fixture, folder: &Path) -> Result<()> {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NVIDIAS_CRD},
        "spec": {
            "group": "nvidia.com", "scope": "Cluster",
            "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    let policy = json!({
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {"driver": {"version": "580.173.02"}},
    });
    for (object, established) in [(crd, true), (policy, false)] {
        let file = folder.join("object.json");
        fs::write(&file, object.to_string())?;
        f.cluster.kubectl(&["apply", "-f", &file.display().to_string()])?;
        if established {
            let named = format!("crd/{NVIDIAS_CRD}");
            f.cluster.kubectl(&["wait", "--for=condition=Established", &named, "--timeout=30s"])?;
        }
    }
    Ok(())
}

/// Checks that the command reads the objects of NVIDIA's operator, which is not installed here.
fn import(f: &Fixture, user: &User) -> Result<()> {
    let imported = create_nvidias_objects(f, user.folder.path()).and_then(|()| user.run(&["import"]));
    f.cluster.kubectl(&["delete", "crd", NVIDIAS_CRD, "--ignore-not-found"])?;
    let (code, policy) = imported?;
    ensure!(code == Some(0) && policy.contains("version: 580.173.02"), "{policy}");
    Ok(())
}

#[test]
fn kubectl_gpu_fleet_needs_only_the_rights_of_its_role() {
    test(async |f| {
        let user = User::new(&f)?;
        f.apply(&format!("{{defaults: {{driver: {{env: [{{name: API_TOKEN, value: {CANARY}}}]}}}}}}")).await?;
        let outcome = use_all_commands(&f, &user).await.and_then(|()| import(&f, &user));
        f.cluster.kubectl(&["delete", "clusterrolebinding", &f.users()])?;
        outcome
    });
}
