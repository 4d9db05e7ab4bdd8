//! The toolchain of a release, with the libraries of all platforms. It is not in rustup's usual folder, which belongs to the user.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use harness::{
    cargo,
    paths::Paths,
    process::{output, run_logged},
    progress::Step,
};

const TARGETS: &str = "x86_64-unknown-linux-gnu,aarch64-unknown-linux-gnu,x86_64-unknown-linux-musl,aarch64-unknown-linux-musl,x86_64-pc-windows-gnu";

pub(super) struct Toolchain {
    pub folder: PathBuf,
}

impl Toolchain {
    /// Installs the version of rust-toolchain.toml if it is missing.
    pub fn installed(paths: &Paths) -> Result<Self> {
        let text =
            std::fs::read_to_string(paths.root.join("rust-toolchain.toml")).context("reading rust-toolchain.toml")?;
        let channel = text.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
        let channel = channel.context("rust-toolchain.toml has no channel")?;
        let home = paths.base.join("rustup");
        let step = Step::start(format!("installing Rust {channel}"));
        let rustup = || {
            let mut command = Command::new("rustup");
            command.env("RUSTUP_HOME", &home).env_remove("RUSTUP_TOOLCHAIN");
            command
        };
        let mut install = rustup();
        install.args(["toolchain", "install", channel, "--profile=minimal", "--no-self-update", "--target", TARGETS]);
        run_logged(&mut install, &paths.log("release-toolchain"), || step.tick("downloading"))?;
        let mut rustc = rustup();
        let rustc = output(rustc.args(["which", "rustc", "--toolchain", channel]))?;
        step.done();
        let folder = Path::new(rustc.trim()).ancestors().nth(2).context("rustup printed no path of rustc")?;
        Ok(Self { folder: folder.to_path_buf() })
    }

    /// Returns its cargo, as a command for the checkout.
    pub fn cargo(&self, paths: &Paths) -> Command {
        let mut cargo = cargo::in_checkout(Command::new(self.folder.join("bin/cargo")), &paths.root);
        cargo.env("RUSTC", self.folder.join("bin/rustc"));
        // `cargo run` names the folder of its own toolchain there, whose libraries rustc would load: it would then look for the libraries of
        // the platforms in that toolchain.
        cargo.env_remove("LD_LIBRARY_PATH");
        cargo
    }
}
