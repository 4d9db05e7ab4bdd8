//! One figure of a measurement: a row of a table.

use cluster_client::audit::Requests;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// A figure that is computed from an `F`.
pub(super) struct Row<F> {
    pub what: &'static str,
    decimals: usize,
    pub value: fn(&F) -> f64,
    /// The maximum allowed value.
    limit: Option<fn(&F) -> f64>,
}

impl<F> Row<F> {
    /// Creates a figure that is a whole number.
    pub const fn count(what: &'static str, value: fn(&F) -> f64) -> Self {
        Self { what, decimals: 0, value, limit: None }
    }

    /// Creates a figure with one decimal.
    pub const fn measure(what: &'static str, value: fn(&F) -> f64) -> Self {
        Self { what, decimals: 1, value, limit: None }
    }

    /// Sets the maximum allowed value.
    pub const fn at_most(self, limit: fn(&F) -> f64) -> Self {
        Self { what: self.what, decimals: self.decimals, value: self.value, limit: Some(limit) }
    }

    /// Formats a number with this figure's decimals.
    pub fn number(&self, value: f64) -> String {
        number(value, self.decimals)
    }

    /// Formats the figure and its limit.
    pub fn cell(&self, of: &F) -> String {
        let value = self.number((self.value)(of));
        match self.limit {
            Some(limit) => format!("{value} (at most {})", self.number(limit(of))),
            None => value,
        }
    }

    /// Returns a message if the figure is above its limit.
    pub fn exceeded(&self, of: &F) -> Option<String> {
        let (value, limit) = ((self.value)(of), self.limit?(of));
        (value > limit).then(|| format!("{}: {} (limit {})", self.what, self.number(value), self.number(limit)))
    }
}

/// Formats a number with separators of thousands, such as `12,756`.
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

/// Returns the number of requests.
pub(super) fn requests(requests: &Requests) -> f64 {
    float(requests.count())
}

/// Converts a count; it is exact up to 4,000,000,000.
pub(super) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Converts bytes to MiB, in whole KiB as the kernel counts.
pub(super) fn mib(bytes: u64) -> f64 {
    u32::try_from(bytes / 1024).map_or(f64::INFINITY, f64::from) * KIB / MIB
}

/// Returns the operator's limit of memory, in MiB.
pub(super) fn memory_limit(nodes: u32, gpus: u32) -> f64 {
    32.0 + (f64::from(nodes) * 8.0 + f64::from(gpus)) / KIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_limit_is_reported_with_both_numbers() {
        let row = Row::measure("memory, MiB", |of: &f64| *of).at_most(|_| 16.0);
        assert_eq!(row.exceeded(&16.0), None);
        assert_eq!(row.exceeded(&1_016.04).as_deref(), Some("memory, MiB: 1,016.0 (limit 16.0)"));
        assert_eq!(row.cell(&3.0), "3.0 (at most 16.0)");
        assert_eq!(Row::count("any", |of: &f64| *of).exceeded(&1e9), None);
    }

    #[test]
    fn thousands_are_separated() {
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
