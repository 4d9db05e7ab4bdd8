//! Machines whose GPUs are partitioned by MIG.

use gpu_operator_crd::report::Gpu;

use super::{A100, MAX_Q, ONE_G, THREE_G, check, gpu, partitioned};

fn whole_and_partitioned() -> Vec<Gpu> {
    vec![partitioned(A100, &[("3g.20gb", 2, THREE_G)]), gpu(A100)]
}

fn two_kinds() -> Vec<Gpu> {
    vec![partitioned(A100, &[("1g.5gb", 4, ONE_G), ("3g.20gb", 1, THREE_G)])]
}

#[test]
fn with_strategy_single_all_mig_devices_must_be_alike() {
    check(vec![
        (
            "MIG, single, without partitioned GPUs",
            vec![gpu(A100)],
            "{mig: {strategy: Single}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=1 gpu.memory=40960 gpu@ampere mig.capable=true \
             mig.strategy=single",
        ),
        (
            "MIG, single",
            vec![partitioned(A100, &[("3g.20gb", 2, THREE_G)]); 2],
            "{mig: {strategy: Single}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-3g.20gb gpu.count=4 gpu@3g gpu@ampere mig.capable=true \
             mig.strategy=single",
        ),
        (
            "MIG, single, time-sliced",
            vec![partitioned(A100, &[("1g.5gb", 7, ONE_G)])],
            "{mig: {strategy: Single}, sharing: {timeSlicing: {replicas: 2}}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED gpu.count=7 gpu.replicas=2 \
             gpu.sharing-strategy=time-slicing gpu@1g gpu@ampere mig.capable=true mig.strategy=single",
        ),
        (
            "MIG, single, two profiles",
            two_kinds(),
            "{mig: {strategy: Single}, sharing: {timeSlicing: {replicas: 2}}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID gpu.count=0 gpu.replicas=0 gpu.sharing-strategy= \
             gpu.memory=0 gpu@ampere mig.capable=true mig.strategy=single",
        ),
        (
            "MIG, single, beside a whole GPU",
            whole_and_partitioned(),
            "{mig: {strategy: Single}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID gpu.count=0 gpu.replicas=0 gpu.sharing-strategy= \
             gpu.memory=0 gpu@ampere mig.capable=true mig.strategy=single",
        ),
        (
            "MIG, single, with a GPU without MIG devices",
            vec![partitioned(A100, &[("1g.5gb", 7, ONE_G)]), partitioned(A100, &[])],
            "{mig: {strategy: Single}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID gpu.count=0 gpu.replicas=0 gpu.sharing-strategy= \
             gpu.memory=0 gpu@ampere mig.capable=true mig.strategy=single",
        ),
        (
            "a product name that is too long for a label",
            vec![partitioned(MAX_Q, &[("1g.24gb", 4, ONE_G)])],
            "{mig: {strategy: Single}}",
            "gpu.count=4 gpu@1g gpu.family=blackwell gpu.compute.major=12 gpu.compute.minor=0 gpu.mode=graphics \
             mig.capable=true mig.strategy=single",
        ),
    ]);
}

#[test]
fn with_strategy_mixed_each_profile_is_a_resource() {
    check(vec![
        (
            "MIG without a strategy: the GPUs are not offered",
            vec![partitioned(A100, &[("1g.5gb", 7, ONE_G)]); 2],
            "{sharing: {timeSlicing: {replicas: 2}}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=2 gpu.replicas=0 gpu.memory=40960 gpu@ampere mig.capable=true",
        ),
        (
            "MIG, mixed",
            two_kinds(),
            "{mig: {strategy: Mixed}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=1 gpu.replicas=0 gpu.memory=40960 gpu@ampere mig.capable=true \
             mig.strategy=mixed mig-1g.5gb.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb mig-1g.5gb.count=4 \
             mig-1g.5gb.replicas=1 mig-1g.5gb.sharing-strategy=none mig-1g.5gb@1g \
             mig-3g.20gb.product=NVIDIA-A100-SXM4-40GB-MIG-3g.20gb mig-3g.20gb.count=1 mig-3g.20gb.replicas=1 \
             mig-3g.20gb.sharing-strategy=none mig-3g.20gb@3g",
        ),
        (
            "MIG, mixed, time-sliced, beside a whole GPU",
            whole_and_partitioned(),
            "{mig: {strategy: Mixed}, sharing: {timeSlicing: {replicas: 3}}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB-SHARED gpu.count=2 gpu.replicas=3 gpu.sharing-strategy=time-slicing \
             gpu.memory=40960 gpu@ampere mig.capable=true mig.strategy=mixed \
             mig-3g.20gb.product=NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED mig-3g.20gb.count=2 mig-3g.20gb.replicas=3 \
             mig-3g.20gb.sharing-strategy=time-slicing mig-3g.20gb@3g",
        ),
        (
            "a profile with media engines, which is not shared",
            vec![partitioned(A100, &[("1g.5gb+me", 1, ONE_G)])],
            "{mig: {strategy: Mixed}, sharing: {timeSlicing: {replicas: 3}}}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=1 gpu.replicas=0 gpu.memory=40960 gpu@ampere mig.capable=true \
             mig.strategy=mixed mig-1g.5gb.me.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me mig-1g.5gb.me.count=1 \
             mig-1g.5gb.me.replicas=1 mig-1g.5gb.me.sharing-strategy=none mig-1g.5gb.me@1g",
        ),
    ]);
}
