//! The properties that depend on the model of a GPU, and the connections between GPUs.

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{Brand, ComputeMode, TopologyLevel},
    error::NvmlError,
};

use super::driver_root::{DriverRoot, init, install, serve};

/// Returns the number of active NVLinks and of all NVLinks.
fn nvlinks(gpu: &Device<'_>) -> (usize, usize) {
    let links: Vec<bool> = (0..).map_while(|link| gpu.link_wrapper_for(link).is_active().ok()).collect();
    (links.iter().filter(|active| **active).count(), links.len())
}

#[test]
fn a_gpu_has_the_properties_of_its_model() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    for (id, brand, capability, links, pcie, bar1_mib, has_mig) in [
        (0x102d, Brand::Tesla, (3, 7), (0, 0), 3, 16_384, false),
        (0x13bb, Brand::Quadro, (5, 0), (0, 0), 2, 256, false),
        (0x15f8, Brand::Tesla, (6, 0), (0, 0), 3, 16_384, false),
        (0x1db1, Brand::Tesla, (7, 0), (0, 6), 3, 16_384, false),
        (0x1eb8, Brand::Tesla, (7, 5), (0, 0), 3, 256, false),
        (0x20b2, Brand::Nvidia, (8, 0), (12, 12), 4, 131_072, true),
        (0x20b5, Brand::Nvidia, (8, 0), (0, 12), 4, 131_072, true),
        (0x26b9, Brand::Nvidia, (8, 9), (0, 0), 4, 65_536, false),
        (0x2330, Brand::Nvidia, (9, 0), (18, 18), 5, 131_072, true),
        (0x2901, Brand::Nvidia, (10, 0), (18, 18), 5, 262_144, true),
    ] {
        serve(&root, &[(id, 1)], "");
        let gpu = nvml.device_by_index(0).unwrap();
        let compute = gpu.cuda_compute_capability().unwrap();
        assert_eq!((gpu.brand().unwrap(), (compute.major, compute.minor)), (brand, capability), "{id:x}");
        assert_eq!(nvlinks(&gpu), links, "{id:x}");
        assert_eq!((gpu.max_pcie_link_gen().unwrap(), gpu.current_pcie_link_width().unwrap()), (pcie, 16), "{id:x}");
        assert_eq!(gpu.bar1_memory_info().unwrap().total, bar1_mib << 20, "{id:x}");
        assert_eq!(gpu.mig_mode().is_ok(), has_mig, "{id:x}");
    }
    serve(&root, &[(0x2330, 1)], r#","computeCapability":"8.6""#);
    assert_eq!(
        nvml.device_by_index(0).unwrap().cuda_compute_capability().unwrap().minor,
        6,
        "the file overrides the model"
    );
}

#[test]
fn programs_see_how_gpus_are_connected() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    serve(&root, &[(0x1db1, 8)], "");
    let gpu = |index| nvml.device_by_index(index).unwrap();
    let level = |one, other| gpu(one).topology_common_ancestor(gpu(other)).unwrap();
    assert_eq!(
        [level(0, 1), level(0, 2), level(0, 4)],
        [TopologyLevel::Single, TopologyLevel::Node, TopologyLevel::System]
    );
    let ends = (0..6).map(|link| gpu(0).link_wrapper_for(link).remote_pci_info().unwrap().bus);
    assert_eq!(ends.collect::<Vec<_>>(), [1, 2, 3, 3, 4, 4]);

    serve(&root, &[(0x2330, 1)], "");
    let remote = gpu(0).link_wrapper_for(0).remote_pci_info().unwrap();
    assert_eq!((remote.bus_id.as_str(), remote.pci_device_id), ("00000000:F0:00.0", 0x22a3_10de), "a switch");
    serve(&root, &[(0x1eb8, 1)], "");
    assert!(matches!(gpu(0).link_wrapper_for(0).remote_pci_info(), Err(NvmlError::NotSupported)));
}

#[test]
fn the_compute_mode_is_set_for_each_gpu_separately() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    serve(&root, &[(0x1eb8, 2)], "");
    let mut gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.compute_mode().unwrap(), ComputeMode::Default);
    gpu.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap();
    assert_eq!(gpu.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
    assert_eq!(nvml.device_by_index(1).unwrap().compute_mode().unwrap(), ComputeMode::Default);
}
