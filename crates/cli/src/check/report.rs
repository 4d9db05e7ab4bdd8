//! The report of all checks, and its text.

use serde::Serialize;
use strum::IntoEnumIterator;

use crate::{
    check::{
        cluster,
        code::{Category, Check, Severity},
        facts::{Facts, Judged, Judgement},
        fleet, installation, namespace,
    },
    context::Outcome,
    output::{Screen, Tone, WIDTH, columns, wrap},
    read::ReadError,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether no check has failed. Warnings are no failures.
    pub success: bool,
    pub categories: Vec<OfCategory>,
}

impl Report {
    pub fn outcome(&self) -> Outcome {
        if self.success { Outcome::Good } else { Outcome::Bad }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfCategory {
    pub name: Category,
    pub checks: Vec<Checked>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    pub code: Check,
    pub result: CheckResult,
    /// What was found, or why the check was skipped.
    pub finding: String,
    /// What to do. Absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The title of the page of the documentation that lists the check by its code.
    pub page: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckResult {
    Passed,
    /// It does not pass, and something may not work as expected.
    Warning,
    /// It does not pass, and something does not work.
    Failed,
    /// It could not be made, or had nothing to judge.
    Skipped,
}

/// Returns the report of the checks before or after the installation. Without categories, all are included.
pub fn report(facts: &Facts, before: bool, categories: &[Category]) -> Report {
    let is_wanted = |category: &Category| categories.is_empty() || categories.contains(category);
    let of_category = |category: Category| {
        let checks = Check::iter().filter(|check| check.category() == category && check.applies(before));
        OfCategory { name: category, checks: checks.map(|check| checked(check, facts)).collect() }
    };
    let categories: Vec<OfCategory> = Category::iter().filter(is_wanted).map(of_category).collect();
    let categories: Vec<OfCategory> = categories.into_iter().filter(|category| !category.checks.is_empty()).collect();
    let failed =
        categories.iter().flat_map(|category| &category.checks).any(|check| check.result == CheckResult::Failed);
    Report { success: !failed, categories }
}

fn checked(check: Check, facts: &Facts) -> Checked {
    let (result, finding, fix) = match judge(check, facts) {
        Ok(Judgement::Good(finding)) => (CheckResult::Passed, finding, None),
        Ok(Judgement::Skipped(why)) => (CheckResult::Skipped, why, None),
        Ok(Judgement::Bad { finding, fix }) => {
            let result = match check.severity() {
                Severity::Error => CheckResult::Failed,
                Severity::Warning => CheckResult::Warning,
            };
            (result, finding, Some(fix))
        }
        Err(error) => {
            let (finding, fix) = unread(error);
            (CheckResult::Skipped, finding, fix)
        }
    };
    Checked { code: check, result, finding, fix, page: check.page_title() }
}

/// Returns why facts are missing, and what to do.
fn unread(error: &ReadError) -> (String, Option<String>) {
    match error {
        ReadError::Forbidden(right) => {
            let fix = "run this as a user with the rights; the ClusterRole nodestack-gpu-operator-cli of the chart contains them";
            (format!("the right to {right} is missing"), Some(fix.to_owned()))
        }
        ReadError::NotInstalled(resource) => (format!("the cluster does not have the resource {resource}"), None),
        ReadError::Unreachable(_) | ReadError::Rejected(..) => (error.to_string(), None),
    }
}

pub fn judge(check: Check, facts: &Facts) -> Judged<'_> {
    match check {
        Check::KubernetesVersion => cluster::kubernetes_version(facts),
        Check::InstallRights => cluster::install_rights(facts),
        Check::AdmissionPolicyApi => cluster::admission_policy_api(facts),
        Check::SingleInstallation => cluster::single_installation(facts),
        Check::LeftoverCrds => cluster::leftover_crds(facts),
        Check::OperatorPlacement => cluster::operator_placement(facts),
        Check::KubeletSkew => cluster::kubelet_skew(facts),
        Check::ContainerRuntime => cluster::container_runtime(facts),
        Check::RuntimeCdi => cluster::runtime_cdi(facts),
        Check::DriverImage => cluster::driver_image(facts),
        Check::PodSecurity => namespace::pod_security(facts),
        Check::ComputeQuota => namespace::compute_quota(facts),
        Check::PodQuota => namespace::pod_quota(facts),
        Check::DefaultLimits => namespace::default_limits(facts),
        Check::BlockingWebhooks => namespace::blocking_webhooks(facts),
        Check::NvidiaOperator => cluster::nvidia_operator(facts),
        Check::GkeAddOn => cluster::gke_add_on(facts),
        Check::DraDriver => cluster::dra_driver(facts),
        Check::ThirdPartyStack => cluster::third_party_stack(facts),
        Check::CrdsInstalled => installation::crds_installed(facts),
        Check::CrdSchema => installation::crd_schema(facts),
        Check::OperatorAvailable => installation::operator_available(facts),
        Check::OperatorVersion => installation::operator_version(facts),
        Check::ProbeVersion => installation::probe_version(facts),
        Check::DetectorReady => installation::detector_ready(facts),
        Check::ProbeReady => installation::probe_ready(facts),
        Check::PodsAdmitted => installation::pods_admitted(facts),
        Check::ImagesPulled => installation::images_pulled(facts),
        Check::AdmissionPolicies => installation::admission_policies(facts),
        Check::NodesReady => fleet::nodes_ready(facts),
        Check::ProbesReport => fleet::probes_report(facts),
        Check::NodesWithoutPolicy => fleet::nodes_without_policy(facts),
        Check::PoliciesAccepted => fleet::policies_accepted(facts),
        Check::PoliciesProgress => fleet::policies_progress(facts),
        Check::PolicyOverlap => fleet::policy_overlap(facts),
        Check::NodesProgress => fleet::nodes_progress(facts),
        Check::RuntimeClasses => fleet::runtime_classes(facts),
        Check::GpusHealthy => fleet::gpus_healthy(facts),
    }
}

const INDENT: usize = 4;

pub fn text(report: &Report, screen: Screen) -> String {
    let mut lines = Vec::new();
    for category in &report.categories {
        lines.push(screen.paint(Tone::Strong, category.name.title()));
        for check in &category.checks {
            add(&mut lines, check, screen);
        }
        lines.push(String::new());
    }
    // The same for all of them.
    let checks = report.categories.iter().flat_map(|category| &category.checks);
    let mut unread = checks.filter(|check| check.result == CheckResult::Skipped).filter_map(|check| check.fix.as_ref());
    if let Some(fix) = unread.next() {
        lines.extend(wrap(&format!("For skipped checks: {fix}"), "", 0));
    }
    lines.push(sum(report));
    lines.join("\n") + "\n"
}

fn add(lines: &mut Vec<String>, check: &Checked, screen: Screen) {
    let tone = match check.result {
        CheckResult::Passed => Tone::Good,
        CheckResult::Warning => Tone::Warning,
        CheckResult::Failed => Tone::Bad,
        CheckResult::Skipped => Tone::Quiet,
    };
    let (mark, title) = (screen.mark(tone), check.code.title());
    match check.result {
        CheckResult::Passed => lines.extend(wrap(&format!("{title}: {}", check.finding), &format!("{mark} "), INDENT)),
        CheckResult::Skipped => {
            lines.extend(wrap(&format!("{title}: skipped: {}", check.finding), &format!("{mark} "), INDENT));
        }
        CheckResult::Warning | CheckResult::Failed => {
            lines.push(format!("{mark} {title}"));
            let indent = " ".repeat(INDENT);
            lines.extend(wrap(&check.finding, &indent, INDENT));
            if let Some(fix) = &check.fix {
                lines.extend(fix_lines(fix, &indent));
            }
            lines.push(screen.paint(Tone::Quiet, &format!("{indent}See: {} in {}", check.code.code(), check.page)));
        }
    }
}

/// Returns the lines of a fix. The lines of a command can be copied into a shell.
fn fix_lines(fix: &str, indent: &str) -> Vec<String> {
    const BREAK: &str = " \\";
    if !fix.starts_with("kubectl ") {
        return wrap(&format!("Fix: {fix}"), indent, INDENT);
    }
    let mut lines = vec![format!("{indent}Fix:")];
    for word in fix.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) + columns(BREAK) <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            last => {
                if let Some(line) = last {
                    line.push_str(BREAK);
                }
                lines.push(format!("{indent}  {word}"));
            }
        }
    }
    lines
}

fn sum(report: &Report) -> String {
    let checks = || report.categories.iter().flat_map(|category| &category.checks);
    let number = |result: CheckResult| checks().filter(|check| check.result == result).count();
    let warnings = number(CheckResult::Warning);
    let noun = if warnings == 1 { "warning" } else { "warnings" };
    format!(
        "{} checks: {} passed, {warnings} {noun}, {} failed, {} skipped",
        checks().count(),
        number(CheckResult::Passed),
        number(CheckResult::Failed),
        number(CheckResult::Skipped)
    )
}
