use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::symlink},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::{Resolver, find_by, read_regular, *};

fn root() -> (tempfile::TempDir, HostRoot) {
    let directory = tempfile::tempdir().unwrap();
    let root = HostRoot::new(directory.path());
    (directory, root)
}

#[test]
fn an_absolute_link_refers_to_the_hosts_path() {
    let (directory, root) = root();
    fs::create_dir(directory.path().join("etc")).unwrap();
    fs::write(directory.path().join("etc/hostname"), "the host's\n").unwrap();
    symlink("/etc/hostname", directory.path().join("link")).unwrap();
    assert_eq!(root.read("/link").unwrap(), "the host's");
}

#[test]
fn parent_components_never_leave_the_root() {
    let (directory, root) = root();
    fs::write(directory.path().join("secret"), "inside").unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    symlink("../../../../../../../secret", directory.path().join("sub/link")).unwrap();
    assert_eq!(root.read("sub/link").unwrap(), "inside");
    assert_eq!(root.read("../../../secret").unwrap(), "inside");
}

#[test]
fn a_linked_directory_is_resolved_inside_the_root() {
    let (directory, root) = root();
    fs::create_dir_all(directory.path().join("usr/lib64")).unwrap();
    fs::write(directory.path().join("usr/lib64/file"), "x").unwrap();
    symlink("/usr/lib64", directory.path().join("lib64")).unwrap();
    assert_eq!(root.resolve("/lib64/file").unwrap(), directory.path().join("usr/lib64/file"));
    assert_eq!(root.names("/lib64").unwrap(), ["file"]);
}

#[test]
fn a_loop_of_links_is_an_error() {
    let (directory, root) = root();
    symlink("b", directory.path().join("a")).unwrap();
    symlink("a", directory.path().join("b")).unwrap();
    assert!(root.resolve("a").is_err());
}

#[test]
fn missing_files_are_absent() {
    let (_directory, root) = root();
    assert_eq!(root.read_if_present("no/such").unwrap(), None);
    assert!(root.names("no/such").unwrap().is_empty());
}

/// Runs what might block indefinitely, and fails then.
fn soon<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || drop(sender.send(what())));
    answer.recv_timeout(Duration::from_secs(30)).expect("it blocks")
}

#[test]
fn a_fifo_is_an_error_and_does_not_block() {
    let (directory, root) = root();
    mkfifo(&directory.path().join("fifo"), Mode::S_IRWXU).unwrap();
    for error in [
        soon({
            let root = root.clone();
            move || root.read("fifo").unwrap_err()
        }),
        soon(move || root.bytes("fifo", 1).unwrap_err()),
    ] {
        assert_eq!(error.to_string(), "a FIFO instead of a regular file");
    }
}

fn text(found: &OwnedFd) -> String {
    let mut text = String::new();
    read_regular(found).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn old_and_new_kernels_resolve_the_same_inside_the_root() {
    let (directory, _) = root();
    let at = |path: &str| directory.path().join(path);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/file"), "in a").unwrap();
    fs::write(at("file"), "in the root").unwrap();
    for (target, link) in [
        ("/file", "a/b/absolute"),
        ("../../../../file", "a/b/above"),
        ("../file", "a/b/beside"),
        ("/a/b", "folder"),
        ("loop", "loop"),
        ("/proc/self/fd/0", "outside"),
    ] {
        symlink(target, at(link)).unwrap();
    }
    for resolver in [Resolver::Kernel, Resolver::Walk] {
        let find = |path: &str| find_by(resolver, directory.path(), Path::new(path));
        for (path, expected) in [
            ("a/b/absolute", "in the root"),
            ("/a/b/above", "in the root"),
            ("../../a/b/beside", "in a"),
            ("folder/beside", "in a"),
            ("folder/../file", "in a"),
        ] {
            assert_eq!(text(&find(path).unwrap()), expected, "{resolver:?}: {path}");
        }
        assert!(File::from(find("").unwrap()).metadata().unwrap().is_dir(), "{resolver:?}");
        for (path, kind) in [("none", io::ErrorKind::NotFound), ("outside", io::ErrorKind::NotFound)] {
            assert_eq!(find(path).unwrap_err().kind(), kind, "{resolver:?}: {path}");
        }
        assert_eq!(find("file/x").unwrap_err().kind(), io::ErrorKind::NotADirectory, "{resolver:?}");
        assert!(find("loop").is_err(), "{resolver:?}");
    }
}

#[test]
fn a_folder_that_is_replaced_after_its_check_is_not_entered() {
    let (directory, _) = root();
    let at = |path: &str| directory.path().join(path);
    for (folder, content) in [("driver", "checked"), ("tmp", "malicious")] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("library"), content).unwrap();
    }
    let swap = |path: &Path, _: &Stat| {
        if path == Path::new("/driver") {
            fs::rename(at("driver"), at("before"))?;
            symlink("/tmp", at("driver"))?;
        }
        Ok(())
    };
    let found = walk(open_root(directory.path()).unwrap(), Path::new("driver/library"), swap).unwrap();
    assert_eq!(text(&found.file), "checked");
    assert_eq!(fs::read_to_string(at("tmp/library")).unwrap(), "malicious");
}
