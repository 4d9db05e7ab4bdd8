//! The library's state and behaviour, without the C interface.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Mode, OFlags, open, openat};

use crate::{
    events::{Event, EventSet},
    handle::Handles,
    injected, location,
    machine::Machine,
    status::Status,
};

/// The interval at which a blocked call reads the files again.
const POLL: Duration = Duration::from_millis(50);

/// One loaded library.
#[derive(Debug)]
pub struct Library {
    root: PathBuf,
    own_version: Option<String>,
    /// The file that replaces the stand-in's folder, if any.
    injected: Option<PathBuf>,
    /// The stand-in's folder, held open from the first `nvmlInit` to the last `nvmlShutdown`: like a
    /// real library, which keeps its device nodes open, an initialised library continues when its root is replaced.
    folder: Mutex<Option<Arc<OwnedFd>>>,
    handles: Handles,
    /// The last content of `gpus.json` and what it describes: programs make hundreds of calls for one change of the file.
    latest: Mutex<Option<(String, Arc<Machine>)>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of `nvmlInit` calls without a matching `nvmlShutdown`.
    users: u32,
    lock: Option<File>,
    event_sets: Vec<Option<EventSet>>,
}

impl Library {
    /// Returns a library of version `own_version` in the driver root `root`; without a version it matches every driver.
    pub fn new(root: &Path, own_version: Option<&str>) -> Self {
        Self {
            root: root.to_path_buf(),
            own_version: own_version.map(str::to_owned),
            injected: None,
            folder: Mutex::default(),
            handles: Handles::default(),
            latest: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Returns the library of this shared object.
    pub(crate) fn this() -> &'static Self {
        static THIS: OnceLock<Library> = OnceLock::new();
        THIS.get_or_init(|| {
            let (library, root, version) = location::find();
            let injected = injected::beside(&library, &root, version.as_deref());
            Self { injected, ..Self::new(&root, version.as_deref()) }
        })
    }

    /// Starts using the driver. May be called more than once.
    pub fn init(&self) -> Result<(), Status> {
        if let Some(code) = self.obstacles()?.init_error {
            return Err(Status::from_code(code));
        }
        let mut state = self.state();
        if state.users == 0 {
            self.open_control_device()?;
            // The lock is taken before the version is read, so that the driver cannot be replaced in between.
            let lock = self.take_lock()?;
            let loaded = self.driver_version()?;
            if self.own_version.as_ref().is_some_and(|own| *own != loaded) {
                return Err(Status::LibRmVersionMismatch);
            }
            state.lock = Some(lock);
            if self.injected.is_none() {
                *self.held_folder() = Some(Arc::new(self.open_folder().map_err(|_| Status::Unknown)?));
            }
        }
        state.users += 1;
        Ok(())
    }

    /// Reverses one call of [`Library::init`]. The last call releases the driver.
    pub fn shutdown(&self) -> Result<(), Status> {
        let mut state = self.state();
        state.users = state.users.checked_sub(1).ok_or(Status::Uninitialized)?;
        if state.users == 0 {
            // Event sets end with the session. Handles stay, because a GPU must keep its handle.
            state.lock = None;
            state.event_sets.clear();
            *self.held_folder() = None;
        }
        Ok(())
    }

    /// Returns the version of the loaded kernel module.
    pub fn driver_version(&self) -> Result<String, Status> {
        self.read("module/nvidia/version").map(|version| version.trim().to_owned()).map_err(|_| Status::DriverNotLoaded)
    }

    /// Returns the version of the library itself.
    pub fn nvml_version(&self) -> Result<String, Status> {
        let machine = self.machine()?;
        let major = machine.cuda.split('.').next().unwrap_or_default();
        let own = self.own_version.clone().map_or_else(|| self.driver_version(), Ok)?;
        Ok(format!("{major}.{own}"))
    }

    /// Returns the current content of `gpus.json`.
    pub fn machine(&self) -> Result<Arc<Machine>, Status> {
        let machine = self.obstacles()?;
        if self.state().users == 0 { Err(Status::Uninitialized) } else { Ok(machine) }
    }

    /// Creates an event set and returns its number.
    pub fn create_event_set(&self) -> Result<usize, Status> {
        self.machine()?;
        let mut state = self.state();
        state.event_sets.push(Some(EventSet::default()));
        Ok(state.event_sets.len())
    }

    /// Removes an event set.
    pub fn free_event_set(&self, set: usize) -> Result<(), Status> {
        let mut state = self.state();
        let place = set.checked_sub(1).and_then(|place| state.event_sets.get_mut(place));
        place.and_then(Option::take).map(drop).ok_or(Status::InvalidArgument)
    }

    /// Registers an event set for the GPU's XIDs.
    pub fn register(&self, handle: usize, set: usize) -> Result<(), Status> {
        let (_, device) = self.device(handle)?;
        with_set(&mut self.state(), set, |set| set.register(&device))
    }

    /// Waits for the next XID.
    pub fn wait(&self, set: usize, timeout: Duration) -> Result<Event, Status> {
        let start = Instant::now();
        loop {
            let machine = self.machine()?;
            if let Some(event) = with_set(&mut self.state(), set, |set| set.next(&machine))? {
                return Ok(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Status::Timeout);
            }
            thread::sleep(left.min(POLL));
        }
    }

    /// Returns the content of `gpus.json`, after the delay, hang or crash that it requests.
    fn obstacles(&self) -> Result<Arc<Machine>, Status> {
        loop {
            let machine = self.parse(self.read("gpus.json").map_err(|_| Status::Unknown)?)?;
            if machine.crash {
                // Like a bug in the library, this ends the process.
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV);
            }
            if !machine.hang {
                thread::sleep(Duration::from_millis(machine.slow_millis));
                return Ok(machine);
            }
            thread::sleep(POLL);
        }
    }

    fn parse(&self, text: String) -> Result<Arc<Machine>, Status> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, machine)) = latest.as_ref().filter(|(other, _)| *other == text) {
            return Ok(Arc::clone(machine));
        }
        let machine = Arc::new(serde_json::from_str(&text).map_err(|_| Status::Unknown)?);
        *latest = Some((text, Arc::clone(&machine)));
        Ok(machine)
    }

    /// Reads a file of the stand-in's folder.
    pub(crate) fn read(&self, name: &str) -> io::Result<String> {
        if let Some(file) = &self.injected {
            return injected::read(file, self.own_version.as_deref(), name);
        }
        let file = openat(self.folder()?, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        io::read_to_string(File::from(file))
    }

    /// Returns the open stand-in's folder.
    pub(crate) fn folder(&self) -> io::Result<Arc<OwnedFd>> {
        let held = self.held_folder().clone();
        held.map_or_else(|| self.open_folder().map(Arc::new), Ok)
    }

    fn open_folder(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(open(self.standin(), flags, Mode::empty())?)
    }

    /// Returns the path of the stand-in's folder.
    pub(crate) fn standin(&self) -> PathBuf {
        self.root.join("etc/standin")
    }

    fn held_folder(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_control_device(&self) -> Result<(), Status> {
        // A driver root without its own `dev` uses the device nodes of the process that loads the library.
        let own = self.root.join("dev");
        let devices = if own.is_dir() { own } else { PathBuf::from("/dev") };
        let opened = OpenOptions::new().read(true).write(true).open(devices.join("nvidiactl"));
        match opened.map_err(|error| error.raw_os_error()) {
            // No kernel driver is behind the device node, but the process has the permission to open it.
            Ok(_) | Err(Some(libc::ENXIO | libc::ENODEV)) => Ok(()),
            Err(Some(libc::EPERM | libc::EACCES)) => Err(Status::NoPermission),
            Err(Some(libc::ENOENT)) => Err(Status::DriverNotLoaded),
            Err(_) => Err(Status::Unknown),
        }
    }

    fn take_lock(&self) -> Result<File, Status> {
        let path = self.injected.clone().unwrap_or_else(|| self.standin().join("lock/nvml.lock"));
        // Opening for reading is enough for a lock, and a read-only mount of the driver root allows nothing else.
        let file = File::open(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenOptions::new().read(true).append(true).create(true).open(&path),
            _ => Err(error),
        });
        let file = file.map_err(|_| Status::Unknown)?;
        // An exclusive lock means that the driver is being replaced.
        file.try_lock_shared().map_err(|_| Status::DriverNotLoaded)?;
        Ok(file)
    }

    /// Returns the handles of the GPUs.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn with_set<T>(state: &mut State, set: usize, act: impl FnOnce(&mut EventSet) -> T) -> Result<T, Status> {
    let place = set.checked_sub(1).and_then(|place| state.event_sets.get_mut(place));
    place.and_then(Option::as_mut).map(act).ok_or(Status::InvalidArgument)
}
