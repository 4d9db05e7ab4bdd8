//! Only one `cargo xtask` at a time works on a checkout's cluster.

use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::paths::Paths;

/// Held for as long as a command works on the cluster. The kernel lets go of it however the command ends.
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock, or says who has it.
    pub(crate) fn take(paths: &Paths, command: &str) -> Result<Self> {
        fs::create_dir_all(&paths.base)?;
        let path = paths.base.join("lock");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                file.set_len(0)?;
                file.rewind()?;
                write!(*file, "`cargo xtask {command}`, process {}", std::process::id())?;
                Ok(Self { _file: file })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder)?;
                bail!("{holder} is at work on this checkout's cluster: wait for it, or end it with Ctrl-C there")
            }
            Err((_, error)) => Err(error).context("locking target/e2e/lock"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_command_is_told_who_is_at_work() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { root: dir.path().into(), base: dir.path().into() };
        let first = Lock::take(&paths, "demo").unwrap();
        let error = Lock::take(&paths, "up").err().unwrap().to_string();
        assert!(error.contains("`cargo xtask demo`"), "{error}");
        drop(first);
        assert!(Lock::take(&paths, "up").is_ok());
    }
}
