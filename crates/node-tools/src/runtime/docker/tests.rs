use std::collections::BTreeMap;

use super::*;

fn info_of(version: &str) -> Info {
    Info { default_runtime: "runc".into(), runtimes: BTreeMap::new(), server_version: version.into() }
}

#[test]
fn flags_hinder_by_key_and_release() {
    const NVIDIA: &str = "--add-runtime=nvidia=/usr/bin/nvidia-container-runtime";
    const KATA: &str = "--add-runtime=kata=/kata";
    const RUNC: &str = "--default-runtime=runc";
    const BY_KATA: &str = "--default-runtime=kata";
    for (version, flags, with_default, without) in [
        // Any runtime is the key of all.
        ("18.06.3-ce", &[NVIDIA][..], &[NVIDIA][..], &[NVIDIA][..]),
        ("17.03.2-ce", &[KATA], &[KATA], &[KATA]),
        ("18.06.1", &[KATA, RUNC], &[KATA, RUNC], &[KATA]),
        ("", &[NVIDIA], &[NVIDIA], &[NVIDIA]),
        ("dev", &[NVIDIA], &[NVIDIA], &[NVIDIA]),
        // Later releases merge the runtimes, and still refuse a second default.
        ("18.09.0", &[NVIDIA, KATA], &[], &[]),
        ("20.10.24+dfsg1", &[NVIDIA], &[], &[]),
        ("29.1.3", &[NVIDIA, RUNC], &[RUNC], &[]),
        // The default would be NVIDIA's runtime after all, or be dropped.
        ("20.10.24", &["--default-runtime=nvidia"], &["--default-runtime=nvidia"], &["--default-runtime=nvidia"]),
        ("20.10.24", &[KATA, BY_KATA], &[BY_KATA], &[BY_KATA]),
        // It is in the file.
        ("20.10.24", &[BY_KATA], &[BY_KATA], &[]),
    ] {
        let line = format!("dockerd\0{}\0", flags.join("\0"));
        let (parsed, info) = (Flags::parse(line.as_bytes()), info_of(version));
        assert_eq!(hindering(&parsed, &info, "nvidia", true), with_default, "{version} {flags:?}");
        assert_eq!(hindering(&parsed, &info, "nvidia", false), without, "{version} {flags:?}");
    }
}

#[test]
fn messages_name_the_flags_and_the_way_out() {
    let flags = |flags: &[&str], by_default| DockerError::Flags {
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        file: "/etc/docker/daemon.json".into(),
        by_default,
    };
    assert_eq!(
        flags(&["--default-runtime=runc"], true).to_string(),
        "RuntimeConfigRejected: dockerd was started with --default-runtime=runc, with which it does not load NVIDIA's runtime from /etc/docker/daemon.json, so the file does not contain it; remove the flag from dockerd's unit (systemctl cat docker) and restart Docker, or write toolkit.setAsDefault: false"
    );
    let both = flags(&["--add-runtime=a=/a", "--default-runtime=a"], false).to_string();
    assert!(both.contains("with --add-runtime=a=/a and --default-runtime=a, "), "{both}");
    assert!(
        both.ends_with("; remove the flags from dockerd's unit (systemctl cat docker) and restart Docker"),
        "{both}"
    );
}
