use std::{cell::RefCell, io, path::PathBuf};

use super::*;

/// A runtime in memory: each reload starts its next lifetime.
struct Fake {
    /// The result of each reload: whether the runtime answers.
    lives: RefCell<Vec<bool>>,
    now: RefCell<Option<ProcessIdentity>>,
    replaced: bool,
    reloads: RefCell<u32>,
}

impl Fake {
    fn new(replaced: bool, lives: &[bool]) -> Self {
        let first = ProcessIdentity { pid: 10, start: 100 };
        let lives = RefCell::new(lives.iter().rev().copied().collect());
        Self { lives, now: RefCell::new(Some(first)), replaced, reloads: RefCell::new(0) }
    }

    fn reloads(&self) -> u32 {
        *self.reloads.borrow()
    }
}

impl Runtime for Fake {
    async fn process(&self) -> Result<ProcessIdentity, DaemonError> {
        self.answering().await
    }

    async fn answering(&self) -> Result<ProcessIdentity, DaemonError> {
        let gone = || DaemonError::Socket(PathBuf::from("/run/fake.sock"), io::ErrorKind::ConnectionRefused.into());
        // A supervisor restarts it with the configuration on disk, so the end of one lifetime starts the next.
        let now = *self.now.borrow();
        match now {
            Some(process) => Ok(process),
            None if self.lives.borrow_mut().pop() == Some(true) => {
                let process = ProcessIdentity { pid: 99, start: 999 };
                *self.now.borrow_mut() = Some(process);
                Ok(process)
            }
            None => Err(gone()),
        }
    }

    async fn reload(&self, process: ProcessIdentity) -> Result<(), DaemonError> {
        *self.reloads.borrow_mut() += 1;
        let next =
            if self.replaced { ProcessIdentity { pid: process.pid + 1, start: process.start + 1 } } else { process };
        *self.now.borrow_mut() = (self.lives.borrow_mut().pop() == Some(true)).then_some(next);
        Ok(())
    }

    fn is_replaced(&self) -> bool {
        self.replaced
    }

    fn started(&self, process: ProcessIdentity) -> Result<SystemTime, DaemonError> {
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(process.start))
    }
}

const NO_WAIT: WaitLimits = WaitLimits { deadline: Duration::ZERO, interval: Duration::from_millis(1) };

fn disk(written: u64) -> OnDisk {
    OnDisk { digest: "new".into(), written: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(written)) }
}

fn known(start: u64, digest: &str) -> LoadedConfig {
    LoadedConfig { process: ProcessIdentity { pid: 10, start }, digest: digest.into() }
}

async fn load_with(
    fake: &Fake,
    disk: &OnDisk,
    known: Option<LoadedConfig>,
) -> (Result<ProcessIdentity, RestartError>, bool) {
    let mut rolled_back = false;
    let roll_back = || {
        rolled_back = true;
        Ok(())
    };
    let result = load(fake, disk, known.as_ref(), NO_WAIT, async || Ok::<_, DaemonError>(()), roll_back).await;
    (result, rolled_back)
}

#[tokio::test]
async fn a_runtime_is_restarted_only_if_its_config_is_not_loaded() {
    for (written, known, reloads) in [
        // Recorded for this process.
        (500, Some(known(100, "new")), 0),
        (1, Some(known(100, "old")), 1),
        // Nothing recorded, or for another lifetime: decided by the clock.
        (1, None, 0),
        (1, Some(known(7, "old")), 0),
        (500, None, 1),
        (500, Some(known(7, "new")), 1),
        // The same second proves nothing.
        (99, None, 1),
    ] {
        let fake = Fake::new(true, &[true]);
        let (result, rolled_back) = load_with(&fake, &disk(written), known.clone()).await;
        assert!(result.is_ok() && !rolled_back);
        assert_eq!(fake.reloads(), reloads, "{written} {known:?}");
    }
}

#[tokio::test]
async fn a_runtime_that_reloads_in_place_need_not_be_replaced() {
    let fake = Fake::new(false, &[true]);
    let (result, _) = load_with(&fake, &disk(500), None).await;
    assert_eq!(result.unwrap().pid, 10);
    assert_eq!(fake.reloads(), 1);
}

#[tokio::test]
async fn a_runtime_that_does_not_come_back_gets_its_previous_config() {
    let fake = Fake::new(true, &[false, false, true, true]);
    let (result, rolled_back) = load_with(&fake, &disk(500), None).await;
    let error = result.unwrap_err().to_string();
    assert!(rolled_back);
    assert!(error.starts_with("RuntimeConfigRejected: "), "{error}");
    assert!(error.contains("/run/fake.sock does not answer"), "{error}");
}

#[tokio::test]
async fn a_runtime_that_never_comes_back_is_down() {
    let fake = Fake::new(true, &[false]);
    let (result, rolled_back) = load_with(&fake, &disk(500), None).await;
    assert!(rolled_back);
    assert!(result.unwrap_err().to_string().starts_with("RuntimeDown: "));
}

#[tokio::test]
async fn a_runtime_that_ignores_the_request_has_not_loaded_anything() {
    struct Deaf(Fake);
    impl Runtime for Deaf {
        async fn process(&self) -> Result<ProcessIdentity, DaemonError> {
            self.0.process().await
        }
        async fn answering(&self) -> Result<ProcessIdentity, DaemonError> {
            self.0.answering().await
        }
        async fn reload(&self, _: ProcessIdentity) -> Result<(), DaemonError> {
            Ok(())
        }
        fn is_replaced(&self) -> bool {
            true
        }
        fn started(&self, process: ProcessIdentity) -> Result<SystemTime, DaemonError> {
            self.0.started(process)
        }
    }
    let deaf = Deaf(Fake::new(true, &[]));
    let error = load(&deaf, &disk(500), None, NO_WAIT, async || Ok::<_, DaemonError>(()), || Ok(())).await.unwrap_err();
    assert!(error.to_string().contains("keeps running and does not reload its configuration"), "{error}");
}
