//! The options of `cargo xtask release`.

use super::files::ARCHITECTURES;

/// What to release.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Registry and path before `/gpu-operator` and `/nvml-probe`, from which nodes will pull the images.
    #[arg(long, default_value = "registry.example.com/gpu")]
    pub repository: String,
    /// The image in which the programs are built. By default it is made of Debian packages and the toolchain from rustup.
    #[arg(long, requires = "base")]
    pub builder: Option<String>,
    /// The base of the images. By default it is made of Debian packages.
    #[arg(long, requires = "builder")]
    pub base: Option<String>,
    /// An architecture of the images; may be repeated.
    #[arg(long = "architecture", value_parser = ARCHITECTURES, default_values = ARCHITECTURES)]
    pub architectures: Vec<String>,
    /// Only verify the files of an earlier run.
    #[arg(long)]
    pub check: bool,
}
