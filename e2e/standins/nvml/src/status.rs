//! NVML's return codes.

use std::ffi::CStr;

/// What a call of the library answers; the numbers are those of NVML's `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The call did what it is for.
    Success = 0,
    /// `nvmlInit` was not called, or `nvmlShutdown` was.
    Uninitialized = 1,
    /// A null pointer, an index out of range, or a handle that this library never gave out.
    InvalidArgument = 2,
    /// The GPU cannot answer this question.
    NotSupported = 3,
    /// The process may not open the driver's control device.
    NoPermission = 4,
    /// Nothing has the name that was asked for.
    NotFound = 6,
    /// The caller's buffer is too small.
    InsufficientSize = 7,
    /// The GPU lacks external power.
    InsufficientPower = 8,
    /// No kernel module is loaded.
    DriverNotLoaded = 9,
    /// No event came in time.
    Timeout = 10,
    /// The kernel gives the GPU no interrupts.
    IrqIssue = 11,
    /// The board's configuration memory is corrupt.
    CorruptedInforom = 14,
    /// The GPU was there once and is not any more.
    GpuIsLost = 15,
    /// The GPU answers nothing until it is reset.
    ResetRequired = 16,
    /// The library belongs to another driver version than the loaded kernel module.
    LibRmVersionMismatch = 18,
    /// Somebody uses what is to be changed.
    InUse = 19,
    /// There is no room.
    InsufficientResources = 23,
    /// The caller's structure is of a version that this library does not know.
    ArgumentVersionMismatch = 25,
    /// No GPU is at that place.
    GpuNotFound = 28,
    /// Anything else, here: a broken stand-in file.
    Unknown = 999,
}

impl Status {
    /// The text that `nvmlErrorString` gives for this code.
    #[must_use]
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

    /// The code with this number; [`Status::Unknown`] for numbers that the stand-in never answers.
    #[must_use]
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
