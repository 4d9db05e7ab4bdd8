//! Random policies: the fields that decide which nodes get which operands and when nodes are ready, in all combinations
//! that the API server accepts.

use std::{collections::BTreeMap, fmt};

use gpu_operator_crd::{
    ClusterGpuPolicySpec,
    policy::{
        Allocation, AllocationMode, Compatibility, CompatibleLabels, Defaults, DeletionPolicy, DevicePlugin, Driver,
        DriverContainer, DriverSource, Health, Image, Images, Injection, KernelModule, Mig, MigLayoutEntry, MigMode,
        MigProfile, MigStrategy, Mps, NodeLabel, Operand, PodMetadata, Pool, PoolMatch, Proxy, PullSecret, Readiness,
        RolloutStrategy, RunFile, Selector, Sharing, StartupTaint, TimeSlicing, Toolkit, Validation, ValidationMode,
    },
    selector::{Operator, Requirement},
};
use k8s_openapi::{
    api::core::v1::{EnvVar, ResourceRequirements, Toleration},
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use proptest::{
    option,
    prelude::*,
    sample::{select, subsequence},
};

/// The spec of a policy, printed in a form that can be applied.
#[derive(Clone)]
pub struct RandomSpec(pub ClusterGpuPolicySpec);

impl fmt::Debug for RandomSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).expect("JSON"))
    }
}

impl RandomSpec {
    /// Returns whether the policy repartitions the GPUs of any pool.
    pub fn manages_mig(&self) -> bool {
        let pools = self.0.pools.iter().filter_map(|pool| pool.device_plugin.as_ref());
        let mut plugins = pools.chain([&self.0.defaults.device_plugin]);
        plugins.any(|plugin| plugin.mig.as_ref().is_some_and(|mig| mig.mode() != MigMode::Unmanaged))
    }

    /// Makes the policy repartition the GPUs of all pools, for which none can be shared by MPS, or of none.
    pub fn manage_mig(&mut self, all: bool) {
        let Self(ClusterGpuPolicySpec { pools, defaults, .. }) = self;
        let pools = pools.iter_mut().filter_map(|pool| pool.device_plugin.as_mut());
        for plugin in pools.chain([&mut defaults.device_plugin]) {
            if all {
                plugin.sharing.mps = None;
            } else {
                plugin.mig = None;
            }
        }
        if all {
            defaults.device_plugin.mig.get_or_insert_with(mig_disabled);
        }
    }
}

fn node_label(key: &str, value: Option<&str>) -> NodeLabel {
    NodeLabel { key: key.into(), value: value.map(Into::into) }
}

pub fn random_spec() -> BoxedStrategy<RandomSpec> {
    let secrets = prop_oneof![5 => Just(vec![]), 1 => Just(vec![PullSecret { name: "pull".into() }])];
    let pools = ["p", "q", "nvidia-h100-80gb"].map(|name| option::weighted(0.4, pool(name)));
    let labels = option::weighted(0.4, select(vec![CompatibleLabels::None, CompatibleLabels::Gfd]));
    let deletion = option::weighted(0.2, Just(DeletionPolicy::Now));
    let priority = prop_oneof![8 => Just(0), 1 => Just(-1), 1 => Just(1)];
    let keys = subsequence(vec!["accelerator", "example.com/tier"], 0..=2);
    let parts = ((selector(), deletion, priority), keys, labels, secrets);
    (parts, defaults(), pools, readiness())
        .prop_map(
            |(((node_selector, deletion_policy, priority), keys, labels, pull_secrets), defaults, pools, readiness)| {
                RandomSpec(ClusterGpuPolicySpec {
                    health: Health::default(),
                    rollout: RolloutStrategy::default(),
                    node_selector,
                    priority,
                    deletion_policy,
                    node_labels: keys.into_iter().map(|key| node_label(key, None)).collect(),
                    images: Images { pull_secrets, ..Images::default() },
                    compatibility: Compatibility { labels },
                    models: vec![],
                    pod_metadata: PodMetadata::default(),
                    proxy: Proxy::default(),
                    defaults,
                    pools: pools.into_iter().flatten().collect(),
                    readiness,
                })
            },
        )
        .boxed()
}

fn selector() -> BoxedStrategy<Option<Selector>> {
    let zone = prop_oneof![Just(("zone", "a")), Just(("zone", "b")), Just(("team", "x"))];
    let labels = zone.prop_map(|(key, value)| Selector {
        match_labels: BTreeMap::from([(key.into(), value.into())]),
        match_expressions: vec![],
    });
    let operator = select(vec![Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist]);
    let expressions = (select(vec!["zone", "team"]), operator).prop_map(|(key, operator)| {
        let values =
            if matches!(operator, Operator::In | Operator::NotIn) { vec!["a".into(), "x".into()] } else { vec![] };
        let requirement = Requirement { key: key.into(), operator, values };
        Selector { match_labels: BTreeMap::new(), match_expressions: vec![requirement] }
    });
    prop_oneof![6 => Just(None), 2 => labels.prop_map(Some), 2 => expressions.prop_map(Some)].boxed()
}

/// Returns a pool's selector, which may also select a label that its policy publishes.
fn pool_selector() -> BoxedStrategy<Option<Selector>> {
    let operator = select(vec![Operator::Exists, Operator::DoesNotExist]);
    let published = operator.prop_map(|operator| {
        let requirement = Requirement { key: "nvidia.com/gpu.product".into(), operator, values: vec![] };
        Some(Selector { match_labels: BTreeMap::new(), match_expressions: vec![requirement] })
    });
    prop_oneof![9 => selector(), 1 => published].boxed()
}

fn pool(name: &'static str) -> BoxedStrategy<Pool> {
    let models =
        subsequence(vec!["nvidia-h100-80gb", "t4", "nvidia-tesla-p100", "mixed", "custom", "nvidia-unknown"], 0..=2);
    let node_labels = [("gpu/nividia", Some("P630")), ("example.com/tier", None), ("accelerator", Some("special"))];
    let node_labels = subsequence(node_labels.to_vec(), 0..=2);
    let gpus = option::weighted(0.2, 1..9_u32);
    ((models, pool_selector(), node_labels, gpus), driver(), toolkit(), plugin())
        .prop_map(move |((models, node_selector, labels, gpus_per_node), driver, toolkit, device_plugin)| Pool {
            name: name.into(),
            matches: PoolMatch { models: models.into_iter().map(Into::into).collect(), node_selector },
            node_labels: labels.into_iter().map(|(key, value)| node_label(key, value)).collect(),
            gpus_per_node,
            driver: set(driver),
            toolkit: set(toolkit),
            device_plugin: set(device_plugin),
            ..Pool::default()
        })
        .boxed()
}

fn set<T: Default + PartialEq>(value: T) -> Option<T> {
    Some(value).filter(|value| *value != T::default())
}

fn driver() -> BoxedStrategy<Driver> {
    let version = || option::weighted(0.7, select(vec!["595.91.07", "590.10.01", "580.173.02", "470.256.02"]));
    let plain = |version: Option<&str>| Driver { version: version.map(Into::into), ..Driver::default() };
    let installer = select(vec![DriverSource::RunFile, DriverSource::CloudInstaller]);
    let install_dir = select(vec![None, Some("/srv/nvidia")]);
    let module = select(vec![KernelModule::Open, KernelModule::Proprietary]);
    prop_oneof![
        4 => Just(Driver::default()),
        4 => version().prop_map(plain),
        1 => version().prop_map(move |version| Driver { source: Some(DriverSource::Container), ..plain(version) }),
        1 => Just(Driver { source: Some(DriverSource::Preinstalled), ..Driver::default() }),
        1 => (version(), module).prop_map(move |(version, module)| {
            let container = DriverContainer { kernel_module: Some(module), ..DriverContainer::default() };
            Driver { container, ..plain(version) }
        }),
        2 => version().prop_map(move |version| Driver { operand: mirrored(), ..plain(version) }),
        1 => operand(vec![]).prop_map(|operand| Driver { operand, ..Driver::default() }),
        1 => version().prop_map(move |version| {
            let container = DriverContainer { precompiled: Some(true), ..DriverContainer::default() };
            Driver { container, ..plain(version) }
        }),
        1 => (version(), installer).prop_map(move |(version, source)| Driver {
            source: Some(source),
            // This source has no default image.
            operand: if source == DriverSource::RunFile { own_image() } else { Operand::default() },
            run_file: (source == DriverSource::RunFile).then(|| RunFile { sha256: "a1".into(), ..RunFile::default() }),
            ..plain(version)
        }),
        1 => install_dir.prop_map(|install_dir| Driver {
            source: Some(DriverSource::RunFile),
            run_file: Some(RunFile {
                url: Some("https://mirror.example.com/driver.run".into()),
                sha256: "b2".into(),
                install_dir: install_dir.map(Into::into),
            }),
            operand: own_image(),
            ..Driver::default()
        }),
    ]
    .boxed()
}

/// Returns the driver's image by another name.
fn mirrored() -> Operand {
    let image = Image { repository: Some("mirror.example.com/driver".into()), ..Image::default() };
    Operand { image: Some(image), ..Operand::default() }
}

fn own_image() -> Operand {
    let image = Image { repository: Some("own/run-file".into()), tag: Some("1".into()), digest: None };
    Operand { image: Some(image), ..Operand::default() }
}

fn toolkit() -> BoxedStrategy<Toolkit> {
    let operand = prop_oneof![5 => Just(Operand::default()), 1 => operand(vec![])];
    let injection = option::weighted(0.3, select(vec![Injection::Cdi, Injection::Nri, Injection::Runtime]));
    let class = option::weighted(0.2, Just("gpu".to_owned()));
    (operand, injection, class)
        .prop_map(|(operand, injection, runtime_class)| Toolkit {
            operand,
            injection,
            runtime_class,
            ..Toolkit::default()
        })
        .boxed()
}

fn plugin() -> BoxedStrategy<DevicePlugin> {
    let operand = prop_oneof![3 => Just(Operand::default()), 2 => operand(vec!["v0.21.0", "v0.22.0"])];
    (operand, sharing(), mig())
        .prop_map(|(operand, sharing, mig)| {
            // MIG and MPS exclude each other.
            let mig = mig.filter(|_| sharing.mps.is_none());
            DevicePlugin { operand, sharing, mig, ..DevicePlugin::default() }
        })
        .boxed()
}

/// Returns no MIG, or a layout of one device per GPU, so that the number of resources is the same. Nodes with one GPU lack
/// the second one.
fn mig() -> BoxedStrategy<Option<Mig>> {
    let entry = |devices: &[u32], profile: &str| {
        let profiles = vec![MigProfile { profile: profile.into(), count: 1 }];
        MigLayoutEntry { devices: devices.to_vec(), profiles }
    };
    let partitioned = |strategy, layout| Mig { strategy: Some(strategy), mode: Some(MigMode::Layout), layout };
    let by_devices = vec![
        vec![entry(&[0], "7g.80gb")],
        vec![entry(&[0], "7g.80gb"), entry(&[], "7g.141gb")],
        vec![entry(&[0, 1], "7g.80gb")],
    ];
    prop_oneof![
        6 => Just(None),
        1 => Just(Some(partitioned(MigStrategy::Single, vec![entry(&[], "7g.80gb")]))),
        1 => select(by_devices).prop_map(move |layout| Some(partitioned(MigStrategy::Mixed, layout))),
        1 => Just(Some(mig_disabled())),
    ]
    .boxed()
}

fn mig_disabled() -> Mig {
    Mig { mode: Some(MigMode::Disabled), ..Mig::default() }
}

fn sharing() -> BoxedStrategy<Sharing> {
    let slicing = (2..5_u32, option::of(any::<bool>())).prop_map(|(replicas, rename_by_default)| Sharing {
        time_slicing: Some(TimeSlicing { replicas, rename_by_default, ..TimeSlicing::default() }),
        ..Sharing::default()
    });
    let mps =
        (2..5_u32).prop_map(|replicas| Sharing { mps: Some(Mps { replicas, ..Mps::default() }), ..Sharing::default() });
    prop_oneof![7 => Just(Sharing::default()), 2 => slicing, 1 => mps].boxed()
}

/// Returns an operand's fields: disruptive ones (tag, environment) and a non-disruptive one (resources).
fn operand(tags: Vec<&'static str>) -> BoxedStrategy<Operand> {
    let image = |tag: &str| Image { tag: Some(tag.into()), ..Image::default() };
    let limits = BTreeMap::from([("memory".to_owned(), Quantity("1Gi".into()))]);
    let limited = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
    let env = EnvVar { name: "EXAMPLE".into(), value: Some("1".into()), ..EnvVar::default() };
    let images: Vec<_> = std::iter::once(None).chain(tags.into_iter().map(|tag| Some(image(tag)))).collect();
    (select(images), subsequence(vec![env], 0..=1), option::of(Just(limited)))
        .prop_map(|(image, env, resources)| Operand { image, env, args: vec![], resources })
        .boxed()
}

fn defaults() -> BoxedStrategy<Defaults> {
    let exists =
        |key: &str| Toleration { key: Some(key.into()), operator: Some("Exists".into()), ..Toleration::default() };
    let tolerations = prop_oneof![
        6 => Just(None),
        1 => Just(Some(vec![])),
        1 => Just(Some(vec![exists("dedicated")])),
    ];
    let priority = option::weighted(0.1, Just("high".to_owned()));
    (driver(), toolkit(), plugin(), allocation(), tolerations, priority)
        .prop_map(|(driver, toolkit, device_plugin, allocation, tolerations, priority_class_name)| Defaults {
            driver,
            toolkit,
            device_plugin,
            allocation,
            foreign_stack: None,
            tolerations,
            priority_class_name,
        })
        .boxed()
}

fn allocation() -> BoxedStrategy<Allocation> {
    let by_claims = operand(vec!["v0.5.0"]).prop_map(|dra| Allocation { mode: Some(AllocationMode::Dra), dra });
    prop_oneof![4 => Just(Allocation::default()), 1 => by_claims].boxed()
}

fn readiness() -> BoxedStrategy<Readiness> {
    let percent = select(vec!["0%", "34%", "50%", "100%"]).prop_map(|percent| IntOrString::String(percent.into()));
    let least = prop_oneof![3 => Just(None), 1 => percent.prop_map(Some), 1 => (0..5).prop_map(|least| Some(IntOrString::Int(least)))];
    let deadline = prop_oneof![3 => Just(None), 1 => Just(Some("1m"))];
    let validation = option::weighted(0.4, select(vec![ValidationMode::OnInstall, ValidationMode::OnUpgrade]));
    (least, deadline, validation, any::<bool>(), startup_taint())
        .prop_map(|(min_ready_nodes, deadline, mode, node_condition, startup_taint)| Readiness {
            min_ready_nodes,
            progress_deadline: deadline.map(|deadline| deadline.parse().expect("a duration")),
            validation: Validation { mode, ..Validation::default() },
            node_condition,
            startup_taint,
        })
        .boxed()
}

fn startup_taint() -> BoxedStrategy<Option<StartupTaint>> {
    let keys = [None, Some("startup-taint.cluster-autoscaler.kubernetes.io/gpu"), Some("dedicated")];
    let taint = select(keys.to_vec()).prop_map(|key| Some(StartupTaint { key: key.map(Into::into) }));
    prop_oneof![2 => Just(None), 3 => taint].boxed()
}
