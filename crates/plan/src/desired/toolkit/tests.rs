use super::*;

fn chosen(toolkit: &str, runtime: &str, kubelet: &str) -> Result<ToolkitChoice, String> {
    let toolkit: Toolkit = serde_yaml::from_str(toolkit).unwrap();
    let node = NodeFacts { runtime: runtime.into(), kubelet: kubelet.into(), ..NodeFacts::default() };
    choose(&toolkit, &node, OnHost::default()).map_err(|fault| fault.message)
}

#[test]
fn the_hosts_runtime_is_used_unless_the_policy_requires_another() {
    let (docker, containerd) = ("/etc/docker/daemon.json", "/etc/containerd/config.toml");
    let on_host =
        |file: &str, handler: &str, default| HostRuntime { file: file.into(), handler: handler.into(), default };
    for (toolkit, runtime, on_host, expected) in [
        (
            "{}",
            "docker://27.0.3",
            on_host(docker, "nvidia", true),
            r#"Host(HostRuntime { file: "/etc/docker/daemon.json", handler: "nvidia", default: true"#,
        ),
        (
            "{}",
            "docker://27.0.3",
            on_host(docker, "gpu", false),
            r#"Runtime(RuntimeSetup { kind: Docker, config: Some("/etc/docker/daemon.json"), drop_in: None, source: None, socket: "/var/run/docker.sock", handler: "nvidia", default: true"#,
        ),
        (
            "{setAsDefault: false}",
            "docker://27.0.3",
            on_host(docker, "nvidia-x", false),
            r#"Host(HostRuntime { file: "/etc/docker/daemon.json", handler: "nvidia-x""#,
        ),
        // This operator creates no RuntimeClass with that name.
        ("{setAsDefault: false}", "docker://27.0.3", on_host(docker, "gpu", false), "Runtime"),
        ("{setAsDefault: true}", "docker://27.0.3", on_host(docker, "nvidia", true), "Host"),
        // No RuntimeClass can name it.
        ("{setAsDefault: false}", "docker://27.0.3", on_host(docker, "nvidia_x", false), "Runtime"),
        ("{}", "docker://27.0.3", on_host(docker, "nvidia_x", true), "Host"),
        // The file is of another runtime than kubelet's.
        ("{}", "containerd://1.7.27", on_host(docker, "nvidia", true), "Runtime"),
        ("{}", "containerd://2.1.4", on_host(containerd, "nvidia", true), "Cdi"),
        ("{}", "containerd://1.7.27", on_host(containerd, "nvidia", true), "Host"),
        ("{}", "containerd://1.7.27", on_host(containerd, "nvidia", false), "Runtime"),
        // The policy requires this operator's runtime.
        ("{injection: Runtime}", "docker://27.0.3", on_host(docker, "nvidia", true), "Runtime"),
        ("{setAsDefault: true}", "docker://27.0.3", on_host(docker, "nvidia", false), "Runtime"),
        ("{setAsDefault: false}", "docker://27.0.3", on_host(docker, "nvidia", true), "Runtime"),
        ("{runtimeClass: gpu}", "docker://27.0.3", on_host(docker, "nvidia", false), "Runtime"),
        ("{injection: None}", "docker://27.0.3", on_host(docker, "nvidia", false), "None"),
    ] {
        let toolkit_wanted: Toolkit = serde_yaml::from_str(toolkit).unwrap();
        let node = NodeFacts { runtime: runtime.into(), ..NodeFacts::default() };
        let choice = format!(
            "{:?}",
            choose(&toolkit_wanted, &node, OnHost { runtimes: &[on_host], ..OnHost::default() }).unwrap()
        );
        assert!(choice.starts_with(expected), "{toolkit} on {runtime}: {choice}");
    }
}

/// Returns how pods get GPUs: what they must name, and what is changed on the node.
fn words(choice: &ToolkitChoice) -> String {
    let how = match choice {
        ToolkitChoice::Runtime(setup) if setup.cdi => "CDI enabled",
        ToolkitChoice::Runtime(setup) if setup.default => "Runtime as default",
        ToolkitChoice::Runtime(_) => "Runtime",
        ToolkitChoice::Cdi => "CDI",
        ToolkitChoice::Nri { .. } => "NRI",
        ToolkitChoice::Host(_) => "Host",
        ToolkitChoice::None => "None",
    };
    choice.class_to_name().map_or_else(|| how.to_owned(), |class| format!("{how}, class {class}"))
}

#[test]
fn the_least_disruptive_option_for_plain_pods_is_chosen() {
    let (kubeadm, k3s) = ("v1.34.0", "v1.34.0+k3s1");
    for (toolkit, runtime, kubelet, expected) in [
        ("{}", "containerd://2.0.0", kubeadm, "CDI"),
        ("{}", "containerd://2.1.4-k3s1", k3s, "CDI"),
        ("{}", "cri-o://1.34.1", kubeadm, "CDI"),
        ("{}", "of-tomorrow://1.0", kubeadm, "CDI"),
        ("{}", "containerd://1.7.0", kubeadm, "CDI enabled"),
        ("{injection: CDI}", "containerd://1.7.27", kubeadm, "CDI enabled"),
        ("{setAsDefault: false}", "containerd://1.7.27", kubeadm, "CDI enabled"),
        ("{}", "containerd://1.6.9~ds1", kubeadm, "Runtime as default"),
        ("{setAsDefault: false}", "containerd://1.6.9~ds1", kubeadm, "Runtime, class nvidia"),
        ("{}", "docker://27.0.3", kubeadm, "Runtime as default"),
        ("{setAsDefault: false}", "docker://27.0.3", kubeadm, "Runtime, class nvidia"),
        ("{runtime: Docker, runtimeClass: gpu}", "docker://27.0.3", kubeadm, "Runtime as default"),
        ("{injection: Runtime}", "containerd://1.7.27", kubeadm, "Runtime as default"),
        ("{injection: Runtime, setAsDefault: false}", "containerd://1.7.27", kubeadm, "Runtime, class nvidia"),
        ("{injection: Runtime}", "containerd://2.1.4", kubeadm, "Runtime as default"),
        ("{setAsDefault: true}", "containerd://2.1.4", kubeadm, "Runtime as default"),
        ("{setAsDefault: false}", "containerd://2.1.4", kubeadm, "CDI"),
        ("{injection: NRI}", "containerd://2.1.0", kubeadm, "NRI"),
        ("{injection: NRI}", "cri-o://1.34.0", kubeadm, "NRI"),
        ("{injection: None}", "containerd://1.7.27", kubeadm, "None"),
        ("{injection: None}", "containerd://2.1.4", kubeadm, "None"),
        // k3s does not load the drop-in that would enable CDI, and has a default of its own.
        ("{}", "containerd://1.7.27-k3s1", k3s, "Runtime, class nvidia"),
        ("{injection: Runtime}", "containerd://2.1.4-k3s1", k3s, "Runtime, class nvidia"),
        ("{hostPaths: {dropIn: /etc/k3s/nvidia.toml}}", "containerd://1.7.27-k3s1", k3s, "CDI enabled"),
    ] {
        assert_eq!(words(&chosen(toolkit, runtime, kubelet).unwrap()), expected, "{toolkit} on {runtime} {kubelet}");
    }
}

#[test]
fn unsupported_settings_are_rejected_with_what_to_write_instead() {
    for (toolkit, runtime, words) in [
        ("{injection: CDI}", "containerd://1.6.9~ds1", "write toolkit.injection: Runtime or Auto"),
        ("{injection: CDI}", "docker://27.0.3", "write toolkit.injection: Runtime or Auto"),
        ("{injection: NRI}", "containerd://2.0.5", "containerd 2.1 or later"),
        ("{injection: NRI}", "cri-o://1.33.9", "CRI-O 1.34 or later"),
        ("{injection: NRI}", "docker://27.0.3", "does not support NRI plugins"),
        ("{injection: Runtime}", "of-tomorrow://1.0", "write toolkit.injection: CDI"),
        ("{runtime: Docker}", "containerd://1.7.27", "requires Docker, but the node runs containerd 1.7.27"),
    ] {
        let error = chosen(toolkit, runtime, "v1.34.0").unwrap_err();
        assert!(error.contains(words), "{toolkit} on {runtime}: {error}");
    }
    let error = chosen("{injection: CDI}", "containerd://1.7.27-k3s1", "v1.34.1+k3s1").unwrap_err();
    assert!(error.contains("containerd 2.0 or later"), "{error}");
    let k3s = |toolkit: &str| chosen(toolkit, "containerd://2.1.4-k3s1", "v1.34.1+k3s1");
    assert!(k3s("{setAsDefault: true}").unwrap_err().contains("--default-runtime=nvidia"));
    let of_host = HostRuntime {
        file: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml".into(),
        handler: "nvidia".into(),
        default: true,
    };
    let toolkit = serde_yaml::from_str("{setAsDefault: true}").unwrap();
    let mut node = NodeFacts { kubelet: "v1.34.1+k3s1".into(), ..NodeFacts::default() };
    node.runtime = "containerd://2.1.4-k3s1".into();
    let host = OnHost { runtimes: std::slice::from_ref(&of_host), ..OnHost::default() };
    assert_eq!(choose(&toolkit, &node, host), Ok(ToolkitChoice::Host(of_host.clone())));
    assert!(k3s("{setAsDefault: true, hostPaths: {dropIn: /etc/k3s/nvidia.toml}}").is_ok());
}

#[test]
fn paths_are_the_distributions_unless_the_policy_sets_them() {
    let toolkit = "{injection: Runtime, runtimeClass: gpu, hostPaths: {config: /a/b.toml}}";
    let ToolkitChoice::Runtime(setup) = chosen(toolkit, "containerd://1.7.27", "v1.31.2+rke2r1").unwrap() else {
        panic!("Runtime")
    };
    assert_eq!(setup.config.as_deref(), Some("/a/b.toml"));
    assert_eq!(setup.socket, "/run/k3s/containerd/containerd.sock");
    assert_eq!(setup.handler, "gpu");
}

#[test]
fn k3s_imports_a_folder_for_each_version_of_the_configuration() {
    for (runtime, folder) in
        [("containerd://1.7.27-k3s1", "config.toml.d"), ("containerd://2.1.4-k3s1", "config-v3.toml.d")]
    {
        let ToolkitChoice::Runtime(setup) = chosen("{injection: Runtime}", runtime, "v1.34.1+k3s1").unwrap() else {
            panic!("Runtime")
        };
        let expected = format!("/var/lib/rancher/k3s/agent/etc/containerd/{folder}/99-nvidia.toml");
        assert_eq!(setup.drop_in, Some(expected));
    }
}

#[test]
fn files_are_beside_the_one_the_runtime_was_started_with() {
    const OTHER: &str = "/etc/cri/containerd.toml";
    const K3S: &str = "/data/k3s/agent/etc/containerd/config.toml";
    for (runtime, kubelet, paths, started_with, config, drop_in) in [
        ("containerd://1.7.27", "v1.34.0", "", Some(OTHER), Some(OTHER), Some("/etc/cri/conf.d/99-nvidia.toml")),
        (
            "containerd://2.1.4-k3s1",
            "v1.34.1+k3s1",
            "",
            Some(K3S),
            Some(K3S),
            Some("/data/k3s/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml"),
        ),
        ("docker://27.0.3", "v1.34.0", "", Some("/srv/docker.json"), Some("/srv/docker.json"), None),
        // The usual file, by a flag or without one.
        (
            "containerd://1.7.27",
            "v1.34.0",
            "",
            Some("/etc/containerd/config.toml"),
            Some("/etc/containerd/config.toml"),
            Some("/etc/containerd/conf.d/99-nvidia.toml"),
        ),
        (
            "containerd://1.7.27",
            "v1.34.0",
            "",
            None,
            Some("/etc/containerd/config.toml"),
            Some("/etc/containerd/conf.d/99-nvidia.toml"),
        ),
        (
            "containerd://1.7.27",
            "v1.34.0",
            "config: /a/b.toml",
            Some(OTHER),
            Some("/a/b.toml"),
            Some("/etc/cri/conf.d/99-nvidia.toml"),
        ),
        // k0s has a folder for drop-ins, whatever its file.
        ("containerd://1.7.27", "v1.34.0+k0s", "", Some(OTHER), None, Some("/etc/k0s/containerd.d/nvidia.toml")),
    ] {
        let toolkit = serde_yaml::from_str(&format!("{{injection: Runtime, hostPaths: {{{paths}}}}}")).unwrap();
        let node = NodeFacts { runtime: runtime.into(), kubelet: kubelet.into(), ..NodeFacts::default() };
        let host = OnHost { config: started_with, ..OnHost::default() };
        let Ok(ToolkitChoice::Runtime(setup)) = choose(&toolkit, &node, host) else { panic!("Runtime") };
        let found = (setup.config.as_deref(), setup.drop_in.as_deref());
        assert_eq!(found, (config, drop_in), "{runtime} {kubelet} {paths} {started_with:?}");
    }
}
