//! Reports of unanswered calls.

use std::os::unix::net::UnixDatagram;

use nvml_wrapper::error::NvmlError;

use super::driver_root::{DriverRoot, init, install, serve};

#[test]
fn an_unanswered_function_is_reported_once_with_the_model() {
    let root = DriverRoot::with_gpus(&[]);
    let nvml = init(&install(&root)).unwrap();
    serve(&root, &[(0x1eb8, 1)], "");
    let gpu = nvml.device_by_index(0).unwrap();
    let call = || assert!(matches!(gpu.vbios_version(), Err(NvmlError::NotSupported)));
    call();

    let listener = UnixDatagram::bind(root.path("etc/standin/unanswered.sock")).unwrap();
    // A report has been sent when the call returns.
    listener.set_nonblocking(true).unwrap();
    let received = || {
        let mut text = [0; 200];
        listener.recv(&mut text).ok().map(|length| String::from_utf8_lossy(&text[..length]).into_owned())
    };
    call();
    assert_eq!(received().as_deref(), Some("nvmlDeviceGetVbiosVersion 1eb8"));
    call();
    // The answers that there are no virtual GPUs and no NVLinks are not reported.
    assert!(gpu.active_vgpus().is_err());
    assert!(gpu.link_wrapper_for(0).is_active().is_err());
    assert!(nvml.excluded_device_count().is_err());
    assert_eq!(received().as_deref(), Some("nvmlGetExcludedDeviceCount -"));
    assert_eq!(received(), None);
}
