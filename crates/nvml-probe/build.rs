//! Links the C library's companions into the probe.

use std::env;

/// The parts of the C library, in addition to libc itself, that libnvidia-ml.so needs, by the names in its ELF header.
const COMPANIONS: [&str; 4] = ["libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// The NVML child loads libnvidia-ml.so after changing root into the driver's root. The library's dependencies are looked
/// up first among the libraries that are already loaded, and otherwise in that root, whose C library has another version:
/// its libm or libpthread would not match the libc of this process. The probe itself therefore loads all of them. It uses
/// none of them, so the linker must be prevented from dropping them.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--no-as-needed");
        for companion in COMPANIONS {
            println!("cargo::rustc-link-arg-bins=-l:{companion}");
        }
        println!("cargo::rustc-link-arg-bins=-Wl,--as-needed");
    }
}
