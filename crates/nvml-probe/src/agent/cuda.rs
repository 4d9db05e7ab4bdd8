//! When `cuInit` is called, and what its results mean. Pure, apart from the look for a process that changes MIG.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gpu_host::{nvml::protocol::CudaInit, observe::processes, root::HostRoot};
use gpu_operator_crd::{
    health::HealthState,
    report::{CudaError, Gpu, MigDevices, NvmlState, Report},
};

use crate::health::node::DriverStart;

/// A failure counts if it is repeated after this pause. Then the pause is that between two calls until one succeeds.
const RETRY: Duration = Duration::from_secs(30);
/// The pause between two calls on machines whose GPUs depend on a fabric manager, and after a call without a result.
const REPEAT: Duration = Duration::from_mins(10);

/// What a result holds for: one start of the driver, and what its GPUs depend on.
#[derive(Clone, Debug, PartialEq)]
struct Subject {
    start: DriverStart,
    fabric_manager: Option<bool>,
    /// The MIG layout of each GPU, by PCI address.
    layouts: BTreeMap<String, Option<Vec<MigDevices>>>,
}

impl Subject {
    fn of(report: &Report) -> Self {
        Self {
            start: DriverStart::of(report),
            fabric_manager: report.bridges.as_ref().and_then(|bridges| bridges.fabric_manager),
            layouts: report.gpus.iter().map(|gpu| (gpu.pci_address.clone(), gpu.mig_devices.clone())).collect(),
        }
    }
}

#[derive(Debug, Default)]
pub struct CudaCheck {
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    subject: Subject,
    /// `None`: not until the subject changes.
    due: Option<Instant>,
    /// The error of the last call, and whether it counts.
    failed: Option<(CudaError, bool)>,
}

impl CudaCheck {
    /// Continues from a report of an earlier process: its error counts until a call succeeds.
    pub fn restore(&mut self, report: Option<&Report>, now: Instant) {
        let error = report.and_then(|report| Some((report, report.driver.cuda_error.clone()?)));
        if let (None, Some((report, error))) = (&self.last, error) {
            self.last = Some(Last { subject: Subject::of(report), due: Some(now), failed: Some((error, true)) });
        }
    }

    /// Returns the error that counts for the driver of the report.
    pub fn error(&self, report: &Report) -> Option<CudaError> {
        let last = self.last.as_ref().filter(|last| last.subject.start == DriverStart::of(report))?;
        last.failed.as_ref().filter(|(_, counts)| *counts).map(|(error, _)| error.clone())
    }

    /// Returns whether a call is due and shows something that nothing else does.
    pub fn is_due(&self, report: &Report, now: Instant) -> bool {
        let is_due = self
            .last
            .as_ref()
            .is_none_or(|last| last.subject != Subject::of(report) || last.due.is_some_and(|due| now >= due));
        is_due && can_succeed(report)
    }

    pub fn record(&mut self, report: &Report, result: CudaInit, now: Instant) {
        let subject = Subject::of(report);
        let before = self.last.take().filter(|last| last.subject.start == subject.start);
        let failed = before.and_then(|last| last.failed);
        let (failed, pause) = match result {
            CudaInit::Succeeded => (None, report.bridges.is_some().then_some(REPEAT)),
            CudaInit::Failed(error) => (Some((error, failed.is_some())), Some(RETRY)),
            CudaInit::Unknown(_) => (failed, Some(REPEAT)),
        };
        self.last = Some(Last { subject, due: pause.and_then(|pause| now.checked_add(pause)), failed });
    }
}

/// Returns whether nothing that is reported already explains a failure.
fn can_succeed(report: &Report) -> bool {
    let is_sound = |gpu: &Gpu| {
        gpu.uuid.is_some()
            && gpu.health.state != HealthState::Unhealthy
            && gpu.mig_devices.as_ref().is_none_or(|devices| !devices.is_empty())
    };
    let mut used =
        report.driver.installed.iter().filter(|driver| Some(&driver.version) == report.driver.loaded.as_ref());
    report.nvml.state == NvmlState::Answering
        && !report.gpus.is_empty()
        && report.gpus.iter().all(is_sound)
        && used.all(|driver| driver.missing_devices.is_empty())
}

/// Returns whether a pod of this operator changes the MIG layout. A call of `cuInit` would find a part of it, and hold the GPU.
pub fn is_layout_applied(host: &HostRoot) -> bool {
    let applies = |pid| {
        let line = host.bytes(format!("/proc/{pid}/cmdline"), processes::MAX_COMMAND_LINE).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        (program.ends_with(b"/entrypoint") || program.ends_with(b"/nvml-probe")) && arguments.next() == Some(b"mig")
    };
    processes::pids(host).is_ok_and(|mut pids| pids.any(applies))
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{
        health::GpuHealth,
        report::{DriverFacts, InstalledDriver, NvmlFacts},
    };

    use super::*;

    const NOT_READY: u32 = 802;

    fn failed(code: u32) -> CudaInit {
        CudaInit::Failed(CudaError { code, name: String::new() })
    }

    fn code(check: &CudaCheck, report: &Report) -> Option<u32> {
        check.error(report).map(|error| error.code)
    }

    fn report() -> Report {
        let health = GpuHealth { state: HealthState::Healthy, ..GpuHealth::default() };
        let gpu = Gpu { uuid: Some("GPU-six".into()), health, ..Gpu::default() };
        let installed = vec![InstalledDriver { version: "580.95.05".into(), ..InstalledDriver::default() }];
        Report {
            gpus: vec![gpu],
            driver: DriverFacts {
                loaded: Some("580.95.05".into()),
                load_id: Some(1),
                installed,
                ..DriverFacts::default()
            },
            nvml: NvmlFacts { state: NvmlState::Answering, ..NvmlFacts::default() },
            ..Report::default()
        }
    }

    fn changed(change: impl FnOnce(&mut Report)) -> Report {
        let mut report = report();
        change(&mut report);
        report
    }

    #[test]
    fn a_failure_counts_once_it_is_repeated_and_until_a_success() {
        let (mut check, start, report) = (CudaCheck::default(), Instant::now(), report());
        assert!(check.is_due(&report, start));
        check.record(&report, failed(NOT_READY), start);
        assert_eq!(code(&check, &report), None);
        assert!(!check.is_due(&report, start + RETRY / 2) && check.is_due(&report, start + RETRY));
        check.record(&report, failed(999), start + RETRY);
        assert_eq!(code(&check, &report), Some(999));
        // A call without a result proves nothing.
        check.record(&report, CudaInit::Unknown("stuck".into()), start + 2 * RETRY);
        assert_eq!(code(&check, &report), Some(999));
        check.record(&report, CudaInit::Succeeded, start + 3 * RETRY);
        assert_eq!(code(&check, &report), None);
        assert!(!check.is_due(&report, start + 100 * REPEAT));
    }

    #[test]
    fn it_is_called_again_when_something_changes_that_it_depends_on() {
        for (what, change) in [
            ("boot", (|report| report.boot_id = "another".into()) as fn(&mut Report)),
            ("load of the module", |report| report.driver.load_id = Some(2)),
            ("MIG layout", |report| report.gpus[0].mig_devices = Some(vec![MigDevices::default()])),
            ("fabric manager", |report| {
                report.bridges =
                    Some(gpu_operator_crd::report::Bridges { fabric_manager: Some(true), ..Default::default() });
            }),
        ] {
            let (mut check, now) = (CudaCheck::default(), Instant::now());
            check.record(&report(), CudaInit::Succeeded, now);
            assert!(check.is_due(&changed(change), now), "{what}");
            check.record(&changed(change), CudaInit::Succeeded, now);
            // On machines with bridges GPUs may lose the fabric later.
            assert_eq!(check.is_due(&changed(change), now + REPEAT), what == "fabric manager", "{what}");
        }
        let (mut check, now) = (CudaCheck::default(), Instant::now());
        check.record(&report(), CudaInit::Succeeded, now);
        let warmer = changed(|report| report.gpus[0].health.state = HealthState::Degraded);
        assert!(!check.is_due(&warmer, now));
    }

    #[test]
    fn it_is_not_called_while_something_else_explains_a_failure() {
        for (what, change) in [
            ("the driver is released", (|report| report.nvml.state = NvmlState::Released) as fn(&mut Report)),
            ("no GPU", |report| report.gpus.clear()),
            ("a lost GPU", |report| report.gpus[0].uuid = None),
            ("a faulty GPU", |report| report.gpus[0].health.state = HealthState::Unhealthy),
            ("MIG without instances", |report| report.gpus[0].mig_devices = Some(Vec::new())),
            ("a missing device node", |report| report.driver.installed[0].missing_devices = vec!["nvidia-uvm".into()]),
        ] {
            assert!(!CudaCheck::default().is_due(&changed(change), Instant::now()), "{what}");
        }
    }

    #[test]
    fn an_error_of_an_earlier_process_counts_for_the_same_driver() {
        let error = CudaError { code: NOT_READY, name: String::new() };
        let before = changed(|report| report.driver.cuda_error = Some(error));
        let (mut check, now) = (CudaCheck::default(), Instant::now());
        check.restore(Some(&before), now);
        assert_eq!(code(&check, &report()), Some(NOT_READY));
        assert!(check.is_due(&report(), now));
        assert_eq!(code(&check, &changed(|report| report.driver.load_id = Some(2))), None);
        check.record(&report(), failed(NOT_READY), now);
        assert_eq!(code(&check, &report()), Some(NOT_READY));
        check.record(&report(), CudaInit::Succeeded, now);
        check.restore(Some(&before), now);
        assert_eq!(code(&check, &report()), None);
    }

    #[test]
    fn a_pod_that_applies_a_layout_is_found_by_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostRoot::new(folder.path());
        let process = |pid: &str, line: &str| {
            std::fs::create_dir_all(folder.path().join("proc").join(pid)).unwrap();
            std::fs::write(folder.path().join("proc").join(pid).join("cmdline"), line).unwrap();
        };
        process("7", "/usr/bin/entrypoint\0run\0--node-name\0mig\0");
        process("8", "/usr/bin/other\0mig\0");
        assert!(!is_layout_applied(&host));
        process("9", "/usr/bin/entrypoint\0mig\0--layout\0{}\0");
        assert!(is_layout_applied(&host));
    }
}
