//! The manifests of DaemonSets and their pods, and of pods that validate nodes or pull images.

pub mod daemon_set;
pub mod device_plugin;
pub mod driver;
pub mod one_off;
pub mod pod;
pub mod toolkit;
