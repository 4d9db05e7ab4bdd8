//! The lock that lets only one `cargo xtask` command at a time work on a checkout's cluster.

use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::paths::Paths;

/// The lock, held while a command works on the cluster. The kernel releases it however the command ends.
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock. If another command holds it, the error names that command.
    pub fn take(paths: &Paths, command: &str) -> Result<Self> {
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
                bail!("{holder} is using this checkout's cluster: wait for it to finish, or stop it with Ctrl-C")
            }
            Err((_, error)) => Err(error).context("locking target/e2e/lock"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_second_command_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = || dir.path().into();
        let paths = Paths { root: path(), base: path(), state: path() };
        let first = Lock::take(&paths, "demo").unwrap();
        let error = Lock::take(&paths, "up").err().unwrap().to_string();
        assert!(error.contains("`cargo xtask demo`"), "{error}");
        drop(first);
        assert!(Lock::take(&paths, "up").is_ok());
    }
}
