//! The reference of the checks, from which `docs/reference/checks.md` and `checks-installed.md` are generated.

use crate::check::code::Check;

#[derive(Clone, Copy, Debug)]
pub struct Explanation {
    pub looks_at: &'static str,
    pub matters: &'static str,
    pub remedy: &'static str,
}

impl Check {
    #[expect(clippy::too_many_lines, reason = "a table")]
    pub fn explanation(self) -> Explanation {
        let text = |looks_at, matters, remedy| Explanation { looks_at, matters, remedy };
        match self {
            Self::KubernetesVersion => text(
                "The version of the API server.",
                "The operator is tested with Kubernetes 1.32 and later; Helm does not install the chart on older clusters.",
                "Upgrade the control plane.",
            ),
            Self::InstallRights => text(
                "Whether you may create the kinds of objects that the chart contains.",
                "Helm stops at the first object that it may not create, and leaves a part of the release in the cluster.",
                "Install the chart as an administrator of the cluster.",
            ),
            Self::AdmissionPolicyApi => text(
                "Whether the API server serves ValidatingAdmissionPolicies.",
                "The chart restricts with them what the accounts of operator, probe and detector may write.",
                "Remove the setting of the API server that disables `admissionregistration.k8s.io/v1`.",
            ),
            Self::SingleInstallation => text(
                "Deployments of this operator in all namespaces.",
                "Two operators revert each other's writes. One installation per cluster is supported.",
                "Uninstall all but one, or set `--operator-namespace` to the namespace of the existing one.",
            ),
            Self::LeftoverCrds => text(
                "The CRDs of this operator, which remain when the chart is uninstalled.",
                "Policies and GpuNodes of an earlier installation still exist, and fields that this version does not have are dropped.",
                "Install the chart, which updates the CRDs; or delete the CRDs, which deletes all policies and GpuNodes.",
            ),
            Self::OperatorPlacement => text(
                "The taints of all Ready nodes.",
                "The operator's pod has no tolerations by default, so it stays Pending if every node is tainted.",
                "Set the chart's value `operator.tolerations`.",
            ),
            Self::KubeletSkew => text(
                "The versions of kubelets, compared with that of the API server.",
                "Kubernetes supports kubelets that are up to three minor versions older than the API server, and none that is newer.",
                "Upgrade the kubelets, or the control plane if it is the older one.",
            ),
            Self::ContainerRuntime => text(
                "The container runtimes of the nodes with GPUs; before any is known, of all nodes but those of the control plane.",
                "The container toolkit supports containerd, CRI-O and Docker.",
                "Use one of these runtimes, or exclude the node with the label `gpu.nodestack.dev/managed=false`.",
            ),
            Self::RuntimeCdi => text(
                "The versions of the container runtimes of these nodes.",
                "containerd 1.6 and Docker lack CDI, so that NVIDIA's runtime becomes the default of all containers of the node, and the \
                 runtime is restarted once. containerd 1.7 is restarted once to enable CDI.",
                "Upgrade to containerd 2, or plan for the restart. [Container runtimes](../guides/runtimes.md) describes the alternatives.",
            ),
            Self::DriverImage => text(
                "The operating systems of the nodes with GPUs, and for nodes that a policy governs whether their reason is \
                 `NoDriverImageForOS`.",
                "NVIDIA publishes driver images for some systems only: [Models and drivers](catalogue.md) lists them.",
                "Install the driver on the host, or set `driver.image` or `driver.source` in the policy: [Drivers](../guides/drivers.md).",
            ),
            Self::PodSecurity => text(
                "The label `pod-security.kubernetes.io/enforce` of the operator's namespace.",
                "The pods of driver, toolkit, device plugin and probe are privileged, which the standards `baseline` and `restricted` reject.",
                "Label the namespace with `pod-security.kubernetes.io/enforce=privileged`.",
            ),
            Self::ComputeQuota => text(
                "ResourceQuotas of the operator's namespace that limit processor time or memory, and LimitRanges that set defaults.",
                "Such a quota rejects all pods that do not set these resources, and the pods of drivers do not by default.",
                "Delete the quota, limit it to other pods by a scope, or add a LimitRange with defaults.",
            ),
            Self::PodQuota => text(
                "ResourceQuotas of the operator's namespace that limit the number of pods.",
                "Each node has a pod of the detector, and each node with GPUs about five more. Pods beyond the quota are rejected.",
                "Raise the quota to ten pods for each node.",
            ),
            Self::DefaultLimits => text(
                "LimitRanges of the operator's namespace that set limits by default, or a maximum.",
                "Containers that install drivers compile kernel modules. With a limit of memory they may be killed.",
                "Delete the LimitRange, or set the resources of the containers in the policy.",
            ),
            Self::BlockingWebhooks => text(
                "Admission webhooks for pods of the operator's namespace with `failurePolicy: Fail`. Those with `matchConditions` are not judged.",
                "While such a webhook does not answer, no pod of the operator or of a driver is created, for example after an outage.",
                "Exclude the namespace with the webhook's `namespaceSelector`, or set `failurePolicy: Ignore`.",
            ),
            Self::NvidiaOperator => text(
                "DaemonSets of NVIDIA's GPU Operator, and its CRD.",
                "This operator installs nothing on nodes that have a part of another stack, unless the policy takes over.",
                "Install this chart as a Helm release of its own, such as `nodestack`. To move nodes, follow \
                 [Coming from NVIDIA's GPU Operator](../guides/migration.md).",
            ),
            Self::GkeAddOn => text(
                "Device plugins and driver installers of GKE that reach a node.",
                "They are left unchanged, and this operator installs nothing in addition to them.",
                "Create node pools with `gpu-driver-version=disabled`, and label nodes as described in [GKE](../start/gke.md).",
            ),
            Self::DraDriver => text(
                "DaemonSets of NVIDIA's DRA driver that reach a node.",
                "A DRA driver and a device plugin do not coordinate, and may allocate the same GPU twice.",
                "Keep one of them off each node: [Coexistence with other GPU stacks](../guides/coexistence.md).",
            ),
            Self::ThirdPartyStack => text(
                "Other DaemonSets that reach a node and install a driver, a toolkit or NVIDIA's device plugin.",
                "They are left unchanged, and this operator installs nothing in addition to them.",
                "Delete them, or exclude nodes: [Coexistence with other GPU stacks](../guides/coexistence.md).",
            ),
            Self::CrdsInstalled => text(
                "The two CRDs, their condition `Established`, and their served version.",
                "Without them there are no policies, and neither operator nor probes can store anything.",
                "Install the chart with `crds.enabled`, or apply `config/crd`.",
            ),
            Self::CrdSchema => text(
                "The schema revisions and the fields of the installed CRDs, compared with those of this program's version, and the stored versions.",
                "The API server drops fields that its CRDs do not have, and rejects policies with them; an operator with older CRDs does not lead.",
                "Update the CRDs before operator and probe: [Outdated CRDs](../operate/upgrade.md#outdated-crds).",
            ),
            Self::OperatorAvailable => text(
                "The operator's Deployment.",
                "While the operator does not run, existing GPU pods keep running, and no node makes progress.",
                "See the log and the Events of its pod.",
            ),
            Self::OperatorVersion => text(
                "The label `app.kubernetes.io/version` of the operator's Deployment, compared with the version of this program.",
                "A program of another version may not show, or not understand, what the operator reports.",
                "Use the program of the operator's version.",
            ),
            Self::ProbeVersion => text(
                "The version of the probe in the reports of GpuNodes, compared with that of the operator.",
                "The chart installs both with one version. Facts that an older probe does not report have their defaults.",
                "Wait for the update of the probe's DaemonSet. If it does not proceed, check its `updateStrategy`.",
            ),
            Self::DetectorReady => text(
                "The DaemonSet `nodestack-gpu-detector`.",
                "It finds the nodes that have GPUs. A node without it is known only by the labels of clouds and NFD.",
                "See the Events of the DaemonSet and its pods.",
            ),
            Self::ProbeReady => text(
                "The DaemonSet `nodestack-nvml-probe`, and the number of nodes with the label `gpu.nodestack.dev/present=true`.",
                "A node whose probe does not run makes no progress, and the health of its GPUs is unknown.",
                "See the Events of the DaemonSet and its pods, and the chart's values `probe.nodeSelector` and `probe.affinity`.",
            ),
            Self::PodsAdmitted => text(
                "Events `FailedCreate` of DaemonSets of the operator's namespace that lack pods.",
                "The API server rejects these pods, by a Pod Security standard, a quota, a webhook or an admission policy.",
                "Change what the message names.",
            ),
            Self::ImagesPulled => text(
                "Pending pods of the operator's namespace that wait for an image.",
                "The node of such a pod makes no progress.",
                "Check the name of the image, the registry's certificate, and the pull secrets of chart and policy.",
            ),
            Self::AdmissionPolicies => text(
                "The ValidatingAdmissionPolicies that the operator's arguments name, and their bindings.",
                "They restrict what the accounts of operator, probe and detector may write, for example if a node is compromised.",
                "Run `helm upgrade` with the chart and the values of this installation.",
            ),
            Self::NodesReady => text(
                "The condition `Ready` of the nodes with GPUs.",
                "What is known of their GPUs is out of date.",
                "Check kubelet and the container runtime of the node.",
            ),
            Self::ProbesReport => text(
                "Nodes with GPUs that are Ready and whose GpuNode has no report, has reason `ProbeMissing`, or cannot be parsed.",
                "Such a node makes no progress.",
                "See the probe's pod on the node, which `kubectl get pods --namespace gpu-operator -o wide` lists.",
            ),
            Self::NodesWithoutPolicy => text(
                "Nodes with GPUs that no policy governs and that are not excluded by the label `gpu.nodestack.dev/managed`.",
                "Nothing is installed on them.",
                "Create a policy that selects them, or exclude them with the label `gpu.nodestack.dev/managed=false`.",
            ),
            Self::PoliciesAccepted => text(
                "The condition `Accepted` of policies, and policies that cannot be parsed.",
                "Pools with invalid settings make no progress.",
                "Correct the setting that the message names.",
            ),
            Self::PoliciesProgress => text(
                "The condition `Stalled` of policies.",
                "The operator cannot proceed until a user, or time, resolves a problem.",
                "Follow the message; [Phases and reasons](reasons.md) explains the reason.",
            ),
            Self::PolicyOverlap => text(
                "Policies that select the same nodes.",
                "Only the policy with the higher priority, or else the older one, governs these nodes.",
                "Set a `nodeSelector`, or `priority`, in the policies.",
            ),
            Self::NodesProgress => text(
                "GpuNodes with a reason that is a failure, except those that other checks report.",
                "GPUs of these nodes cannot be used, or not all of them.",
                "Follow the message; [Failures of nodes](failures.md) explains the reason.",
            ),
            Self::RuntimeClasses => text(
                "The RuntimeClasses of policies and pools with `toolkit.injection: Runtime` that have a ready node.",
                "Pods that name a RuntimeClass that does not exist are rejected.",
                "The operator creates it. If it does not, see the operator's log.",
            ),
            Self::GpusHealthy => text(
                "The number of unhealthy and degraded GPUs of all GpuNodes.",
                "An unhealthy GPU must not be used.",
                "Follow [GPU health](../operate/health.md).",
            ),
        }
    }
}
