//! One figure of whatever was measured.

use crate::audit::Requests;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// A figure of any `F`.
pub(super) struct Row<F> {
    pub what: &'static str,
    decimals: usize,
    pub value: fn(&F) -> f64,
    /// What it may be at most.
    limit: Option<fn(&F) -> f64>,
}

impl<F> Row<F> {
    /// A whole number.
    pub const fn count(what: &'static str, value: fn(&F) -> f64) -> Self {
        Self { what, decimals: 0, value, limit: None }
    }

    /// A number with one decimal.
    pub const fn measure(what: &'static str, value: fn(&F) -> f64) -> Self {
        Self { what, decimals: 1, value, limit: None }
    }

    /// With what it may be at most.
    pub const fn at_most(self, limit: fn(&F) -> f64) -> Self {
        Self { what: self.what, decimals: self.decimals, value: self.value, limit: Some(limit) }
    }

    /// A number as this figure is written.
    pub fn number(&self, value: f64) -> String {
        number(value, self.decimals)
    }

    /// The figure, beside its limit.
    pub fn cell(&self, of: &F) -> String {
        let value = self.number((self.value)(of));
        match self.limit {
            Some(limit) => format!("{value} (at most {})", self.number(limit(of))),
            None => value,
        }
    }

    /// A sentence if the figure is above its limit.
    pub fn missed(&self, of: &F) -> Option<String> {
        let (value, limit) = ((self.value)(of), self.limit?(of));
        (value > limit)
            .then(|| format!("{}: {}, and not at most {}", self.what, self.number(value), self.number(limit)))
    }
}

/// A number with its thousands apart, as in `12,756`.
pub(super) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// How many requests.
pub(super) fn requests(requests: &Requests) -> f64 {
    float(requests.count())
}

/// Exact up to four thousand million.
pub(super) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Bytes as MiB, in whole KiB as the kernel counts.
pub(super) fn mib(bytes: u64) -> f64 {
    u32::try_from(bytes / 1024).map_or(f64::INFINITY, f64::from) * KIB / MIB
}

/// What the operator may take of memory, in MiB.
pub(super) fn memory_limit(nodes: u32, gpus: u32) -> f64 {
    32.0 + (f64::from(nodes) * 8.0 + f64::from(gpus)) / KIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_its_limit_is_told_with_both_numbers() {
        let row = Row::measure("memory, MiB", |of: &f64| *of).at_most(|_| 16.0);
        assert_eq!(row.missed(&16.0), None);
        assert_eq!(row.missed(&1_016.04).as_deref(), Some("memory, MiB: 1,016.0, and not at most 16.0"));
        assert_eq!(row.cell(&3.0), "3.0 (at most 16.0)");
        assert_eq!(Row::count("any", |of: &f64| *of).missed(&1e9), None);
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(1_322.04, 1), "1,322.0");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
    }

    #[test]
    fn memory_is_written_in_mebibytes() {
        assert_eq!(number(mib(33 << 20), 1), "33.0");
        assert_eq!(number(memory_limit(1_000, 8_000), 1), "47.6");
    }
}
