//! The policy of a fleet, as the settings that the laws are about.

pub const OLD: &str = "595.91.07";
pub const NEW: &str = "590.10.01";
pub const THIRD: &str = "580.173.02";
/// Of a release that fixes [`NEW`].
pub const NEXT: &str = "595.95.01";
/// The driver that the operator recommends: [`OLD`], until another release of the operator recommends another.
pub const DEFAULT: &str = "";

/// In place of a device plugin's settings: the DRA driver.
pub const CLAIMS: &str = "by claims";

/// How long canary nodes have to work.
pub const SOAK: i64 = 600;

/// The labels by which a user selects nodes: for the policy, and for its pool.
pub const SELECTED: (&str, &str) = ("gpu", "yes");
pub const POOLED: (&str, &str) = ("tier", "p");

#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
#[derive(Clone, Debug)]
pub struct Policy {
    /// Of the pool `p`. All other nodes have [`OLD`], or what the operator recommends if the pool has that.
    pub driver: &'static str,
    /// The settings of the device plugin, as YAML, or [`CLAIMS`].
    pub plugin: &'static str,
    pub mode: &'static str,
    /// Further settings of `gpuPods`, as YAML.
    pub gpu_pods: &'static str,
    pub windows: &'static str,
    pub has_canary: bool,
    pub max_failures: u32,
    pub max_parallel: u32,
    pub rolls_back: bool,
    pub is_paused: bool,
    /// Whether it has settings that concern no GPU of the fleet, and no revision.
    pub has_more: bool,
    pub tolerates_all: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            driver: OLD,
            plugin: "{}",
            mode: "Leave",
            gpu_pods: "",
            windows: "[]",
            has_canary: false,
            max_failures: 1,
            max_parallel: 1,
            rolls_back: false,
            is_paused: false,
            has_more: false,
            tolerates_all: true,
        }
    }
}

impl Policy {
    pub fn yaml(&self) -> String {
        let Self { plugin, mode, gpu_pods, windows, max_failures, max_parallel, is_paused, .. } = self;
        let [driver, of_others] = if self.driver == DEFAULT {
            [String::from("{}"), "{}".into()]
        } else {
            [self.driver, OLD].map(|version| format!("{{version: {version}}}"))
        };
        let canary = if self.has_canary { format!("canary: {{nodes: 1, soak: {SOAK}s}}, ") } else { String::new() };
        let on_failure = if self.rolls_back { "RollBack" } else { "Halt" };
        let more =
            if self.has_more { "models: [{name: nvidia-custom, pciIDs: [fff1], architecture: Kepler}], " } else { "" };
        let tolerations = if self.tolerates_all { "" } else { ", tolerations: [{key: other, operator: Exists}]" };
        let labels = |(key, value): (&str, &str)| format!("{{matchLabels: {{{key}: '{value}'}}}}");
        let (selected, pooled) = (labels(SELECTED), labels(POOLED));
        let allocation =
            if *plugin == CLAIMS { "allocation: {mode: DRA}".to_owned() } else { format!("devicePlugin: {plugin}") };
        format!(
            "{{nodeSelector: {selected}, {more}rollout: {{maxParallel: {max_parallel}, maxUnavailable: 3, \
             maxFailures: {max_failures}, onFailure: {on_failure}, paused: {is_paused}, {canary}windows: {windows}, \
             gpuPods: {{mode: {mode}{gpu_pods}}}}}, defaults: {{driver: {of_others}{tolerations}}}, \
             pools: [{{name: p, match: {{nodeSelector: {pooled}}}, driver: {driver}, {allocation}}}]}}"
        )
    }
}
