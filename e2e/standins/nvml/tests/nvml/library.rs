//! The library's behaviour, without its C interface.

use std::{fs, fs::File, sync::mpsc, thread, time::Duration};

use standin_nvml::{Event, Library, Modes, Status};

use super::driver_root::{DriverRoot, VERSION};

const SOON: Duration = Duration::from_secs(10);

fn library(root: &DriverRoot) -> Library {
    Library::new(&root.path(""), Some(VERSION))
}

#[test]
fn the_driver_is_locked_from_first_init_to_last_shutdown() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = library(&root);
    library.init().unwrap();
    let lock = File::open(root.path("etc/standin/lock/nvml.lock")).unwrap();
    assert!(lock.try_lock().is_err());

    library.init().unwrap();
    library.shutdown().unwrap();
    assert!(lock.try_lock().is_err());
    library.shutdown().unwrap();
    lock.try_lock().unwrap();

    assert_eq!(library.shutdown(), Err(Status::Uninitialized));
    assert_eq!(library.machine().map(drop), Err(Status::Uninitialized));
}

#[test]
fn several_programs_use_a_driver_unless_it_is_being_replaced() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let (one, other) = (library(&root), library(&root));
    one.init().unwrap();
    other.init().unwrap();
    one.shutdown().unwrap();
    other.shutdown().unwrap();

    let lock = File::open(root.path("etc/standin/lock/nvml.lock")).unwrap();
    lock.try_lock().unwrap();
    assert_eq!(one.init(), Err(Status::DriverNotLoaded));
}

#[test]
fn only_a_new_library_sees_a_replaced_driver_root() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = library(&root);
    library.init().unwrap();
    fs::rename(root.path("etc/standin"), root.path("etc/gone")).unwrap();
    assert_eq!(library.machine().unwrap().devices.len(), 1);
    library.shutdown().unwrap();
    assert!(library.init().is_err());
}

#[test]
fn driver_problems_are_reported_with_the_same_codes_as_by_nvml() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    root.load("580.173.02");
    assert_eq!(library(&root).init(), Err(Status::LibRmVersionMismatch));
    assert_eq!(Library::new(&root.path(""), None).init(), Ok(()));

    fs::remove_dir_all(root.path("etc/standin/module/nvidia")).unwrap();
    assert_eq!(library(&root).init(), Err(Status::DriverNotLoaded));

    let root = DriverRoot::with_gpus(&["GPU-a"]);
    fs::remove_file(root.path("dev/nvidiactl")).unwrap();
    assert_eq!(library(&root).init(), Err(Status::DriverNotLoaded));
    // A failed init leaves no lock behind.
    File::create(root.path("etc/standin/lock/nvml.lock")).unwrap().try_lock().unwrap();

    let root = DriverRoot::with_gpus(&["GPU-a"]);
    root.write("etc/standin/gpus.json", "{");
    assert_eq!(library(&root).init(), Err(Status::Unknown));
}

#[test]
fn a_handle_stays_with_its_gpu_while_gpus_come_and_go() {
    let root = DriverRoot::with_gpus(&["GPU-a", "GPU-b"]);
    let library = library(&root);
    library.init().unwrap();
    let second = library.find(Status::NotFound, |index, _| index == 1).unwrap();
    assert_eq!(library.find_at("00000000:01:00.0"), Ok(second));
    assert_eq!(library.device(second).unwrap().1.uuid, "GPU-b");

    root.serve(&["GPU-a"], "");
    assert_eq!(library.device(second).map(drop), Err(Status::GpuIsLost));
    root.serve(&["GPU-a", "GPU-b"], "");
    assert_eq!(library.device(second).unwrap().1.uuid, "GPU-b");

    assert_eq!(library.device(0).map(drop), Err(Status::InvalidArgument));
    assert_eq!(library.device(77).map(drop), Err(Status::InvalidArgument));
    assert_eq!(library.find_at("0000:77:00.0"), Err(Status::NotFound));
}

#[test]
fn a_set_gets_an_unhealthy_gpu_once_until_it_recovers() {
    let root = DriverRoot::with_gpus(&["GPU-a", "GPU-b"]);
    let library = library(&root);
    library.init().unwrap();
    let set = library.create_event_set().unwrap();
    for address in ["0:0:0.0", "0:1:0.0"] {
        library.register(library.find_at(address).unwrap(), set).unwrap();
    }
    assert_eq!(library.wait(set, Duration::ZERO), Err(Status::Timeout));

    let xid = Event { pci_address: "0000:01:00.0".into(), xid: 79 };
    root.serve(&["GPU-a", "GPU-b"], r#""healthy":{"GPU-b":false},"#);
    assert_eq!(library.wait(set, Duration::ZERO), Ok(xid.clone()));
    assert_eq!(library.wait(set, Duration::ZERO), Err(Status::Timeout));

    root.serve(&["GPU-a", "GPU-b"], "");
    assert_eq!(library.wait(set, Duration::ZERO), Err(Status::Timeout));
    root.serve(&["GPU-a", "GPU-b"], r#""healthy":{"GPU-b":false},"#);
    assert_eq!(library.wait(set, Duration::ZERO), Ok(xid));

    library.free_event_set(set).unwrap();
    assert_eq!(library.wait(set, Duration::ZERO), Err(Status::InvalidArgument));
}

#[test]
fn listed_xids_are_delivered_to_earlier_event_sets() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = library(&root);
    library.init().unwrap();
    let listen = || {
        let set = library.create_event_set().unwrap();
        library.register(library.find_at("0:0:0.0").unwrap(), set).unwrap();
        set
    };
    let received = |set| library.wait(set, Duration::ZERO).map(|event| event.xid);
    let early = listen();
    root.serve_one(r#""xids":[{"xid":48}]"#);
    let late = listen();
    assert_eq!(
        (received(early), received(early), received(late)),
        (Ok(48), Err(Status::Timeout), Err(Status::Timeout))
    );
    root.serve_one(r#""xids":[{"xid":48},{"xid":48,"id":2}]"#);
    assert_eq!((received(early), received(late)), (Ok(48), Ok(48)));

    root.serve_one(r#""xids":[{"xid":31,"perSecond":1000}]"#);
    for _ in 0..50 {
        assert_eq!(library.wait(early, SOON).map(|event| event.xid), Ok(31));
    }
}

#[test]
fn gpus_and_init_have_errors_of_their_own() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = library(&root);
    library.init().unwrap();
    let gpu = library.find_at("0:0:0.0").unwrap();
    for (code, status) in [
        (8, Status::InsufficientPower),
        (11, Status::IrqIssue),
        (14, Status::CorruptedInforom),
        (15, Status::GpuIsLost),
        (16, Status::ResetRequired),
        (28, Status::GpuNotFound),
    ] {
        root.serve_one(&format!(r#""error":{code}"#));
        assert_eq!(library.device(gpu).map(drop), Err(status));
        assert_eq!(library.find_at("0:0:0.0"), Err(status));
    }
    root.serve(&["GPU-a"], r#""initError":18,"#);
    assert_eq!(library.init(), Err(Status::LibRmVersionMismatch));
}

#[test]
fn calls_block_while_the_file_requests_a_hang() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = library(&root);
    library.init().unwrap();
    root.serve(&["GPU-a"], r#""hang":true,"#);
    thread::scope(|scope| {
        let (send, answers) = mpsc::channel();
        let library = &library;
        scope.spawn(move || {
            send.send(library.machine().map(|machine| machine.devices.len())).unwrap();
        });
        assert!(answers.recv_timeout(Duration::from_millis(300)).is_err());
        root.serve(&["GPU-a"], "");
        assert_eq!(answers.recv_timeout(SOON).unwrap(), Ok(1));
    });
}

#[test]
fn mig_instances_are_shared_and_follow_the_rules_of_nvml() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let (one, other) = (library(&root), library(&root));
    one.init().unwrap();
    other.init().unwrap();
    let gpu = || one.device(one.find_at("0:0:0.0").unwrap()).unwrap().1;
    assert_eq!(
        one.set_mig_mode(&gpu(), true),
        Err(Status::NotSupported),
        "MIG cannot be turned on without `mig` in the file"
    );
    root.serve_one(r#""mig":{}"#);
    assert_eq!(one.create_instance(&gpu(), 19, 0), Err(Status::NotSupported), "MIG is off");
    one.set_mig_mode(&gpu(), true).unwrap();
    let half = one.create_instance(&gpu(), 9, 0).unwrap();
    assert_eq!(one.create_instance(&gpu(), 19, 3), Err(Status::InsufficientResources), "the slice is occupied");
    assert_eq!(
        one.create_instance(&gpu(), 9, 2),
        Err(Status::InsufficientResources),
        "the profile can start only at 0 or 4"
    );
    one.set_compute(&gpu(), half, true).unwrap();
    assert_eq!(other.division(&gpu()).unwrap(), one.division(&gpu()).unwrap());
    assert_eq!(other.destroy_instance(&gpu(), half), Err(Status::InUse), "the instance has a compute instance");
    assert_eq!(other.set_mig_mode(&gpu(), false), Err(Status::InUse), "the GPU has an instance");

    root.serve_one(&format!(r#""mig":{{"clients":[{{"pid":1,"instance":{half}}}]}}"#));
    assert_eq!(other.set_compute(&gpu(), half, false), Err(Status::InUse), "a program uses the instance");
    root.serve_one(r#""mig":{"needsReset":true}"#);
    other.set_compute(&gpu(), half, false).unwrap();
    other.destroy_instance(&gpu(), half).unwrap();
    other.set_mig_mode(&gpu(), false).unwrap();
    let division = one.division(&gpu()).unwrap();
    assert_eq!((division.enabled, division.pending), (true, false));
    root.serve_one(r#""mig":{}"#);
    assert!(!one.division(&gpu()).unwrap().enabled, "the GPU was reset");
}

#[test]
fn a_set_mode_is_shared_unless_the_file_overrides_it() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let (one, other) = (library(&root), library(&root));
    one.init().unwrap();
    other.init().unwrap();
    let gpu = || one.device(one.find_at("0:0:0.0").unwrap()).unwrap().1;
    assert_eq!(other.modes(&gpu()), Ok((0, true)));
    one.set(&gpu(), Modes { compute: Some(3), ..Modes::default() }).unwrap();
    one.set(&gpu(), Modes { persistence: Some(false), ..Modes::default() }).unwrap();
    assert_eq!(other.modes(&gpu()), Ok((3, false)));
    root.serve_one(r#""readings":{"computeMode":2}"#);
    assert_eq!(other.modes(&gpu()), Ok((2, false)));
}
