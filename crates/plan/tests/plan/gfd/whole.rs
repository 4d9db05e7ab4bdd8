//! Machines of whole GPUs: of every family, shared, and of several models.

use super::{A100, B200, DGX_DISPLAY, H100, K80, L40S, RTX_4090, T4, V100, check, gpu, partitioned};

#[test]
fn every_family_is_labelled() {
    check(vec![
        (
            "T4",
            vec![gpu(T4); 4],
            "{}",
            "gpu.product=Tesla-T4 gpu.count=4 gpu.memory=15360 gpu@turing mig.capable=false",
        ),
        (
            "V100",
            vec![gpu(V100)],
            "{}",
            "gpu.product=Tesla-V100-SXM2-16GB gpu.count=1 gpu.memory=16384 gpu@volta mig.capable=false",
        ),
        (
            "K80, one board with two GPUs",
            vec![gpu(K80); 2],
            "{}",
            "gpu.product=Tesla-K80 gpu.count=2 gpu.memory=11441 gpu@kepler mig.capable=false",
        ),
        (
            "A100",
            vec![gpu(A100); 8],
            "{}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=8 gpu.memory=40960 gpu@ampere mig.capable=true",
        ),
        (
            "H100",
            vec![gpu(H100); 8],
            "{}",
            "gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=8 gpu.memory=81559 gpu@hopper mig.capable=true",
        ),
        (
            "B200",
            vec![gpu(B200); 8],
            "{}",
            "gpu.product=NVIDIA-B200 gpu.count=8 gpu.memory=183359 gpu@blackwell mig.capable=true",
        ),
        (
            "L40S",
            vec![gpu(L40S)],
            "{}",
            "gpu.product=NVIDIA-L40S gpu.count=1 gpu.memory=46068 gpu@ada mig.capable=false",
        ),
        (
            "a desktop GPU",
            vec![gpu(RTX_4090)],
            "{}",
            "gpu.product=NVIDIA-GeForce-RTX-4090 gpu.count=1 gpu.memory=24564 gpu@ada gpu.mode=graphics \
             mig.capable=false",
        ),
        (
            "a GPU that only drives a display",
            vec![gpu(DGX_DISPLAY), gpu(A100)],
            "{}",
            "gpu.product=NVIDIA-A100-SXM4-40GB gpu.count=1 gpu.memory=40960 gpu@ampere mig.capable=true",
        ),
    ]);
}

#[test]
fn shared_gpus_report_the_sharing_strategy() {
    check(vec![
        (
            "time-slicing",
            vec![gpu(L40S); 2],
            "{sharing: {timeSlicing: {replicas: 4}}}",
            "gpu.product=NVIDIA-L40S-SHARED gpu.count=2 gpu.replicas=4 gpu.sharing-strategy=time-slicing \
             gpu.memory=46068 gpu@ada mig.capable=false",
        ),
        (
            "time-slicing, renamed",
            vec![gpu(L40S); 2],
            "{sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}",
            "gpu.product=NVIDIA-L40S gpu.count=2 gpu.replicas=4 gpu.sharing-strategy=time-slicing gpu.memory=46068 \
             gpu@ada mig.capable=false",
        ),
        (
            "MPS",
            vec![gpu(H100); 2],
            "{sharing: {mps: {replicas: 8}}}",
            "gpu.product=NVIDIA-H100-80GB-HBM3-SHARED gpu.count=2 gpu.replicas=8 gpu.sharing-strategy=mps \
             gpu.memory=81559 gpu@hopper mig.capable=true mps.capable=true",
        ),
        (
            "MPS, renamed",
            vec![gpu(H100)],
            "{sharing: {mps: {replicas: 8, renameByDefault: true}}}",
            "gpu.product=NVIDIA-H100-80GB-HBM3 gpu.count=1 gpu.replicas=8 gpu.sharing-strategy=mps gpu.memory=81559 \
             gpu@hopper mig.capable=true mps.capable=true",
        ),
    ]);
}

#[test]
fn of_several_models_the_last_one_is_described() {
    check(vec![
        (
            "several models: the last one",
            vec![gpu(T4), gpu(RTX_4090), gpu(T4)],
            "{}",
            "gpu.product=NVIDIA-GeForce-RTX-4090 gpu.count=1 gpu.memory=24564 gpu@ada gpu.mode=unknown \
             mig.capable=false",
        ),
        (
            "several models, one of which supports MIG",
            vec![gpu(A100), gpu(T4), gpu(T4), gpu(A100)],
            "{}",
            "gpu.product=Tesla-T4 gpu.count=2 gpu.memory=15360 gpu@turing mig.capable=true",
        ),
        (
            "several models: a whole GPU takes precedence over partitioned ones",
            vec![gpu(T4), partitioned(A100, &[]), partitioned(A100, &[])],
            "{mig: {strategy: Mixed}}",
            "gpu.product=Tesla-T4 gpu.count=1 gpu.memory=15360 gpu@turing mig.capable=true mig.strategy=mixed",
        ),
    ]);
}
