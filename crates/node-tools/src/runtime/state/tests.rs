#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_new_file_gets_the_attributes_of_the_file_that_it_replaces() {
    // On a file system with extended attributes, which the one for temporary files may lack.
    let beside = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    fs::write(&new, "new").unwrap();
    copy_attributes(&new, &old, LABEL, 0o604).unwrap();
    assert_eq!(mode(&new), 0o604, "there is no old file");

    fs::write(&old, "old").unwrap();
    set_mode(&old, 0o640);
    // Writing the SELinux label itself requires a system with SELinux, or root.
    copy_attributes(&new, &old, "user.label", 0o604).unwrap();
    setxattr(&old, "user.label", b"system_u:object_r:etc_t:s0\0", XattrFlags::empty()).unwrap();
    copy_attributes(&new, &old, "user.label", 0o604).unwrap();
    assert_eq!(mode(&new), 0o640);
    let mut label = Vec::with_capacity(100);
    getxattr(&new, "user.label", rustix::buffer::spare_capacity(&mut label)).unwrap();
    assert_eq!(label, b"system_u:object_r:etc_t:s0\0");
}

#[test]
fn only_root_may_read_a_new_file_from_its_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (path, new) = (folder.path().join("record.json"), folder.path().join("record.gpu-operator.new"));
    // A write was interrupted, and another user has the file open.
    fs::write(&new, "").unwrap();
    set_mode(&new, 0o666);
    let opened_before = File::open(&new).unwrap();
    let check = |written: &Path| {
        assert_eq!((mode(written), fs::read_to_string(written).unwrap().as_str()), (0o600, "password"));
        Ok(())
    };
    write_beside(&path, "password", check).unwrap();
    assert_eq!(opened_before.metadata().unwrap().len(), 0, "the other user's file has the content");
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn a_record_and_its_folder_of_an_earlier_version_are_narrowed() {
    let folder = tempfile::tempdir().unwrap();
    let (private, shared) = (folder.path().join("a/private"), folder.path().join("shared"));
    store(&private, "new.json", &1, Readers::Root).unwrap();
    assert_eq!((mode(&private), mode(&private.join("new.json"))), (0o700, 0o600));

    fs::write(private.join("old.json"), "0").unwrap();
    set_mode(&private.join("old.json"), 0o644);
    set_mode(&private, 0o755);
    store(&private, "old.json", &1, Readers::Root).unwrap();
    assert_eq!((mode(&private), mode(&private.join("old.json"))), (0o700, 0o600));

    // A gate without privileges reads this one.
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o755);
    store(&shared, "loaded.json", &1, Readers::Everyone).unwrap();
    assert_eq!((mode(&shared), mode(&shared.join("loaded.json"))), (0o755, 0o644));
}

#[test]
fn a_restored_file_is_never_wider_than_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let [main, drop_in, gone] = ["config.toml", "drop-in.toml", "gone.toml"].map(|name| folder.path().join(name));
    fs::write(&drop_in, "").unwrap();
    set_mode(&drop_in, 0o640);
    replace(&main, "password", &drop_in).unwrap();
    assert_eq!((mode(&main), drop_in.exists()), (0o640, false));

    write_all(&Texts::from([(gone.clone(), Some("password".to_owned()))])).unwrap();
    assert_eq!(mode(&gone), 0o600, "the mode of the original is not known");
}
