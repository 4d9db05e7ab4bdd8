//! Parses durations of the command line.

use std::time::Duration;

/// Parses a duration such as `250ms`, `10s` or `5m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let value: u64 = number.parse().map_err(|_| format!("invalid duration {text}: write 500ms, 10s or 5m"))?;
    let duration = match &text[number.len()..] {
        "ms" => Duration::from_millis(value),
        "s" => Duration::from_secs(value),
        "m" => Duration::from_secs(value.saturating_mul(60)),
        _ => return Err(format!("duration {text} has no unit: write 500ms, 10s or 5m")),
    };
    if duration.is_zero() { Err("the duration must be greater than zero".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_value() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_mins(5)));
        for wrong in ["10", "s", "", "1h30", "0s", "-1s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
