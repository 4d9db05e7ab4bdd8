//! What becomes of each field of NVIDIA's operator: the remarks of `import`, and the page of the documentation, are from this table.

use serde_json::Value;

pub enum Outcome {
    /// The members of a policy that it becomes, for the documentation.
    Becomes(&'static str),
    /// Why it becomes nothing, and what to do instead.
    NotServed(&'static str),
}

pub struct Field {
    /// Paths in a `ClusterPolicy`, with everything below them. The longest path that fits decides.
    pub paths: &'static [&'static str],
    pub outcome: Outcome,
}

/// Values that need nothing, because they are NVIDIA's defaults.
const DEFAULTS: [(&str, &str); 16] = [
    ("clusterPolicy.deployCR", "true"),
    ("daemonsets.rollingUpdate.maxUnavailable", "1"),
    ("daemonsets.updateStrategy", "RollingUpdate"),
    ("devicePlugin.mps.root", "/run/nvidia/mps"),
    ("driver.driverType", "gpu"),
    ("driver.licensingConfig.nlsEnabled", "true"),
    ("driver.startupProbe.failureThreshold", "120"),
    ("driver.startupProbe.initialDelaySeconds", "60"),
    ("driver.startupProbe.periodSeconds", "10"),
    ("driver.startupProbe.timeoutSeconds", "60"),
    ("hostPaths.driverInstallDir", "/run/nvidia/driver"),
    ("hostPaths.kubeletRootDir", "/var/lib/kubelet"),
    ("hostPaths.rootFS", "/"),
    ("sandboxWorkloads.defaultWorkload", "container"),
    ("sandboxWorkloads.mode", "kubevirt"),
    ("toolkit.installDir", "/usr/local/nvidia"),
];

/// Returns whether a value needs nothing: NVIDIA's default, or a switch that is off.
pub fn is_default(path: &str, value: &Value) -> bool {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let default = DEFAULTS.iter().find(|(of, _)| *of == path).map(|(_, default)| *default);
    default.unwrap_or("false") == text
}

/// Returns the position of the field with a path, or of the longest one above it.
pub fn position(path: &str) -> Option<usize> {
    let above = |above: &str| path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let all = FIELDS.iter().enumerate().flat_map(|(index, field)| field.paths.iter().map(move |path| (index, *path)));
    all.filter(|(_, path)| above(path)).max_by_key(|(_, path)| path.len()).map(|(index, _)| index)
}

const fn becomes(paths: &'static [&'static str], text: &'static str) -> Field {
    Field { paths, outcome: Outcome::Becomes(text) }
}

const fn not_served(paths: &'static [&'static str], text: &'static str) -> Field {
    Field { paths, outcome: Outcome::NotServed(text) }
}

pub const FIELDS: &[Field] = &[
    becomes(
        &["driver.enabled"],
        "if false, `driver: {source: Preinstalled}`. Otherwise nothing: `source: Auto` finds drivers of hosts by itself",
    ),
    becomes(
        &["driver.repository", "driver.image", "driver.version"],
        "`driver.image.repository` or `digest`, and `driver.version` without the suffix of the system",
    ),
    becomes(
        &["driver.usePrecompiled", "driver.kernelModuleType"],
        "`driver.container.precompiled`, `driver.container.kernelModule`",
    ),
    becomes(
        &["driver.kernelModuleConfig", "driver.repoConfig", "driver.certConfig"],
        "`driver.container.configMaps`: `kernelModules`, `repositories`, `certificates`, each with the name and the keys of the ConfigMap",
    ),
    becomes(
        &[
            "driver.env",
            "driver.resources",
            "toolkit.env",
            "toolkit.resources",
            "devicePlugin.env",
            "devicePlugin.resources",
        ],
        "the same fields of `driver`, `toolkit` and `devicePlugin`",
    ),
    becomes(&["driver.rdma.enabled"], "variable `GPU_DIRECT_RDMA_ENABLED` in `driver.env`"),
    becomes(&["driver.upgradePolicy.autoUpgrade"], "if false, `rollout.paused: true`"),
    becomes(
        &["driver.upgradePolicy.maxParallelUpgrades", "driver.upgradePolicy.maxUnavailable"],
        "`rollout.maxParallel`, at most 100 and never unlimited, and `rollout.maxUnavailable`",
    ),
    becomes(
        &["driver.upgradePolicy.waitForCompletion"],
        "`rollout.gpuPods.waitForJobs`, and `timeout` together with that of `podDeletion`",
    ),
    becomes(
        &["driver.upgradePolicy.podDeletion", "driver.upgradePolicy.drain"],
        "`rollout.gpuPods: {mode: Evict, timeout}`, for GPU pods only; `force` becomes `barePods: Evict`, and `deleteEmptyDir` becomes `emptyDir: Evict`",
    ),
    becomes(
        &["driver.useNvidiaDriverCRD", "driver.nvidiaDriverCRD"],
        "each `NVIDIADriver` becomes a pool, and the one without a selector `defaults.driver`. If none is without, `defaults.driver.source` is `Preinstalled`",
    ),
    becomes(
        &[
            "driver.nodeSelector",
            "driver.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            "driver.default",
        ],
        "`match.nodeSelector` of the pool; for each further term of the affinity a further pool",
    ),
    becomes(
        &["driver.tolerations", "driver.priorityClassName", "daemonsets.tolerations", "daemonsets.priorityClassName"],
        "`tolerations` and `priorityClassName` of the pool or of `defaults`. If `tolerations` is not set, operands tolerate every taint",
    ),
    becomes(
        &["daemonsets.labels", "daemonsets.annotations", "driver.labels", "driver.annotations"],
        "`podMetadata`, which is the same for all pools",
    ),
    becomes(
        &["driver.imagePullSecrets", "toolkit.imagePullSecrets", "devicePlugin.imagePullSecrets"],
        "`images.pullSecrets`",
    ),
    becomes(
        &["driver.imagePullPolicy", "toolkit.imagePullPolicy", "devicePlugin.imagePullPolicy"],
        "`images.pullPolicy`, if they are equal",
    ),
    becomes(&["toolkit.enabled"], "if false, `toolkit: {injection: None}`"),
    becomes(
        &[
            "toolkit.repository",
            "toolkit.image",
            "toolkit.version",
            "devicePlugin.repository",
            "devicePlugin.image",
            "devicePlugin.version",
        ],
        "`image` of `toolkit` and `devicePlugin`: `repository`, and `tag` or `digest`",
    ),
    becomes(&["toolkit.installDir"], "the same"),
    becomes(
        &["cdi.enabled", "cdi.nriPluginEnabled"],
        "`toolkit.injection`: `Runtime` without CDI, `NRI` with the NRI plugin. Otherwise nothing: `Auto` takes CDI where the runtime has it",
    ),
    becomes(&["operator.runtimeClass"], "`toolkit.runtimeClass`. It exists only where NVIDIA's runtime is configured"),
    becomes(&["devicePlugin.enabled"], "if false, `devicePlugin: {flavor: External}`"),
    becomes(
        &["devicePlugin.config"],
        "`devicePlugin.sharing`, `mig.strategy` and `env`, with a pool for each configuration, which selects label `nvidia.com/device-plugin.config`",
    ),
    becomes(&["mig.strategy"], "`devicePlugin.mig.strategy`"),
    becomes(
        &["migManager.config"],
        "`devicePlugin.mig.layout`, with a pool for each layout in the ConfigMap, which selects label `nvidia.com/mig.config`",
    ),
    becomes(&["gfd.enabled"], "`compatibility: {labels: GFD}`"),
    becomes(
        &["sandboxWorkloads.enabled", "sandboxWorkloads.defaultWorkload"],
        "a `nodeSelector` that excludes nodes for virtual machines, by label `nvidia.com/gpu.workload.config`",
    ),
    not_served(
        &["driver.args", "toolkit.args", "devicePlugin.args"],
        "NVIDIA's operator replaces the arguments of the container by these, here `args` are added to the operator's own. Write those that are needed to `args` of the same component.",
    ),
    not_served(
        &["driver.secretEnv"],
        "Write each variable of the Secret to `driver.env`, with `valueFrom.secretKeyRef`.",
    ),
    not_served(
        &["driver.rdma.useHostMofed"],
        "A network driver on the host needs DMA-BUF: write `driver.container.kernelModule: Open`, and remove `GPU_DIRECT_RDMA_ENABLED`.",
    ),
    not_served(
        &["driver.manager"],
        "There is no k8s-driver-manager. What happens to GPU pods at an update is set in `rollout.gpuPods`.",
    ),
    not_served(
        &["driver.startupProbe", "driver.livenessProbe", "driver.readinessProbe"],
        "The driver's pod has no probes: the time until an update counts as failed is `readiness.progressDeadline`, 30m by default.",
    ),
    not_served(
        &["driver.upgradePolicy.drain.podSelector"],
        "Only GPU pods are evicted: write the pods that must be awaited to `rollout.gpuPods.waitForJobs`.",
    ),
    not_served(
        &["driver.hostNetwork", "toolkit.hostNetwork", "devicePlugin.hostNetwork"],
        "The network of the pods cannot be chosen. If images or packages are only reachable from the host's network, write `proxy`, or use a mirror.",
    ),
    not_served(
        &["driver.podSecurityContext", "daemonsets.podSecurityContext"],
        "The security context of operands is fixed.",
    ),
    not_served(
        &["driver.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"],
        "A preference has no effect on a DaemonSet, and none on a pool.",
    ),
    not_served(
        &["driver.useOpenKernelModules"],
        "NVIDIA's operator ignores it, too: write `driver.container.kernelModule`.",
    ),
    not_served(
        &[
            "driver.licensingConfig",
            "driver.virtualTopology",
            "driver.virtualTopologyConfig",
            "driver.driverType",
            "vgpuManager",
            "vgpuDeviceManager",
        ],
        "vGPU is not served: keep NVIDIA's operator for these nodes, and exclude them with label `gpu.nodestack.dev/managed=false`.",
    ),
    not_served(
        &["gds", "gdrcopy"],
        "Install the modules nvidia-fs and gdrdrv on the host, or by a DaemonSet of your own.",
    ),
    not_served(&["dcgm"], "No DCGM is installed: dcgm-exporter's own chart contains one."),
    not_served(
        &["dcgmExporter"],
        "No dcgm-exporter is installed: install its own chart for metrics `DCGM_FI_…`, or use the metrics of the probe.",
    ),
    not_served(
        &["nodeStatusExporter"],
        "No node status exporter is installed: the operator's metrics show the state of each node.",
    ),
    not_served(&["gfd"], "The probe publishes the labels itself, without an image or settings."),
    not_served(
        &["validator"],
        "There is no validator: nodes are ready by their allocatable GPUs. For a test with CUDA write `readiness.validation`.",
    ),
    not_served(
        &["migManager"],
        "There is no MIG manager: an init container of the device plugin partitions the GPUs, and `rollout.gpuPods` decides what happens to GPU pods.",
    ),
    not_served(
        &["sandboxWorkloads", "sandboxDevicePlugin", "kataSandboxDevicePlugin", "kataManager", "vfioManager"],
        "Virtual machines and Kata containers are not served: keep NVIDIA's operator for their nodes.",
    ),
    not_served(&["ccManager"], "Confidential containers are not served: keep NVIDIA's operator for their nodes."),
    not_served(&["cdi.default"], "NVIDIA's operator ignores it, too."),
    not_served(&["devicePlugin.mps.root"], "The directory of MPS daemons cannot be chosen."),
    not_served(
        &["daemonsets.updateStrategy", "daemonsets.rollingUpdate"],
        "All components are updated within the limits of `rollout`.",
    ),
    not_served(
        &["hostPaths.rootFS", "hostPaths.driverInstallDir"],
        "Only NVIDIA's default is supported. For a driver of the host in another directory write `driver: {source: Preinstalled, preinstalled: {installDir}}`.",
    ),
    not_served(
        &["hostPaths.kubeletRootDir"],
        "Write it to the value `hostPaths.kubeletRoot` of this operator's chart.",
    ),
    not_served(
        &["operator.use_ocp_driver_toolkit", "platform"],
        "OpenShift's driver toolkit is not served: keep NVIDIA's operator there, or use drivers of the hosts.",
    ),
    not_served(
        &["operator.defaultRuntime", "operator.initContainer"],
        "Not needed: the container runtime of each node is detected.",
    ),
    not_served(
        &["operator"],
        "These are settings of NVIDIA's operator itself: write those that are needed to the values of this operator's chart.",
    ),
    not_served(
        &["psa", "psp"],
        "Label the operator's namespace yourself: `pod-security.kubernetes.io/enforce=privileged`.",
    ),
    not_served(
        &["nfd", "node-feature-discovery"],
        "This operator needs no NFD. Install it by its own chart if other programs use its labels.",
    ),
    not_served(
        &["gpuCluster", "draDriver"],
        "Not imported: write `allocation: {mode: DRA}` for pools with DRA. ComputeDomains are not served.",
    ),
    not_served(
        &["clusterPolicy"],
        "Without a ClusterPolicy the chart installs no components: these values have no effect.",
    ),
    not_served(&["extraObjects"], "Apply these objects yourself."),
];
