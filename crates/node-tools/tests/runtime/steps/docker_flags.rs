//! Docker with flags that exclude keys of its file.

use super::*;

const FLAG: &str = "--add-runtime=nvidia=/usr/bin/nvidia-container-runtime";

/// The key that is a flag, as this release rejects it, the flags, and whether NVIDIA's runtime becomes the default.
const REJECTED: [(&str, &str, &[&str], bool); 4] = [
    ("runtimes", "18.06.3-ce", &["--host=fd://", FLAG], false),
    ("default-runtime", "20.10.24", &["-H", "fd://", "--default-runtime", "runc"], true),
    ("runtimes", "17.12.1-ce", &["--add-runtime", "kata=/kata"], true),
    ("runtimes default-runtime", "", &[FLAG, "--default-runtime=runc"], true),
];

const FOUND: &str =
    "{\n  \"exec-opts\": [\"native.cgroupdriver=systemd\"],\n  \"registry-mirrors\": [\"https://m\"] }\n";

#[tokio::test]
async fn nothing_is_added_to_a_file_that_flags_conflict_with() {
    for (keys, version, flags, default) in REJECTED {
        let node = Node::with_flags(Some(FOUND), keys, version);
        let setup = node.setup_with(default, flags);
        // With the entries that an earlier installer has left, too.
        for installed in [false, true] {
            if installed {
                // Its pod had saved the file.
                steps::snapshot(&setup).unwrap();
                node.install(default);
            }
            steps::snapshot(&setup).unwrap();
            let error = steps::check_flags(&setup).await.unwrap_err().to_string();
            assert!(error.starts_with("RuntimeConfigRejected: dockerd was started with --"), "{error}");
            assert!(error.contains(flags.last().unwrap().trim_start_matches("--add-runtime")), "{error}");
            assert_eq!(node.text().as_deref(), Some(FOUND), "{flags:?}");
            steps::revert(&setup).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_rejected_file_is_restored_by_the_next_start() {
    for (keys, version, flags, default) in REJECTED {
        let mut node = Node::with_flags(Some(FOUND), keys, version);
        let mut setup = node.setup_with(default, flags);
        steps::snapshot(&setup).unwrap();
        node.install(default);
        // Killed before Docker's answer.
        let killed = tokio::time::timeout(Duration::from_millis(100), steps::apply(&setup)).await;
        assert!(killed.is_err(), "{killed:?}");
        assert!(node.text().unwrap().contains("nvidia"));
        let in_next_pod = version.is_empty();
        let error = if in_next_pod {
            steps::snapshot(&setup).unwrap();
            steps::check_flags(&setup).await.unwrap_err().to_string()
        } else {
            setup.limits.deadline = Duration::from_millis(100);
            steps::apply(&setup).await.unwrap_err().to_string()
        };
        assert!(error.starts_with("RuntimeConfigRejected: "), "{error}");
        let flag = flags.last().unwrap().rsplit_once('=').map_or("--default-runtime=runc", |(_, program)| program);
        assert!(error.contains("; dockerd was started with --") || in_next_pod, "{error}");
        assert!(error.contains(flag), "{error}");
        assert_eq!(node.text().as_deref(), Some(FOUND), "{flags:?}");
        assert_eq!(node.says(), "loaded nothing");
        if !in_next_pod {
            assert_eq!(steps::apply(&setup).await.unwrap_err().to_string(), error, "kubelet retries");
        }
        assert_eq!(node.default().await, "runc");
    }
}

#[tokio::test]
async fn releases_that_merge_runtimes_load_the_one_of_the_file() {
    for (flags, default) in [
        (&[FLAG][..], true),
        (&[FLAG, "--add-runtime", "kata=/kata"], true),
        (&[FLAG, "--default-runtime=runc"], false),
    ] {
        let mut node = Node::with_flags(Some(FOUND), "", "20.10.24+dfsg1");
        let setup = node.setup_with(default, flags);
        steps::snapshot(&setup).unwrap();
        steps::check_flags(&setup).await.unwrap();
        node.install(default);
        steps::apply(&setup).await.unwrap();
        assert_eq!(node.says(), "loaded true");
        steps::revert(&setup).await.unwrap();
        assert_eq!(node.text().as_deref(), Some(FOUND));
    }
}

#[tokio::test]
async fn a_file_that_docker_does_not_read_is_restored() {
    let node = Node::new(None);
    let mut setup = node.setup_with(false, &["--config-file=/srv/docker.json"]);
    let other = node.folder.path().join("other.json");
    setup.files = config_files(RuntimeKind::Docker, Some(&other), None);
    setup.limits.deadline = Duration::from_millis(100);
    steps::snapshot(&setup).unwrap();
    steps::check_flags(&setup).await.unwrap();
    fs::write(&other, r#"{"runtimes": {"nvidia": {"path": "/opt/toolkit/nvidia-container-runtime"}}}"#).unwrap();
    let error = steps::apply(&setup).await.unwrap_err().to_string();
    assert!(error.contains("Docker has no runtime nvidia with a program in /opt/toolkit; dockerd was started with --config-file=/srv/docker.json"), "{error}");
    assert!(!other.exists());
}
