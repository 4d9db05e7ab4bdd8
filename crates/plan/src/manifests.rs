//! The objects that carry out what is wanted: DaemonSets and their pods, pods that validate nodes, RuntimeClasses.

pub mod daemon_set;
pub mod device_plugin;
pub mod driver;
pub mod gates;
pub mod pod;
pub mod proxy;
pub mod runtime_class;
pub mod selinux;
pub mod toolkit;
pub mod unpacked;
pub mod validation;
