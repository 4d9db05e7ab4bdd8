//! Writes `config/crd/*.yaml`, or writes these files to the directory given as the only argument.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = env::args_os().nth(1).map_or_else(|| PathBuf::from("config/crd"), PathBuf::from);
    fs::create_dir_all(&dir)?;
    for (file, crd) in gpu_operator_crd::crds() {
        fs::write(dir.join(file), gpu_operator_crd::crd_yaml(&crd)?)?;
    }
    Ok(())
}
