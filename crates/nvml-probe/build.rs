//! Links the C library's companions into the probe.

use std::env;

/// What libnvidia-ml.so needs of the C library beside libc itself, by the names that its ELF header carries.
const COMPANIONS: [&str; 4] = ["libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// The NVML child loads libnvidia-ml.so after changing root into the driver's. What the library needs is then looked
/// up among what is loaded already, and only else in that root, whose C library is of another version: its libm or
/// libpthread would not fit the libc in this process. So all of them are made to load with the probe itself, although
/// it uses none (which is why the linker has to be told to keep them).
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
