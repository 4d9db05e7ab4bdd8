//! The step before a driver is installed that takes the GPUs from nouveau, the kernel's own driver for them.

use std::{io, time::Duration};

use nix::{
    errno::Errno,
    kmod::{DeleteModuleFlags, delete_module},
};
use tokio::time::sleep;

use crate::{gate::Answer, host::HostRoot};

const MODULE: &str = "/sys/module/nouveau";

/// Unloads nouveau, which lets go of all devices that are bound to it.
///
/// # Errors
/// When the kernel refuses, as it does while anything uses the module.
pub fn unload() -> io::Result<()> {
    Ok(delete_module(c"nouveau", DeleteModuleFlags::O_NONBLOCK)?)
}

/// Looks once, and unloads a nouveau that nothing uses. A fact that cannot be read is waited for.
pub fn step(host: &HostRoot, unload: impl Fn() -> io::Result<()>) -> Answer {
    if host.resolve(MODULE).is_err() {
        return Answer::Open("nouveau is not loaded".to_owned());
    }
    // Without a count the module is a part of the kernel, or the kernel unloads none.
    let users = match host.read_if_present(format!("{MODULE}/refcnt")) {
        Ok(Some(count)) if count == "0" => match unload() {
            Ok(()) => return Answer::Open("nouveau was loaded and unused, and has been unloaded".to_owned()),
            // Another process has unloaded it.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                return Answer::Open("nouveau is not loaded".to_owned());
            }
            Err(error) => format!("the kernel does not unload it: {error}"),
        },
        Ok(Some(count)) => format!("it is in use, {count} times, such as by a console or a display server"),
        Ok(None) => "this kernel cannot unload it".to_owned(),
        Err(error) => format!("its use count cannot be read: {error}"),
    };
    Answer::Waiting(format!(
        "NouveauLoaded: kernel module nouveau is loaded and {users}. Write \"blacklist nouveau\" and \"options nouveau \
         modeset=0\" to /etc/modprobe.d/nouveau.conf of the node, rebuild its initramfs and reboot it"
    ))
}

/// Looks every `interval` until nouveau is not loaded; says what it waits for each time that changes.
pub async fn unload_unused(host: &HostRoot, interval: Duration, mut say: impl FnMut(&str)) {
    let mut last = None;
    loop {
        let answer = step(host, unload);
        let (Answer::Open(text) | Answer::Waiting(text)) = &answer;
        if last.as_ref() != Some(&answer) {
            say(text);
        }
        if matches!(answer, Answer::Open(_)) {
            return;
        }
        last = Some(answer);
        sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs};

    use super::*;

    #[test]
    fn only_a_nouveau_that_nothing_uses_is_unloaded() {
        // Whether it is loaded, its count, what the kernel answers; whether the way is free, whether the kernel was asked, words.
        type Case<'a> = (bool, Option<&'a str>, Option<Errno>, bool, bool, &'a str);
        let cases: [Case<'_>; 7] = [
            (false, None, None, true, false, "is not loaded"),
            (true, Some("0"), None, true, true, "has been unloaded"),
            (true, Some("2"), None, false, false, "in use, 2 times"),
            (true, Some("-1"), None, false, false, "in use"),
            (true, None, None, false, false, "cannot unload it"),
            (true, Some("0"), Some(Errno::EWOULDBLOCK), false, true, "does not unload it"),
            (true, Some("0"), Some(Errno::ENOENT), true, true, "is not loaded"),
        ];
        for (loaded, count, errno, open, asked, words) in cases {
            let directory = tempfile::tempdir().unwrap();
            let module = directory.path().join("sys/module/nouveau");
            if loaded {
                fs::create_dir_all(&module).unwrap();
            }
            if let Some(count) = count {
                fs::write(module.join("refcnt"), format!("{count}\n")).unwrap();
            }
            let was_asked = Cell::new(false);
            let answer = step(&HostRoot::new(directory.path()), || {
                was_asked.set(true);
                errno.map_or(Ok(()), |errno| Err(errno.into()))
            });
            let (Answer::Open(text) | Answer::Waiting(text)) = &answer;
            assert!(text.contains(words), "{text}");
            assert_eq!((matches!(answer, Answer::Open(_)), was_asked.get()), (open, asked), "{text}");
            assert_eq!(text.contains("blacklist nouveau"), !open, "{text}");
        }
    }
}
