//! Derives findings from one reading of a GPU: what is wrong, and what is proven not to be wrong. Pure and stateless;
//! [`super::gpu`] decides what a finding leads to.

use std::time::Duration;

use gpu_host::{
    nvml::readings::{Fabric, Pcie, Readings, RemappedRows, RetiredPages, Thermal, clocks},
    observe::kernel_log::XidCount,
};
use gpu_operator_crd::health::{Action, CauseKind, Severity};

use super::{
    rules::{Cure, KindDefaults, Rules, defaults},
    xid::Class,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: CauseKind,
    /// The number of an XID or `SXid`, for those kinds only.
    pub xid: Option<u16>,
    pub severity: Severity,
    pub action: Action,
    pub cure: Cure,
    /// Whether one reading is not enough.
    pub confirm: bool,
    /// The number of occurrences, if it can be counted.
    pub count: Option<u64>,
    pub evidence: String,
}

impl Finding {
    /// Creates a finding with the defaults of its kind, or `None` if the rules ignore the kind.
    pub fn of(rules: &Rules, kind: CauseKind, evidence: impl Into<String>) -> Option<Self> {
        let KindDefaults { severity, action, cure, confirm } = defaults(kind);
        let severity = rules.severity_over(kind, severity)?;
        Some(Self { kind, xid: None, severity, action, cure, confirm, count: None, evidence: evidence.into() })
    }

    /// Creates a finding for an XID that occurred `count` times, or `None` if XIDs of this number are ignored.
    pub fn of_xid(rules: &Rules, xid: u16, count: u64, message: &str) -> Option<Self> {
        let meaning = rules.xid(xid);
        let (severity, cure) = match meaning.class {
            Class::Ignore => return None,
            Class::Warn => (Severity::Warning, Cure::Passing),
            Class::Fatal => (Severity::Fatal, Cure::Restart),
        };
        let evidence = if message.is_empty() {
            meaning.text.to_owned()
        } else {
            format!("{}; driver message: {message}", meaning.text)
        };
        Some(Self {
            kind: CauseKind::Xid,
            xid: Some(xid),
            severity,
            action: meaning.action,
            cure,
            confirm: false,
            count: Some(count),
            evidence,
        })
    }

    /// Creates a finding for a fatal `SXid` of the switch at this address, on which every GPU of the node depends.
    pub fn of_switch(rules: &Rules, switch: &str, seen: &XidCount) -> Option<Self> {
        let evidence = format!("NVSwitch {switch} reported SXid {}: {}", seen.xid, seen.message);
        let finding = Self::of(rules, CauseKind::NvSwitchError, evidence)?;
        Some(Self { xid: Some(seen.xid), ..finding }.counting(seen.count))
    }

    fn counting(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Sets the severity unless a rule sets it.
    fn severity(self, rules: &Rules, severity: Severity) -> Self {
        Self { severity: rules.severity_over(self.kind, severity).unwrap_or(severity), ..self }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Baseline {
    /// The PCIe replay counter at the previous reading, and how long ago that was.
    pub replays: Option<(u64, Duration)>,
    /// How many NVLinks should be active: as many as were before on this GPU, or as on the node's GPUs of the same
    /// model.
    pub nvlinks: Option<usize>,
}

/// The result of evaluating a reading. A kind in neither list could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub found: Vec<Finding>,
    /// What is proven not to be wrong.
    pub clear: Vec<CauseKind>,
}

pub fn findings(rules: &Rules, now: &Readings, baseline: &Baseline) -> Findings {
    let mut evaluation = Evaluation { rules, findings: Findings::default() };
    heat(&mut evaluation, &now.thermal);
    slowdowns(&mut evaluation, now.clock_reasons);
    evaluation.at(CauseKind::InforomCorrupt, now.inforom_corrupt, |corrupt| {
        corrupt.then(|| "NVML reports that the infoROM is corrupt".to_owned())
    });
    ecc(&mut evaluation, now);
    if let Some(pages) = now.pages {
        retired_pages(&mut evaluation, pages);
    }
    if let Some(rows) = now.rows {
        remapped_rows(&mut evaluation, rows);
    }
    links(&mut evaluation, now, baseline);
    if let Some(fabric) = now.fabric {
        join(&mut evaluation, fabric);
    }
    pcie(&mut evaluation, now, baseline);
    evaluation.recovery(now.recovery_action);
    evaluation.findings
}

struct Evaluation<'a> {
    rules: &'a Rules,
    findings: Findings,
}

impl Evaluation<'_> {
    fn at<T>(&mut self, kind: CauseKind, value: Option<T>, wrong: impl FnOnce(T) -> Option<String>) {
        if let Some(value) = value {
            let finding = wrong(value).and_then(|evidence| Finding::of(self.rules, kind, evidence));
            self.note(kind, finding);
        }
    }

    /// Evaluates a counter like [`Self::at`].
    fn counted(&mut self, kind: CauseKind, count: Option<u64>, wrong: impl FnOnce(u64) -> Option<String>) {
        if let Some(count) = count {
            let finding = wrong(count).and_then(|evidence| Finding::of(self.rules, kind, evidence));
            self.note(kind, finding.map(|finding| finding.counting(count)));
        }
    }

    fn note(&mut self, kind: CauseKind, found: Option<Finding>) {
        match found {
            Some(finding) => self.findings.found.push(finding),
            None => self.findings.clear.push(kind),
        }
    }

    /// Evaluates NVML's recommended action (field 230; driver 570 and later). The meaning of values above 2 is known
    /// only from the names in NVML's header.
    fn recovery(&mut self, value: Option<u32>) {
        let kind = CauseKind::RecoveryActionNeeded;
        let rules = self.rules;
        let finding = |value: u32| {
            let (action, severity, meaning) = match value {
                0 => return None,
                1 => (Action::ResetGpu, Severity::Fatal, "reset the GPU"),
                2 => (Action::RebootNode, Severity::Fatal, "reboot the node"),
                3 => (Action::DrainAndReset, Severity::Warning, "stop all peer-to-peer traffic"),
                4 => (Action::DrainAndReset, Severity::Warning, "drain and reset the GPU"),
                _ => (Action::CheckHardware, Severity::Warning, "unknown to the probe"),
            };
            let finding = Finding::of(rules, kind, format!("NVML's recovery action is {value}: {meaning}"))?;
            Some(Finding { action, ..finding }.severity(rules, severity))
        };
        if let Some(value) = value {
            self.note(kind, finding(value));
        }
    }
}

fn heat(evaluation: &mut Evaluation<'_>, thermal: &Thermal) {
    let kind = CauseKind::Overheating;
    let rules = evaluation.rules;
    let (slow, shut) = (rules.below_slowdown(), rules.below_shutdown());
    let (until_slowdown, until_shutdown) = (thermal.until_slowdown(), thermal.until_shutdown());
    if until_slowdown.is_none() && until_shutdown.is_none() {
        return;
    }
    let temperature = thermal.gpu.map_or_else(String::new, |gpu| format!("{gpu} °C, "));
    let finding = if let Some(left) = until_shutdown.filter(|left| *left <= shut) {
        Finding::of(rules, kind, format!("{temperature}{left} °C until the GPU shuts down"))
            .map(|finding| finding.severity(rules, Severity::Fatal))
    } else if let Some(left) = until_slowdown.filter(|left| *left <= slow) {
        Finding::of(rules, kind, format!("{temperature}{left} °C until the GPU slows down"))
    } else {
        None
    };
    evaluation.note(kind, finding);
}

fn slowdowns(evaluation: &mut Evaluation<'_>, reasons: Option<u64>) {
    use clocks::{HARDWARE_SLOWDOWN, HARDWARE_THERMAL, POWER_BRAKE, SOFTWARE_THERMAL};
    let heat = HARDWARE_THERMAL | SOFTWARE_THERMAL;
    for (kind, bits, without, text) in [
        (CauseKind::ThermalSlowdown, heat, 0, "clocks are lowered because of heat"),
        (CauseKind::PowerBrake, POWER_BRAKE, 0, "clocks are lowered at the power supply's request"),
        // This bit is set together with those of heat and of the power brake.
        (
            CauseKind::HardwareSlowdown,
            HARDWARE_SLOWDOWN,
            HARDWARE_THERMAL | POWER_BRAKE,
            "clocks are lowered by the hardware",
        ),
    ] {
        evaluation.at(kind, reasons, |reasons| {
            (reasons & bits != 0 && reasons & without == 0)
                .then(|| format!("{text} (clock event reasons {reasons:#x})"))
        });
    }
}

fn ecc(evaluation: &mut Evaluation<'_>, now: &Readings) {
    let limit = evaluation.rules.uncorrectable_ecc();
    evaluation.counted(CauseKind::UncorrectableEcc, now.ecc.volatile_uncorrected, |errors| {
        (errors >= limit).then(|| "uncorrectable memory errors since the driver was loaded".to_owned())
    });
    evaluation.at(CauseKind::SramThresholdExceeded, now.ecc.sram_threshold_exceeded, |exceeded| {
        exceeded.then(|| "the GPU's SRAM has had too many uncorrectable errors".to_owned())
    });
}

fn retired_pages(evaluation: &mut Evaluation<'_>, pages: RetiredPages) {
    let limit = evaluation.rules.retired_pages();
    evaluation.counted(
        CauseKind::TooManyRetiredPages,
        Some(pages.correctable.saturating_add(pages.uncorrectable)),
        |count| (count >= limit).then(|| format!("{limit} or more memory pages are retired")),
    );
    evaluation.at(CauseKind::PageRetirementPending, pages.pending, |pending| {
        pending.then(|| "a memory page is retired at the next reboot".to_owned())
    });
}

fn remapped_rows(evaluation: &mut Evaluation<'_>, rows: RemappedRows) {
    let limit = evaluation.rules.remapped_rows();
    evaluation.at(CauseKind::RowRemapPending, Some(rows.pending), |pending| {
        pending.then(|| "a memory row is replaced at the next reset".to_owned())
    });
    evaluation.at(CauseKind::RowRemapFailed, Some(rows.failed), |failed| {
        failed.then(|| "a memory row could not be replaced".to_owned())
    });
    evaluation.counted(CauseKind::TooManyRemappedRows, Some(rows.uncorrectable), |count| {
        (count >= limit).then(|| format!("{limit} or more memory rows were replaced for uncorrectable errors"))
    });
}

fn links(evaluation: &mut Evaluation<'_>, now: &Readings, baseline: &Baseline) {
    let active = now.active_nvlinks();
    evaluation.at(CauseKind::NvLinkDown, active.zip(baseline.nvlinks), |(active, expected)| {
        (active < expected).then(|| {
            let down: Vec<String> =
                now.nvlinks.iter().enumerate().filter(|(_, up)| !**up).map(|(link, _)| link.to_string()).collect();
            format!("{active} of {expected} NVLinks are active; not active: {}", down.join(" "))
        })
    });
}

fn join(evaluation: &mut Evaluation<'_>, fabric: Fabric) {
    let rules = evaluation.rules;
    evaluation.at(CauseKind::FabricNotReady, Some(fabric.state), |state| {
        matches!(state, 1 | 2).then(|| {
            format!(
                "the GPU has not joined the NVLink fabric (state {state}): check that nvidia-fabricmanager is running"
            )
        })
    });
    if fabric.state != 3 {
        return;
    }
    let kind = CauseKind::FabricUnhealthy;
    let finding = match (fabric.status, fabric.health) {
        (0, Some(3)) => Finding::of(rules, kind, "the NVLink fabric works at limited capacity")
            .map(|finding| finding.severity(rules, Severity::Warning)),
        (0, Some(2)) => Finding::of(rules, kind, "the NVLink fabric is unhealthy"),
        (0, _) => None,
        (status, _) => Finding::of(rules, kind, format!("joining the NVLink fabric ended with NVML's error {status}")),
    };
    evaluation.note(kind, finding);
}

fn pcie(evaluation: &mut Evaluation<'_>, now: &Readings, baseline: &Baseline) {
    let Pcie { generation, max_generation, width, max_width, replays } = now.pcie;
    // An idle link is slow on purpose, but never narrow.
    let narrow = width.zip(max_width).map(|(now, most)| (now < most).then(|| format!("{now} of {most} lanes")));
    let slow = generation
        .zip(max_generation)
        .filter(|_| now.is_busy())
        .map(|(now, most)| (now < most).then(|| format!("generation {now} of {most} under load")));
    let read = (narrow.is_some() || slow.is_some()).then(|| narrow.flatten().or(slow.flatten()));
    evaluation.at(CauseKind::PcieLinkDegraded, read, |wrong| wrong.map(|wrong| format!("the PCIe link has {wrong}")));

    let rules = evaluation.rules;
    let limit = generation.zip(width).map(|(generation, width)| rules.replays_per_minute(generation, width));
    // A counter that decreased was reset.
    let rate = replays.zip(baseline.replays).filter(|(now, (then, elapsed))| now >= then && !elapsed.is_zero());
    let rate = rate.map(|(now, (then, elapsed))| per_minute(now - then, elapsed));
    evaluation.at(CauseKind::PcieReplays, rate.zip(limit), |(rate, limit)| {
        (rate > limit).then(|| format!("{rate} packets a minute are repeated on the PCIe link; the limit is {limit}"))
    });
}

fn per_minute(count: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(count) * 60_000 / elapsed.as_millis().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}
