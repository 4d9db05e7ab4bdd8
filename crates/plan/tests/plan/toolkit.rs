//! How containers get the driver: what is installed for which container runtime, and which failures are reported.

use gpu_operator_plan::output::body::Kind;
use test_support::planned::Planned;

use crate::{sim::Sim, sources::library};
use gpu_operator_crd::{Phase, policy::Stage, reason::Reason};
use gpu_operator_plan::world::{ContainerState, Exit, RuntimeClassFacts};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;

pub(crate) fn fleet(runtime: &str, kubelet: &str, toolkit: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &format!("{{defaults: {{toolkit: {toolkit}}}}}"));
    let node = sim.node_mut("a");
    (node.runtime, node.kubelet) = (runtime.into(), kubelet.into());
    sim.settle();
    sim
}

/// Returns how a plain pod, with a limit of `nvidia.com/gpu` and nothing else, gets its GPUs on node `a`: how the plugin
/// answers, and what is changed in the runtime's configuration; then the class that it must set instead.
pub(crate) fn plain_pod(sim: &Sim) -> (String, Option<String>) {
    let pod = |set: &DaemonSet| set.spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let plugin = pod(sim.sets_of(Stage::DevicePlugin)[0]);
    let env = plugin.containers.into_iter().flat_map(|container| container.env.unwrap_or_default());
    let strategy = env.into_iter().find(|env| env.name == "DEVICE_LIST_STRATEGY").and_then(|env| env.value);
    let toolkit = sim.sets_of(Stage::Toolkit).into_iter().flat_map(|set| pod(set).init_containers.unwrap_or_default());
    let changes = toolkit.flat_map(|init| init.args.unwrap_or_default());
    let changes =
        changes.filter(|arg| ["--enable-cdi-in-runtime=true", "--set-as-default=true"].contains(&arg.as_str()));
    let how: Vec<String> = strategy.into_iter().chain(changes).collect();
    let status = sim.status("a");
    assert_eq!(status.phase, Phase::Ready, "{status:?}");
    let class = status.message.split_once("; pods that request GPUs must set runtimeClassName: ");
    (how.join(" "), class.map(|(_, class)| class.to_owned()))
}

#[test]
fn plain_pods_work_or_the_message_names_a_runtime_class() {
    let (kubeadm, k3s) = ("v1.34.1", "v1.34.1+k3s1");
    let (cdi, by_runtime) = ("cdi-cri", "envvar");
    let default = "envvar --set-as-default=true";
    for (runtime, kubelet, toolkit, how, class) in [
        ("containerd://2.1.4", kubeadm, "{}", cdi, None),
        ("containerd://1.7.27", kubeadm, "{}", "cdi-cri --enable-cdi-in-runtime=true", None),
        ("containerd://1.6.9", kubeadm, "{}", default, None),
        ("docker://27.0.3", kubeadm, "{setAsDefault: false}", by_runtime, Some("nvidia")),
        ("containerd://1.7.27-k3s1", k3s, "{runtimeClass: gpu}", by_runtime, Some("gpu")),
    ] {
        let sim = fleet(runtime, kubelet, toolkit);
        let found = plain_pod(&sim);
        assert_eq!((found.0.as_str(), found.1.as_deref()), (how, class), "{toolkit} on {runtime}");
        // The class is offered wherever the runtime has a handler of that name.
        let changed = how != cdi;
        assert_eq!(sim.runtime_classes.len(), usize::from(changed), "{toolkit} on {runtime}");
        assert!(!sim.status("a").message.contains("NRI"), "{}", sim.status("a").message);
    }
    let sim = fleet("containerd://2.1.4", kubeadm, "{injection: NRI}");
    assert!(sim.status("a").is_ready() && sim.runtime_classes.is_empty());
    assert!(sim.status("a").message.contains("NVIDIA's NRI plugin serves only"), "{}", sim.status("a").message);
}

/// Returns the host paths that a pod of a stage mounts.
fn host_paths(sim: &Sim, stage: Stage) -> Vec<String> {
    let pod = sim.sets_of(stage)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    pod.volumes.into_iter().flatten().filter_map(|volume| Some(volume.host_path?.path)).collect()
}

/// Ends the main container of a node's toolkit pod with this message.
pub(crate) fn end_with(sim: &mut Sim, node: &str, words: &str) {
    let container = &mut sim.pods.get_mut(&format!("toolkit@{node}")).expect("a pod").containers[0];
    container.state = ContainerState::Ended(Exit { code: 1, message: words.into() });
    container.ready = false;
}

pub(crate) fn not_allocatable(sim: &mut Sim) {
    sim.node_mut("a").allocatable = 0.into();
}

#[test]
fn a_toolkit_that_ends_is_recreated_only_if_that_may_help() {
    for (words, reason, recreated) in [
        ("RuntimeConfigRejected: unexpected end of file", Reason::RuntimeConfigRejected, false),
        ("RuntimeDown: the container runtime does not start", Reason::RuntimeDown, false),
        ("something else: unexpected end of file", Reason::ContainerCrashed, false),
        ("RuntimeConfigDrifted: runtime nvidia is no longer in its file", Reason::RuntimeConfigDrifted, true),
    ] {
        let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
        assert!(sim.plan().deleted(Kind::Pod).is_empty());
        end_with(&mut sim, "a", words);
        not_allocatable(&mut sim);
        let plan = sim.plan();
        assert_eq!(plan.node_statuses()[&"a".into()].reason(), Some(reason), "{words}");
        assert_eq!(plan.deleted(Kind::Pod).contains("toolkit@a"), recreated, "{words}");
        if recreated {
            sim.settle();
            assert_eq!(sim.status("a").phase, Phase::Ready, "{words}");
        }
    }
}

#[test]
fn kubelet_must_list_the_runtime_if_it_lists_any() {
    let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
    not_allocatable(&mut sim);
    for (known, waits) in [(vec![], false), (vec!["runc"], true), (vec!["runc", "nvidia"], false)] {
        let node = sim.node_mut("a");
        node.runtime_handlers = known.iter().map(|name| (*name).into()).collect();
        let status = sim.plan().node_statuses().get(&"a".into()).map(|status| (*status).clone()).expect("a status");
        assert_eq!(status.phase == Phase::Toolkit, waits, "{known:?}: {status:?}");
    }
}

#[test]
fn a_pools_toolkit_replaces_the_defaults() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy(
        "all",
        "{defaults: {toolkit: {injection: Runtime, hostPaths: {socket: /a/b.sock, config: /c/d.toml}}}, pools: [{name: p, toolkit: {injection: Runtime, runtimeClass: gpu, hostPaths: {socket: /e/f.sock}}}]}",
    );
    sim.settle();
    let pod = sim.sets_of(Stage::Toolkit)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let args = pod.init_containers.expect("steps").into_iter().flat_map(|init| init.args.unwrap_or_default());
    let args: Vec<_> = args.collect();
    for wanted in ["--nvidia-runtime-name=gpu", "--handler=gpu"] {
        assert!(args.iter().any(|arg| arg == wanted), "{wanted}: {args:?}");
    }
    assert!(!args.iter().any(|arg| arg == "--config=/c/d.toml"), "{args:?}");
    assert!(host_paths(&sim, Stage::Toolkit).contains(&"/e".to_owned()));
}

#[test]
fn a_third_party_runtime_class_is_not_changed() {
    let foreign = RuntimeClassFacts::default();
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.runtime_classes.insert("nvidia".into(), foreign.clone());
    sim.apply_policy("all", "{defaults: {toolkit: {injection: Runtime}}}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
    sim.delete_policy("all");
    sim.settle();
    assert_eq!(sim.runtime_classes["nvidia"], foreign);
}

/// Returns a node of GKE's Ubuntu with this runtime and toolkit, a driver in Google's folder, and NVIDIA's device
/// plugin.
fn beside_a_folder(runtime: &str, toolkit: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    let node = sim.node_mut("a");
    (node.runtime, node.kubelet) = (runtime.into(), "v1.33.2".into());
    let driver = &mut sim.report("a").driver;
    driver.loaded = Some("580.1.1".into());
    driver.installed.push(library("/home/kubernetes/bin/nvidia", "580.1.1"));
    sim.apply_policy("all", &format!("{{defaults: {{devicePlugin: {{flavor: Nvidia}}, toolkit: {toolkit}}}}}"));
    sim
}

#[test]
fn a_toolkit_that_cannot_use_googles_folder_is_rejected() {
    for (runtime, toolkit, words) in [
        ("containerd://1.6.9", "{}", "containerd 1.7 or later"),
        ("docker://27.0.3", "{}", "devicePlugin: {flavor: Google}"),
        ("containerd://1.7.27", "{injection: Runtime}", "remove toolkit.injection"),
        ("containerd://2.1.4", "{setAsDefault: true}", "toolkit.setAsDefault"),
    ] {
        let mut sim = beside_a_folder(runtime, toolkit);
        sim.run(40);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::RuntimeUnsupported), "{runtime} {toolkit}: {}", status.message);
        assert!(status.message.contains(words), "{}", status.message);
    }
    for (runtime, how) in
        [("containerd://2.1.4", "cdi-cri"), ("containerd://1.7.27", "cdi-cri --enable-cdi-in-runtime=true")]
    {
        let mut sim = beside_a_folder(runtime, "{}");
        sim.settle();
        assert_eq!(plain_pod(&sim), (how.to_owned(), None), "{runtime}");
    }
}

#[test]
fn googles_plugin_mounts_the_distributions_pod_resources() {
    for (kubelet, toolkit, chart, root) in [
        ("v1.34.1+rke2r1", "{}", None, "/var/lib/kubelet"),
        ("v1.34.1", "{distribution: MicroK8s}", None, "/var/snap/microk8s/common/var/lib/kubelet"),
        ("v1.34.1+k0s", "{}", None, "/var/lib/k0s/kubelet"),
        ("v1.34.1+k0s", "{}", Some("/data/kubelet"), "/data/kubelet"),
    ] {
        let mut sim = beside_a_folder("containerd://2.1.4", toolkit);
        sim.settings.kubelet_root = chart.map(str::to_owned);
        sim.node_mut("a").kubelet = kubelet.into();
        sim.apply_policy("all", &format!("{{defaults: {{devicePlugin: {{flavor: Google}}, toolkit: {toolkit}}}}}"));
        sim.settle();
        let paths = host_paths(&sim, Stage::DevicePlugin);
        assert!(paths.contains(&format!("{root}/pod-resources")), "{kubelet} {toolkit}: {paths:?}");
        // This path is built into kubelet and the plugins.
        assert!(paths.contains(&"/var/lib/kubelet/device-plugins".to_owned()), "{kubelet} {toolkit}: {paths:?}");
    }
}

/// Returns the toolkit's folder, as its pod and the device plugin have it.
fn folder(sim: &Sim) -> String {
    let plugin = sim.template(&sim.sets_of(Stage::DevicePlugin)[0].name_any());
    let mut env = plugin.containers[0].env.iter().flatten();
    let hook = env.find(|variable| variable.name == "NVIDIA_CDI_HOOK_PATH").and_then(|variable| variable.value.clone());
    let folder = hook.expect("a hook").replace("/toolkit/nvidia-cdi-hook", "");
    assert!(host_paths(sim, Stage::Toolkit).contains(&folder), "{folder}");
    folder
}

#[test]
fn the_toolkit_is_where_its_programs_can_be_started() {
    const RUN_FILE: &str = "source: RunFile, version: 580.95.05, runFile: {url: 'https://a/b.run', sha256: '0000000000000000000000000000000000000000000000000000000000000000', installDir: /opt/nvidia}, image: {repository: a/b, tag: c}";
    for (driver, toolkit, reported, expected) in [
        ("", "{}", None, "/usr/local/nvidia"),
        ("", "{}", Some("/usr/local/nvidia"), "/usr/local/nvidia"),
        ("", "{}", Some("/opt/nvidia"), "/opt/nvidia"),
        ("", "{}", Some("/var/lib/google/nvidia"), "/var/lib/google/nvidia"),
        ("", "{installDir: /srv/nvidia}", Some("/opt/nvidia"), "/srv/nvidia"),
        ("", "{installDir: /usr/local/nvidia}", Some("/opt/nvidia"), "/usr/local/nvidia"),
        // Not one of those that the probe may choose.
        ("", "{}", Some("/etc"), "/usr/local/nvidia"),
        (RUN_FILE, "{}", Some("/opt/nvidia"), "/opt/nvidia"),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.report("a").toolkit_folder = reported.map(str::to_owned);
        sim.apply_policy("all", &format!("{{defaults: {{driver: {{{driver}}}, toolkit: {toolkit}}}}}"));
        sim.settle();
        assert!(sim.status("a").is_ready(), "{driver} {reported:?}: {}", sim.status("a").message);
        assert_eq!(folder(&sim), expected, "{driver} {toolkit} {reported:?}");
    }
}

/// The settings are taken from the page that recommends them.
#[test]
fn the_documented_settings_for_tenants_reach_both_pods() {
    let page = include_str!("../../../../docs/guides/runtimes.md");
    let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    let spec = blocks.find(|block| block.contains("volume-mounts")).expect("the settings");
    for runtime in ["containerd://1.6.9", "containerd://1.7.27", "containerd://2.1.4", "cri-o://1.34.1"] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", spec);
        sim.node_mut("a").runtime = runtime.into();
        sim.settle();
        assert_eq!(plain_pod(&sim), ("volume-mounts --set-as-default=true".to_owned(), None), "{runtime}");
        let toolkit = sim.template(&sim.sets_of(Stage::Toolkit)[0].name_any());
        let installer = toolkit.init_containers.iter().flatten().find(|init| init.name == "install-toolkit");
        let variables: Vec<String> = installer
            .and_then(|init| init.env.as_ref())
            .into_iter()
            .flatten()
            .filter(|variable| variable.name.starts_with("ACCEPT_NVIDIA_VISIBLE_DEVICES_"))
            .map(|variable| format!("{}={}", variable.name, variable.value.as_deref().unwrap_or_default()))
            .collect();
        let expected = ["ENVVAR_WHEN_UNPRIVILEGED=false", "AS_VOLUME_MOUNTS=true"];
        assert_eq!(variables, expected.map(|end| format!("ACCEPT_NVIDIA_VISIBLE_DEVICES_{end}")), "{runtime}");
    }
}
