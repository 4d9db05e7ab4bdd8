//! NVIDIA's XIDs: the numbers of the errors that the driver reports, and what each means for a GPU.
//!
//! Meanings and actions follow NVIDIA's XID catalogue (as of October 2025). The ignored numbers are those that NVIDIA's
//! device plugin (0.20) ignores, and 69, which the catalogue treats alike. Where tools differ (GKE, EKS, DCGM, GPUd),
//! the default is the more lenient one: taking a GPU out of service wrongly costs more than a warning.

use gpu_operator_crd::health::Action;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// An error of an application. The GPU is not affected.
    Ignore,
    /// The GPU continues to work.
    Warn,
    /// The GPU must not be used until it is restarted.
    Fatal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Its default class.
    pub class: Class,
    /// The recommended action.
    pub action: Action,
    /// A short description.
    pub text: &'static str,
}

/// Returns the meaning of an XID. Unknown ones are warnings.
pub fn meaning(xid: u16) -> Meaning {
    use Action::{CheckHardware, None, RebootNode, ReplaceGpu, ResetGpu, RestartApplication};
    use Class::{Fatal, Ignore, Warn};

    let (class, action, text) = match xid {
        13 => (Ignore, RestartApplication, "exception in a program's kernel"),
        31 => (Ignore, RestartApplication, "a program's access to memory that is not its own"),
        32 => (Warn, RestartApplication, "corrupt commands from the host"),
        37 | 38 => (Warn, None, "error of the GPU's firmware"),
        39..=41 | 70..=72 | 75..=77 | 85 | 126..=135 => (Warn, RestartApplication, "error of a copy engine"),
        43 => (Ignore, RestartApplication, "a program's channel was reset"),
        44 => (Warn, None, "error of a context switch"),
        45 => (Ignore, RestartApplication, "a program's work was taken off the GPU"),
        46 => (Fatal, ResetGpu, "the GPU stopped processing"),
        48 => (Fatal, ResetGpu, "uncorrectable memory error"),
        54 => (Fatal, CheckHardware, "auxiliary power is not connected"),
        62 => (Fatal, ResetGpu, "a micro-controller of the GPU halted"),
        63 => (Warn, ResetGpu, "a memory row or page will be replaced at the next reset"),
        64 => (Fatal, ResetGpu, "a memory row or page could not be marked for replacement"),
        68 => (Ignore, RestartApplication, "exception of the video decoder"),
        69 => (Ignore, RestartApplication, "error of a program's graphics commands"),
        74 => (Fatal, ResetGpu, "error of an NVLink"),
        78 => (Warn, None, "a virtual GPU could not be started"),
        79 => (Fatal, RebootNode, "the GPU fell off the bus"),
        92 => (Warn, CheckHardware, "many correctable memory errors"),
        93 => (Warn, None, "the board's configuration memory wears out"),
        94 => (Warn, RestartApplication, "uncorrectable memory error that hit one program only"),
        95 => (Fatal, ResetGpu, "uncorrectable memory error that may have hit several programs"),
        109 => (Ignore, RestartApplication, "a program's context could not be switched in time"),
        110 => (Fatal, ResetGpu, "security fault"),
        119 => (Fatal, ResetGpu, "the GPU's system processor did not answer in time"),
        120 => (Fatal, ResetGpu, "error of the GPU's system processor"),
        121 => (Warn, None, "error of the link between chips"),
        122 | 123 => (Warn, None, "the power controller's memory cannot be reached"),
        136 => (Fatal, ResetGpu, "an NVLink could not be trained"),
        137 => (Warn, None, "privilege error of an NVLink"),
        140 => (Fatal, ResetGpu, "memory errors that were not recovered from"),
        141 => (Warn, None, "error of a fast path of CUDA"),
        142 => (Warn, None, "error of a video encoder"),
        143 => (Fatal, ResetGpu, "the GPU could not be initialised"),
        // Whether such an error is fatal depends on a sub-code, which NVML's event lacks; the recovery action that the
        // same drivers report includes it, and is evaluated separately.
        144..=150 => (Warn, None, "error of the fifth NVLink generation"),
        151 => (Fatal, RebootNode, "keys of confidential computing could not be changed"),
        // Refers to another XID; the action that it announces is read from NVML.
        154 => (Ignore, None, "the recovery action changed"),
        155 => (Fatal, ResetGpu, "software-defined error of an NVLink"),
        156 => (Fatal, ResetGpu, "a resource of the GPU is retired"),
        157 => (Warn, ReplaceGpu, "a resource of the GPU could not be retired"),
        158 => (Fatal, ResetGpu, "fatal timeout of the GPU"),
        152 | 153 | 159 => (Warn, None, "error of the host interface"),
        160 | 161 => (Warn, None, "a memory channel is retired"),
        162..=165 => (Warn, None, "event of the power smoothing circuit"),
        166 | 170 => (Warn, None, "encryption error of an NVLink"),
        167 => (Fatal, RebootNode, "fatal timeout of PCIe"),
        168 => (Warn, None, "the GPU has less memory, because of errors"),
        169 => (Fatal, ResetGpu, "the GPU's security processor halted"),
        171 | 172 => (Fatal, ResetGpu, "details of an uncorrectable memory error"),
        _ => (Warn, None, "not in this probe's catalogue"),
    };
    Meaning { class, action, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_errors_are_ignored() {
        for xid in [13, 31, 43, 45, 68, 69, 109, 154] {
            assert_eq!(meaning(xid).class, Class::Ignore, "{xid}");
        }
    }

    #[test]
    fn every_fatal_xid_has_an_action() {
        for xid in 0..=1023 {
            let meaning = meaning(xid);
            assert!(meaning.class != Class::Fatal || meaning.action > Action::RestartApplication, "{xid}");
        }
    }

    #[test]
    fn xids_that_several_tools_consider_fatal_are_fatal() {
        for xid in [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158] {
            assert_eq!(meaning(xid).class, Class::Fatal, "{xid}");
        }
    }
}
