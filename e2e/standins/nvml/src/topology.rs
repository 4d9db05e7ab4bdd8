//! The connections between the GPUs of a machine: by PCI, from their positions, and by NVLink, from their model.

use crate::{
    machine::{Device, Machine, PciAddress},
    model::NvLinks,
};

/// The closest common ancestor of two GPUs, by NVML's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// The board.
    Internal = 0,
    /// A single PCI switch.
    Single = 10,
    /// The NUMA node.
    Node = 40,
    /// The machine.
    System = 50,
}

/// Whether a GPU can access another GPU's memory, by NVML's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Peer {
    /// It can.
    Ok = 0,
    /// The hardware between them does not allow it.
    ChipsetNotSupported = 1,
    /// They are of different models.
    GpuNotSupported = 2,
    /// They are not connected in that way.
    NotSupported = 5,
}

/// The kinds of access to another GPU's memory, by NVML's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Any, to read or write.
    Any,
    /// By NVLink.
    NvLink,
    /// By atomic operations.
    Atomics,
}

/// One NVLink of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvLink {
    /// Whether it is in use.
    pub active: bool,
    /// Where it leads.
    pub end: End,
}

/// The other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Gpu(PciAddress, u32),
    /// A switch on the host's PCI bus.
    Switch(PciAddress, u32),
    /// Something that the host does not see, or nothing.
    Hidden,
}

/// For each of eight GPUs, the GPUs at the other ends of its six links.
const MESH: [[usize; 6]; 8] = [
    [1, 2, 3, 3, 4, 4],
    [0, 2, 2, 3, 5, 5],
    [0, 1, 1, 3, 3, 6],
    [0, 0, 1, 2, 2, 7],
    [0, 0, 5, 6, 7, 7],
    [1, 1, 4, 6, 6, 7],
    [2, 4, 5, 5, 7, 7],
    [3, 4, 4, 5, 6, 6],
];

/// The address of the first switch. The others follow on the next buses.
const FIRST_SWITCH: PciAddress = PciAddress { domain: 0, bus: 0xf0, device: 0 };
/// The number of switches that all GPUs share.
const SWITCHES: u32 = 4;
/// The PCI ids of a switch of the third NVLink generation, packed as in NVML.
const SWITCH_ID: u32 = 0x22a3_10de;

impl Machine {
    /// Returns the closest common ancestor of two GPUs, given by index. Neighbours share a PCI switch, and more than
    /// two GPUs are divided into two halves, each attached to its own processor.
    pub fn common_ancestor(&self, one: usize, other: usize) -> Level {
        let (first, second) = (self.rank(one), self.rank(other));
        let count = self.devices.len();
        let half = |rank: usize| rank * 2 / count.max(1);
        if first == second {
            Level::Internal
        } else if count > 2 && half(first) != half(second) {
            Level::System
        } else if first / 2 != second / 2 {
            Level::Node
        } else if self.devices.get(one).is_some_and(|device| device.model().twin) {
            Level::Internal
        } else {
            Level::Single
        }
    }

    /// Returns the NVLinks of a GPU; empty if its model has none.
    pub fn nvlinks(&self, gpu: usize) -> Vec<NvLink> {
        let Some(device) = self.devices.get(gpu) else { return Vec::new() };
        let same = |end, active, count: u32| vec![NvLink { active, end }; count as usize];
        let mut links = match device.model().nvlinks {
            NvLinks::None => Vec::new(),
            NvLinks::Unbridged(count) => same(End::Hidden, false, count),
            NvLinks::HiddenSwitch(count) => same(End::Hidden, true, count),
            NvLinks::Switch(count) => (0..count).map(switched).collect(),
            NvLinks::Mesh => self.meshed(gpu),
        };
        // The states in the file override those of the first links.
        for (place, active) in device.readings.nvlinks.iter().enumerate() {
            match links.get_mut(place) {
                Some(link) => link.active = *active,
                None => links.push(NvLink { active: *active, end: End::Hidden }),
            }
        }
        links
    }

    /// Returns whether one GPU can access another's memory in this way.
    pub fn peer(&self, one: usize, other: usize, way: Way) -> Peer {
        let id = |gpu: usize| self.devices.get(gpu).and_then(Device::packed_id);
        if id(one) != id(other) {
            return Peer::GpuNotSupported;
        }
        match way {
            _ if self.are_linked(one, other) => Peer::Ok,
            Way::NvLink | Way::Atomics => Peer::NotSupported,
            Way::Any if self.common_ancestor(one, other) == Level::System => Peer::ChipsetNotSupported,
            Way::Any => Peer::Ok,
        }
    }

    /// Returns whether NVLinks connect two GPUs, directly or through switches.
    fn are_linked(&self, one: usize, other: usize) -> bool {
        let Some((from, to)) = self.devices.get(one).zip(self.devices.get(other)) else { return false };
        let active = |gpu| self.nvlinks(gpu).into_iter().filter(|link| link.active);
        match from.model().nvlinks {
            NvLinks::Switch(_) | NvLinks::HiddenSwitch(_) => active(one).next().and(active(other).next()).is_some(),
            NvLinks::Mesh => active(one).any(
                |link| matches!(link.end, End::Gpu(address, _) if PciAddress::parse(&to.pci_address) == Some(address)),
            ),
            NvLinks::None | NvLinks::Unbridged(_) => false,
        }
    }

    /// Returns the six links of one of eight GPUs. Links to missing GPUs are inactive.
    fn meshed(&self, gpu: usize) -> Vec<NvLink> {
        let id = |device: &Device| device.packed_id();
        let like = |device: &&Device| id(device) == self.devices.get(gpu).and_then(id);
        let place = self.devices.iter().take(gpu).filter(like).count();
        let end = |peer: &usize| {
            let peer = self.devices.iter().filter(like).nth(*peer)?;
            Some(End::Gpu(PciAddress::parse(&peer.pci_address)?, id(peer)?))
        };
        let links = MESH.get(place).into_iter().flatten();
        links
            .map(|peer| {
                end(peer).map_or(NvLink { active: false, end: End::Hidden }, |end| NvLink { active: true, end })
            })
            .collect()
    }

    /// Returns the position of a GPU in the order of PCI addresses.
    fn rank(&self, gpu: usize) -> usize {
        let address = |device: &Device| PciAddress::parse(&device.pci_address);
        let own = self.devices.get(gpu).and_then(address);
        self.devices.iter().filter(|other| address(other) < own).count()
    }
}

fn switched(link: u32) -> NvLink {
    let address = PciAddress { bus: FIRST_SWITCH.bus + link % SWITCHES, ..FIRST_SWITCH };
    NvLink { active: true, end: End::Switch(address, SWITCH_ID) }
}
