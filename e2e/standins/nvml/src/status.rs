//! NVML's return codes.

use std::ffi::CStr;

/// The return code of a call, with the numbers of NVML's `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The call succeeded.
    Success = 0,
    /// `nvmlInit` was not called, or `nvmlShutdown` was.
    Uninitialized = 1,
    /// A null pointer, an index out of range, or an unknown handle.
    InvalidArgument = 2,
    /// The GPU does not support the call.
    NotSupported = 3,
    /// The process may not open the driver's control device.
    NoPermission = 4,
    /// No object has the requested name.
    NotFound = 6,
    /// The caller's buffer is too small.
    InsufficientSize = 7,
    /// The GPU lacks external power.
    InsufficientPower = 8,
    /// No kernel module is loaded.
    DriverNotLoaded = 9,
    /// No event occurred before the timeout.
    Timeout = 10,
    /// The kernel gives the GPU no interrupts.
    IrqIssue = 11,
    /// The board's configuration memory is corrupt.
    CorruptedInforom = 14,
    /// The GPU is no longer accessible.
    GpuIsLost = 15,
    /// The GPU must be reset before it answers again.
    ResetRequired = 16,
    /// The library belongs to another driver version than the loaded kernel module.
    LibRmVersionMismatch = 18,
    /// The object to be changed is in use.
    InUse = 19,
    /// There is not enough free capacity.
    InsufficientResources = 23,
    /// The caller's structure is of a version that this library does not know.
    ArgumentVersionMismatch = 25,
    /// No GPU has this index.
    GpuNotFound = 28,
    /// Anything else, here: a broken stand-in file.
    Unknown = 999,
}

impl Status {
    /// Returns the text that `nvmlErrorString` returns for this code.
    pub fn text(self) -> &'static CStr {
        match self {
            Self::Success => c"Success",
            Self::Uninitialized => c"Uninitialized",
            Self::InvalidArgument => c"Invalid Argument",
            Self::NotSupported => c"Not Supported",
            Self::NoPermission => c"Insufficient Permissions",
            Self::NotFound => c"Not Found",
            Self::InsufficientSize => c"Insufficient Size",
            Self::InsufficientPower => c"Insufficient External Power",
            Self::DriverNotLoaded => c"Driver Not Loaded",
            Self::Timeout => c"Timeout",
            Self::IrqIssue => c"Interrupt Request Issue",
            Self::CorruptedInforom => c"Corrupted infoROM",
            Self::GpuIsLost => c"GPU is lost",
            Self::ResetRequired => c"GPU requires reset",
            Self::LibRmVersionMismatch => c"Driver/library version mismatch",
            Self::InUse => c"In use by another client",
            Self::InsufficientResources => c"Insufficient Resources",
            Self::ArgumentVersionMismatch => c"Argument version mismatch",
            Self::GpuNotFound => c"GPU not found",
            Self::Unknown => c"Unknown Error",
        }
    }

    /// Returns the code with this number; [`Status::Unknown`] for numbers that the stand-in never returns.
    pub fn from_code(code: u32) -> Self {
        [
            Self::Success,
            Self::Uninitialized,
            Self::InvalidArgument,
            Self::NotSupported,
            Self::NoPermission,
            Self::NotFound,
            Self::InsufficientSize,
            Self::InsufficientPower,
            Self::DriverNotLoaded,
            Self::Timeout,
            Self::IrqIssue,
            Self::CorruptedInforom,
            Self::GpuIsLost,
            Self::ResetRequired,
            Self::LibRmVersionMismatch,
            Self::InUse,
            Self::InsufficientResources,
            Self::ArgumentVersionMismatch,
            Self::GpuNotFound,
        ]
        .into_iter()
        .find(|status| *status as u32 == code)
        .unwrap_or(Self::Unknown)
    }
}
