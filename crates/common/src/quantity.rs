//! Quantities of resources, as Kubernetes writes them: `8`, `1k`, `2Ki`, `1e3`, `500m`.
//!
//! The API server stores a quantity in its shortest form, so that 1000 devices become `1k`. The grammar, the precision and the
//! rounding are those of `resource.Quantity` in `k8s.io/apimachinery`.

use std::str::FromStr;

use thiserror::Error;

/// Nanounits in a unit.
const NANO: u128 = 1_000_000_000;
/// The exponent of [`NANO`].
const NANO_EXPONENT: i32 = 9;
/// The greatest magnitude of an amount, in nanounits: `i64::MAX` units.
const MAX: u128 = i64::MAX.unsigned_abs() as u128 * NANO;

/// How much a quantity stands for, precise to a billionth of its unit. Amounts beyond that are rounded away from zero, and
/// amounts beyond the range of `i64` are its bound. Two texts that mean the same, such as `1000m` and `1`, are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    nanos: i128,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("\"{0}\" is not a quantity; a quantity is a number with an optional suffix, such as 8, 1k, 2Ki, 500m or 1e3")]
pub struct InvalidQuantity(String);

/// A text that does not count anything.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum InvalidCount {
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
    #[error("\"{0}\" is not a count; a count is not below zero")]
    Negative(String),
}

/// Returns a number of things, such as devices, rounded up to whole ones. What exceeds the range of `u32` is its greatest
/// number.
pub fn count(text: &str) -> Result<u32, InvalidCount> {
    let units = text.parse::<Amount>()?.whole_units();
    let units = u64::try_from(units).map_err(|_| InvalidCount::Negative(text.to_owned()))?;
    Ok(u32::try_from(units).unwrap_or(u32::MAX))
}

impl Amount {
    /// Returns the amount in whole units, rounded away from zero: 1 of `500m`, 2 of `1.5`.
    pub fn whole_units(self) -> i64 {
        let magnitude = i64::try_from(self.nanos.unsigned_abs().div_ceil(NANO)).unwrap_or(i64::MAX);
        if self.nanos < 0 { -magnitude } else { magnitude }
    }
}

impl FromStr for Amount {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidQuantity(text.to_owned());
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(invalid());
        }
        let scale = scale(suffix).ok_or_else(invalid)?;
        let nanos = i128::try_from(nanos(whole, fraction, scale).min(MAX)).unwrap_or(i128::MAX);
        Ok(Self { nanos: if negative { -nanos } else { nanos } })
    }
}

/// The factor that a suffix stands for.
#[derive(Clone, Copy)]
enum Scale {
    /// A power of ten, by its exponent.
    Decimal(i32),
    /// A power of two, by its exponent.
    Binary(u32),
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "" => Scale::Decimal(0),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        exponent => Scale::Decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

/// Returns `whole.fraction` times its scale in nanounits, rounded up; `u128::MAX` where that is too much to be computed.
fn nanos(whole: &str, fraction: &str, scale: Scale) -> u128 {
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let (factor, exponent) = match scale {
        Scale::Decimal(exponent) => (1, exponent),
        Scale::Binary(power) => (1 << power, 0),
    };
    let exponent = exponent.saturating_add(NANO_EXPONENT).saturating_sub(places);
    let power_of_ten = 10_u128.checked_pow(exponent.unsigned_abs());
    let digits = digits.parse::<u128>().ok().and_then(|digits| digits.checked_mul(factor));
    let result = match (digits, power_of_ten) {
        (Some(digits), Some(divisor)) if exponent < 0 => Some(digits.div_ceil(divisor)),
        // Less than one, where even the divisor is out of range.
        (Some(_), None) if exponent < 0 => Some(1),
        (Some(digits), Some(power_of_ten)) => digits.checked_mul(power_of_ten),
        _ => None,
    };
    result.unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_units_follow_kubernetes() {
        for (text, expected) in [
            ("0", 0),
            ("8", 8),
            ("+8", 8),
            ("-1", -1),
            ("007", 7),
            ("1k", 1_000),
            ("2Ki", 2_048),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1e+3", 1_000),
            ("12e-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1_152_921_504_606_846_976),
            ("3M", 3_000_000),
            ("3Mi", 3_145_728),
            ("2G", 2_000_000_000),
            ("2Gi", 2_147_483_648),
            ("4T", 4_000_000_000_000),
            ("4Ti", 4_398_046_511_104),
            ("1P", 1_000_000_000_000_000),
            ("1Pi", 1_125_899_906_842_624),
            ("500m", 1),
            ("1000m", 1),
            ("1001m", 2),
            ("-500m", -1),
            ("1u", 1),
            ("1n", 1),
            ("0n", 0),
            ("1.5", 2),
            ("1.0", 1),
            ("1.", 1),
            (".5", 1),
            ("1.5k", 1_500),
            ("0.5Ki", 512),
            ("1e-400", 1),
            ("0e400", 0),
        ] {
            assert_eq!(text.parse().map(Amount::whole_units), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_exceeds_the_range_is_its_bound() {
        for text in ["9223372036854775808", "8Ei", "10E", "1e30", "1e400", "1e2147483647", &"9".repeat(100)] {
            assert_eq!(text.parse().map(Amount::whole_units), Ok(i64::MAX), "{text}");
            assert_eq!(format!("-{text}").parse().map(Amount::whole_units), Ok(-i64::MAX), "{text}");
            assert_eq!(count(text), Ok(u32::MAX), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_an_error_that_names_it() {
        for text in
            ["", "abc", "k", "-", ".", "1.2.3", "1 k", " 8", "1K", "1ki", "1kk", "1e", "1e3k", "1e1.5", "--1", "1-"]
        {
            let error = text.parse::<Amount>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is not a quantity")), "{error}");
        }
    }

    #[test]
    fn a_count_is_not_below_zero() {
        assert_eq!(count("1k"), Ok(1_000));
        assert_eq!(count("-1"), Err(InvalidCount::Negative("-1".to_owned())));
    }

    #[test]
    fn amounts_are_compared_to_a_billionth() {
        let amount = |text: &str| text.parse::<Amount>().unwrap();
        for (a, b) in
            [("1", "1000m"), ("1Gi", "1024Mi"), ("1.5G", "1500M"), ("1P", "1e15"), ("0.1n", "1n"), ("-0", "0")]
        {
            assert_eq!(amount(a), amount(b), "{a} and {b}");
        }
        for (less, more) in [("1n", "2n"), ("999999999n", "1"), ("1G", "1Gi"), ("-1", "0"), ("1", "1.000000001")] {
            assert!(amount(less) < amount(more), "{less} and {more}");
        }
    }
}
