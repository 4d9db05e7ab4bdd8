//! Properties of GPUs that depend only on their model, so that `gpus.json` need not list them. Figures are from
//! NVIDIA's data sheets.

/// NVML's numbers of the brands that are used here.
mod brand {
    pub(super) const QUADRO: u32 = 1;
    pub(super) const TESLA: u32 = 2;
    pub(super) const NVIDIA: u32 = 14;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// NVML's number of the brand.
    pub brand: u32,
    /// CUDA compute capability, major and minor.
    pub capability: (i32, i32),
    pub multiprocessors: u32,
    /// Generation of PCI Express. Each has sixteen lanes.
    pub pcie_generation: u32,
    /// Memory that the host can address, in MiB.
    pub bar1_mib: u64,
    /// Its NVLinks, and where they lead.
    pub nvlinks: NvLinks,
    /// Whether a fabric manager makes it part of a fabric.
    pub fabric: bool,
    /// The resources of its MIG instances; `None` if it does not support MIG.
    pub mig: Option<MigParts>,
    /// Whether two of them share a board.
    pub twin: bool,
    /// Whether its memory is the processor's, so that NVML reports no size of it.
    pub unified: bool,
}

/// The NVLinks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinks {
    None,
    /// This number, for a bridge between neighbouring cards, which is not installed.
    Unbridged(u32),
    /// Six to other GPUs, in a cube of eight GPUs.
    Mesh,
    /// This number, connected to switches on the host's PCI bus.
    Switch(u32),
    /// This number, connected to switches that the host does not see.
    HiddenSwitch(u32),
}

/// The resources of a model's MIG instances, in the order of [`crate::Profile::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigParts {
    pub multiprocessors: [u32; 7],
    pub copy_engines: [u32; 7],
    pub decoders: [u32; 7],
    /// Engines for JPEG.
    pub jpeg: [u32; 7],
}

const A100_PARTS: MigParts = MigParts {
    multiprocessors: [14, 28, 42, 56, 98, 14, 14],
    copy_engines: [1, 2, 3, 4, 7, 1, 1],
    decoders: [0, 1, 2, 2, 5, 1, 1],
    jpeg: [0, 0, 0, 0, 1, 1, 0],
};

const H100_PARTS: MigParts = MigParts {
    multiprocessors: [16, 32, 60, 64, 132, 16, 26],
    copy_engines: [1, 2, 3, 4, 8, 1, 1],
    decoders: [1, 2, 3, 4, 7, 1, 1],
    jpeg: [1, 2, 3, 4, 7, 1, 1],
};

const B200_PARTS: MigParts = MigParts { multiprocessors: [18, 36, 70, 72, 148, 18, 30], ..H100_PARTS };

/// A card without optional features.
const fn card(brand: u32, capability: (i32, i32), multiprocessors: u32, pcie_generation: u32, bar1_mib: u64) -> Model {
    Model {
        brand,
        capability,
        multiprocessors,
        pcie_generation,
        bar1_mib,
        nvlinks: NvLinks::None,
        fabric: false,
        mig: None,
        twin: false,
        unified: false,
    }
}

const A100: Model = Model { mig: Some(A100_PARTS), ..card(brand::NVIDIA, (8, 0), 108, 4, 131_072) };

const B200: Model = Model {
    nvlinks: NvLinks::HiddenSwitch(18),
    fabric: true,
    mig: Some(B200_PARTS),
    ..card(brand::NVIDIA, (10, 0), 148, 5, 262_144)
};

/// By PCI device id.
const MODELS: [(u16, Model); 12] = [
    // Tesla K80
    (0x102d, Model { twin: true, ..card(brand::TESLA, (3, 7), 13, 3, 16_384) }),
    // Quadro K620
    (0x13bb, card(brand::QUADRO, (5, 0), 3, 2, 256)),
    // Tesla P100, PCIe
    (0x15f8, card(brand::TESLA, (6, 0), 56, 3, 16_384)),
    // Tesla V100, SXM2
    (0x1db1, Model { nvlinks: NvLinks::Mesh, ..card(brand::TESLA, (7, 0), 80, 3, 16_384) }),
    // Tesla T4
    (0x1eb8, card(brand::TESLA, (7, 5), 40, 3, 256)),
    // A100 80 GB, SXM4
    (0x20b2, Model { nvlinks: NvLinks::Switch(12), ..A100 }),
    // A100 80 GB, PCIe
    (0x20b5, Model { nvlinks: NvLinks::Unbridged(12), ..A100 }),
    // H100, SXM5
    (
        0x2330,
        Model {
            nvlinks: NvLinks::Switch(18),
            fabric: true,
            mig: Some(H100_PARTS),
            ..card(brand::NVIDIA, (9, 0), 132, 5, 131_072)
        },
    ),
    // L40S
    (0x26b9, card(brand::NVIDIA, (8, 9), 142, 4, 65_536)),
    // B200
    (0x2901, B200),
    // GB200
    (0x2941, Model { multiprocessors: 152, ..B200 }),
    // GB10
    (0x2e12, Model { unified: true, ..card(brand::NVIDIA, (12, 1), 48, 5, 0) }),
];

impl Model {
    /// Returns the model with this PCI device id; for an id that is not in the table, a generic one of its generation.
    pub fn of(id: u16) -> Self {
        let listed = MODELS.iter().find(|(listed, _)| *listed == id);
        listed.map_or_else(|| card(brand::NVIDIA, capability_of(id), 64, 4, 256), |(_, model)| *model)
    }
}

/// Returns the compute capability of most chips in the block of PCI device ids to which an id belongs.
fn capability_of(id: u16) -> (i32, i32) {
    match id {
        ..0x1340 => (3, 5),
        0x1340..0x13c0 => (5, 0),
        0x13c0..0x15f0 | 0x1700..0x1b00 => (5, 2),
        0x15f0..0x1700 => (6, 0),
        0x1b00..0x1d80 => (6, 1),
        0x1d80..0x1e00 => (7, 0),
        0x1e00..0x2080 | 0x2100..0x2200 => (7, 5),
        0x2080..0x2100 => (8, 0),
        0x2300..0x2400 => (9, 0),
        0x2200..0x2300 | 0x2400..0x2600 => (8, 6),
        0x2600..0x2900 => (8, 9),
        0x2900..0x2b00 => (10, 0),
        0x2b00..0x3100 => (12, 0),
        0x3100.. => (10, 3),
    }
}

/// Returns NVML's number of the architecture with this compute capability, or that of an unknown architecture.
pub fn architecture(capability: (i32, i32)) -> u32 {
    match capability {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..5) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10 | 12, _) => 10,
        _ => u32::MAX,
    }
}

/// Returns the number of CUDA cores in each multiprocessor.
pub fn cores(capability: (i32, i32)) -> u32 {
    match capability {
        (3, _) => 192,
        (6 | 8, 0) | (7, _) => 64,
        _ => 128,
    }
}
