//! Sets the name under which programs load the shared library, and generates the functions of NVML that it does not answer.

use std::{env, fs, io, path::PathBuf};

const FUNCTIONS: &str = "functions.txt";

fn main() -> io::Result<()> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={FUNCTIONS}");
    let functions = fs::read_to_string(FUNCTIONS)?;
    let marked = |mark: &str| {
        let names = functions.lines().filter_map(|line| line.strip_prefix(mark)?.strip_prefix(' '));
        names.collect::<Vec<_>>().join(" ")
    };
    let stubs = format!("unanswered! {{ {} }}\nrefused! {{ {} }}\n", marked("?"), marked("-"));
    let folder = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(folder.join("stubs.rs"), stubs)
}
