//! The manifests of the objects that bring about the desired state: DaemonSets and their pods, pods that validate
//! nodes or pull images, and RuntimeClasses.

pub mod daemon_set;
pub mod device_plugin;
pub mod driver;
pub mod gates;
pub mod one_off;
pub mod pod;
pub mod preflight;
pub mod proxy;
pub mod runtime_class;
pub mod selinux;
pub mod toolkit;
pub mod unpacked;
pub mod validation;
