//! Docker's daemon: its process, and the runtimes on its command line, which its configuration file does not show.

use crate::{observe::processes, root::HostRoot};

const NAME: &str = "dockerd";
/// Without all of these a host has no Docker, and its processes are not listed.
const OF_DOCKER: [&str; 3] = ["/etc/docker", "/run/docker.sock", "/usr/bin/dockerd"];
/// The most that is read of a command line.
pub const MAX_COMMAND_LINE: u64 = 64 * 1024;
/// The most runtimes that are read from one.
const MAX_RUNTIMES: usize = 64;

/// The flags of `dockerd` that configure runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Name and program of each `--add-runtime`.
    pub runtimes: Vec<(String, String)>,
    /// Of `--default-runtime`.
    pub default: Option<String>,
    /// Of `--config-file`.
    pub config_file: Option<String>,
}

impl Flags {
    /// Parses a command line as in `/proc/PID/cmdline`: a flag's value follows `=`, or is the next argument.
    pub fn parse(command_line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(command_line);
        // The first argument is the program, and each is ended by a zero byte.
        let text = text.strip_suffix('\0').unwrap_or(&text);
        let mut arguments = text.split('\0').skip(1).take_while(|argument| *argument != "--");
        let mut flags = Self::default();
        while let Some(argument) = arguments.next() {
            let (flag, value) = argument.split_once('=').map_or((argument, None), |(flag, value)| (flag, Some(value)));
            if !["--add-runtime", "--default-runtime", "--config-file"].contains(&flag) {
                continue;
            }
            let Some(value) = value.or_else(|| arguments.next()) else { break };
            match flag {
                "--default-runtime" => flags.default = Some(value.to_owned()),
                "--config-file" => flags.config_file = Some(value.to_owned()),
                _ => flags.runtimes.extend(runtime(value)),
            }
        }
        flags.runtimes.truncate(MAX_RUNTIMES);
        flags
    }

    /// Returns the flags of the host's daemon; none if it does not run. A container's process of that name is not it: the host's first process
    /// has started the host's, as root.
    pub fn of_host(host: &HostRoot) -> Self {
        if !OF_DOCKER.iter().any(|path| host.metadata(path).is_ok()) {
            return Self::default();
        }
        let all = processes::pids(host).into_iter().flatten();
        let daemon = all.filter(|pid| is_daemon(host, *pid)).find_map(|pid| {
            let command_line = host.bytes(format!("/proc/{pid}/cmdline"), MAX_COMMAND_LINE);
            // One that is ending has none.
            command_line.ok().filter(|line| !line.is_empty())
        });
        daemon.map(|line| Self::parse(&line)).unwrap_or_default()
    }
}

/// Docker ignores the case of a runtime's name.
fn runtime(value: &str) -> Option<(String, String)> {
    let (name, program) = value.split_once('=')?;
    Some((name.trim().to_lowercase(), program.trim().to_owned()))
}

fn is_daemon(host: &HostRoot, pid: u32) -> bool {
    let read = |file: &str| host.read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    if read("comm") != NAME {
        return false;
    }
    let status = read("status");
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next());
    field("PPid:") == Some("1") && field("Uid:") == Some("0")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn line(arguments: &[&str]) -> Vec<u8> {
        arguments.iter().flat_map(|argument| argument.bytes().chain([0])).collect()
    }

    fn flags(runtimes: &[(&str, &str)], default: Option<&str>) -> Flags {
        let runtimes = runtimes.iter().map(|(name, program)| ((*name).to_owned(), (*program).to_owned())).collect();
        Flags { runtimes, default: default.map(str::to_owned), config_file: None }
    }

    #[test]
    fn a_value_follows_its_flag_in_both_forms() {
        const N: &str = "/usr/bin/nvidia-container-runtime";
        for (arguments, wanted) in [
            (
                &["/usr/bin/dockerd", "--host=fd://", "--add-runtime=nvidia=/usr/bin/nvidia-container-runtime"][..],
                flags(&[("nvidia", N)], None),
            ),
            (&["dockerd", "-H", "fd://", "--default-runtime=runc", "--log-driver=journald"], flags(&[], Some("runc"))),
            (
                &["dockerd", "--add-runtime", "Kata= /kata", "--default-runtime", "kata", "--add-runtime", "x=/a=b"],
                flags(&[("kata", "/kata"), ("x", "/a=b")], Some("kata")),
            ),
            (&["--default-runtime=program", "-D"], flags(&[], None)),
            (&["dockerd", "--add-runtimes=a=/b", "--default-runtime"], flags(&[], None)),
            (&["dockerd", "--add-runtime=no-program", "--", "--default-runtime=a"], flags(&[], None)),
            (&[], flags(&[], None)),
        ] {
            assert_eq!(Flags::parse(&line(arguments)), wanted, "{arguments:?}");
        }
        let file = Flags::parse(&line(&["dockerd", "--config-file", "/srv/docker.json"])).config_file;
        assert_eq!(file.as_deref(), Some("/srv/docker.json"));
    }

    #[test]
    fn only_the_hosts_daemon_is_believed() {
        for (path, name, parent, user, is_found) in [
            ("etc/docker/daemon.json", "dockerd", 1, 0, true),
            ("run/docker.sock", "dockerd", 1, 0, true),
            // In a container, of a user, another program.
            ("etc/docker/daemon.json", "dockerd", 812, 0, false),
            ("etc/docker/daemon.json", "dockerd", 1, 1000, false),
            ("etc/docker/daemon.json", "docker", 1, 0, false),
            // No Docker on the host.
            ("etc/hosts", "dockerd", 1, 0, false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let status = format!("Name:\t{name}\nPid:\t33\nPPid:\t{parent}\nUid:\t{user}\t0\t0\t0\n");
            let command_line = String::from_utf8(line(&["dockerd", "--default-runtime=nvidia"])).unwrap();
            for (path, text) in [
                (path, ""),
                ("proc/version", ""),
                ("proc/12/comm", "kubelet\n"),
                ("proc/33/comm", &format!("{name}\n")),
                ("proc/33/status", &status),
                ("proc/33/cmdline", &command_line),
            ] {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let found = Flags::of_host(&HostRoot::new(root.path()));
            assert_eq!(found, flags(&[], is_found.then_some("nvidia")), "{path} {name} {parent} {user}");
        }
    }
}
