//! Processes of the probe.

use std::{fs, process::Child};

use nix::sys::signal::Signal;

/// A process that is killed at the end of the test, however that ends.
pub struct Process(pub Child);

impl Process {
    /// Returns once the process handles SIGTERM; before that, the signal would simply kill it.
    pub fn listens(&mut self) {
        let terminate = 1 << (Signal::SIGTERM as i32 - 1);
        let caught = |status: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        while caught(&fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap()) & terminate == 0 {
            assert_eq!(self.0.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails only if the process has already exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
