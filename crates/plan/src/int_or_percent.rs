//! Amounts in a policy that are a number or a percentage.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Returns the wanted amount of `all`. A percentage is rounded up; a number may be greater than `all`.
pub fn of(wanted: &IntOrString, all: u32) -> u32 {
    match wanted {
        IntOrString::Int(number) => u32::try_from(*number).unwrap_or_default(),
        IntOrString::String(percent) => {
            let percent: u32 = percent.trim_end_matches('%').parse().unwrap_or(100);
            (all * percent).div_ceil(100)
        }
    }
}
