//! The windows of a rollout: when updates begin. The binary contains the time zones, so the result depends neither on the image nor on the
//! environment.

use std::time::Duration;

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{RolloutWindow, Weekday},
    reason::Reason,
};
use jiff::{
    Timestamp, ToSpan, civil,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

use crate::{clock::Clock, inventory::membership::PoolProblems, time::later};

/// The limit in the schema.
const LONGEST: Duration = Duration::from_hours(168);
/// How far openings are searched for. Each window opens once a week; a clock change may delay it.
const DAYS: i32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Windows {
    Always,
    /// Until then.
    Open(Timestamp),
    /// From then on.
    Closed(Timestamp),
    /// The message includes what to write instead.
    Invalid(String),
}

impl Windows {
    pub fn of(windows: &[RolloutWindow], clock: &Clock) -> Self {
        if windows.is_empty() {
            return Self::Always;
        }
        let mut periods = Vec::new();
        for window in windows {
            match periods_of(window, clock) {
                Ok(found) => periods.extend(found),
                Err(why) => return Self::Invalid(why),
            }
        }
        periods.sort_by_key(|period| period.opens);
        // A window that opens before others close extends their period.
        let closes = periods
            .iter()
            .filter(|period| !clock.reached(period.closes))
            .fold(clock.now(), |until, period| if period.opens <= until { until.max(period.closes) } else { until });
        if !clock.reached(closes) {
            return Self::Open(closes);
        }
        let next = periods.iter().map(|period| period.opens).find(|opens| !clock.reached(*opens));
        Self::Closed(next.unwrap_or(Timestamp::MAX))
    }

    pub fn closing(&self) -> Option<Timestamp> {
        match self {
            Self::Open(closes) => Some(*closes),
            Self::Always | Self::Closed(_) | Self::Invalid(_) => None,
        }
    }

    /// Returns why no update begins now.
    pub fn closed(&self) -> Option<String> {
        match self {
            Self::Always | Self::Open(_) => None,
            Self::Closed(opens) => Some(format!("update pending: the next window of rollout.windows opens at {opens}")),
            Self::Invalid(why) => Some(format!("update pending: {why}")),
        }
    }
}

pub fn problem(windows: &[RolloutWindow]) -> Option<String> {
    windows.iter().find_map(|window| schedule(window).err())
}

pub fn pool_problems(policy: &ClusterGpuPolicy) -> PoolProblems {
    let pools = policy.spec.pools.iter();
    pools
        .filter_map(|pool| {
            Some((pool.name.clone(), (Reason::InvalidPolicy, problem(&pool.rollout.as_ref()?.windows)?)))
        })
        .collect()
}

/// While a window is open, without the end.
struct Period {
    opens: Timestamp,
    closes: Timestamp,
}

/// Returns the time of day and the time zone.
fn schedule(window: &RolloutWindow) -> Result<(civil::Time, TimeZone), String> {
    let name = window.time_zone.as_deref().unwrap_or("UTC");
    let zone = TimeZoneDatabase::bundled().get(name).map_err(|_| {
        format!(
            "rollout.windows: time zone {name} is unknown; write the name of a time zone of the IANA database, such as Europe/Berlin"
        )
    })?;
    let start = time_of_day(&window.start).ok_or_else(|| {
        format!("rollout.windows: start {} is not a time of day; write one such as \"22:00\"", window.start)
    })?;
    Ok((start, zone))
}

fn time_of_day(text: &str) -> Option<civil::Time> {
    let (hour, minute) = text.split_once(':')?;
    civil::Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

/// Returns the periods of a window around a time, and those of the following days.
fn periods_of(window: &RolloutWindow, clock: &Clock) -> Result<Vec<Period>, String> {
    let (start, zone) = schedule(window)?;
    let duration = Duration::from(window.duration).min(LONGEST);
    let today = zone.to_datetime(clock.now()).date();
    let dates = (-DAYS..=DAYS).filter_map(|days| today.checked_add(days.days()).ok());
    let dates = dates.filter(|date| window.days.is_empty() || window.days.iter().any(|day| is_on(*day, *date)));
    let opening = |date: civil::Date| opening(date.to_datetime(start), &zone);
    Ok(dates.filter_map(opening).map(|opens| Period { opens, closes: later(opens, duration) }).collect())
}

fn is_on(day: Weekday, date: civil::Date) -> bool {
    let day = match day {
        Weekday::Monday => civil::Weekday::Monday,
        Weekday::Tuesday => civil::Weekday::Tuesday,
        Weekday::Wednesday => civil::Weekday::Wednesday,
        Weekday::Thursday => civil::Weekday::Thursday,
        Weekday::Friday => civil::Weekday::Friday,
        Weekday::Saturday => civil::Weekday::Saturday,
        Weekday::Sunday => civil::Weekday::Sunday,
    };
    date.weekday() == day
}

/// Returns when the clock of a time zone shows a time: at the end of the gap if it skips the time, and the first time if it shows it twice.
fn opening(start: civil::DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let shown = zone.to_ambiguous_timestamp(start);
    match shown.offset() {
        AmbiguousOffset::Gap { after, .. } => {
            let before_gap = after.to_timestamp(start).ok()?;
            zone.following(before_gap).next().map(|change| change.timestamp())
        }
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => shown.compatible().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{
        collection::vec,
        option,
        prelude::*,
        sample::{select, subsequence},
    };

    fn at(time: &str) -> Timestamp {
        time.parse().expect("a time")
    }

    fn windows(written: &str) -> Vec<RolloutWindow> {
        serde_yaml::from_str(written).expect("windows")
    }

    /// Compares what applies at times with what is expected: `open` or `closed` until a time.
    fn check(written: &str, expected: &[(&str, &str, &str)]) {
        for (now, state, until) in expected {
            let until = at(until);
            let state = if *state == "open" { Windows::Open(until) } else { Windows::Closed(until) };
            assert_eq!(state_at(&windows(written), at(now)), state, "{written} at {now}");
        }
    }

    fn state_at(windows: &[RolloutWindow], time: Timestamp) -> Windows {
        Windows::of(windows, &Clock::at(time))
    }

    #[test]
    fn without_windows_updates_begin_at_any_time() {
        assert_eq!(state_at(&[], at("2026-01-01T00:00:00Z")), Windows::Always);
        assert_eq!(Windows::Always.closed(), None);
    }

    #[test]
    fn a_window_includes_its_start_and_not_its_end() {
        check(
            "[{start: '22:00', duration: 6h}]",
            &[
                ("2026-01-01T21:59:59Z", "closed", "2026-01-01T22:00:00Z"),
                ("2026-01-01T22:00:00Z", "open", "2026-01-02T04:00:00Z"),
                // Past midnight.
                ("2026-01-02T03:59:59Z", "open", "2026-01-02T04:00:00Z"),
                ("2026-01-02T04:00:00Z", "closed", "2026-01-02T22:00:00Z"),
            ],
        );
    }

    #[test]
    fn days_are_those_of_the_start_in_the_time_zone() {
        check(
            // 2026-01-05 is a Monday; Auckland is 13 hours ahead of UTC.
            "[{days: [Monday], start: '08:30', duration: 90m, timeZone: Pacific/Auckland}]",
            &[
                ("2026-01-04T19:29:59Z", "closed", "2026-01-04T19:30:00Z"),
                ("2026-01-04T19:30:00Z", "open", "2026-01-04T21:00:00Z"),
                ("2026-01-04T21:00:00Z", "closed", "2026-01-11T19:30:00Z"),
            ],
        );
        check(
            "[{days: [Sunday, Friday], start: '23:00', duration: 2h}]",
            &[
                ("2026-01-05T00:59:59Z", "open", "2026-01-05T01:00:00Z"),
                ("2026-01-05T01:00:00Z", "closed", "2026-01-09T23:00:00Z"),
                ("2026-01-10T01:00:00Z", "closed", "2026-01-11T23:00:00Z"),
            ],
        );
    }

    #[test]
    fn the_longest_window_is_always_open() {
        check(
            "[{days: [Monday], start: '00:00', duration: 168h}]",
            &[
                ("2026-01-05T00:00:00Z", "open", "2026-01-19T00:00:00Z"),
                ("2026-01-11T23:59:59Z", "open", "2026-01-26T00:00:00Z"),
            ],
        );
        // The API server rejects a longer one.
        check(
            "[{days: [Monday], start: '00:00', duration: 999h}]",
            &[("2026-01-05T00:00:00Z", "open", "2026-01-19T00:00:00Z")],
        );
    }

    #[test]
    fn of_several_windows_the_first_opens_and_the_last_closes() {
        check(
            "[{start: '04:00', duration: 2h}, {start: '02:00', duration: 3h}, {days: [Thursday], start: '06:00', duration: 1h}]",
            &[
                ("2026-01-01T01:00:00Z", "closed", "2026-01-01T02:00:00Z"),
                // 2026-01-01 is a Thursday: one window opens as another one closes.
                ("2026-01-01T02:00:00Z", "open", "2026-01-01T07:00:00Z"),
                ("2026-01-01T06:00:00Z", "open", "2026-01-01T07:00:00Z"),
                ("2026-01-02T02:00:00Z", "open", "2026-01-02T06:00:00Z"),
                ("2026-01-02T06:00:00Z", "closed", "2026-01-03T02:00:00Z"),
            ],
        );
        // One is open within another one.
        check(
            "[{start: '04:00', duration: 1h}, {start: '02:00', duration: 6h}]",
            &[("2026-01-01T04:30:00Z", "open", "2026-01-01T08:00:00Z")],
        );
    }

    #[test]
    fn a_skipped_start_is_at_the_end_of_the_gap() {
        // In Berlin 03:00 summer time follows 02:00, at 01:00 UTC.
        for start in ["02:00", "02:30", "02:59", "03:00"] {
            check(
                &format!("[{{start: '{start}', duration: 2h, timeZone: Europe/Berlin}}]"),
                &[
                    ("2026-03-29T00:59:59Z", "closed", "2026-03-29T01:00:00Z"),
                    ("2026-03-29T01:00:00Z", "open", "2026-03-29T03:00:00Z"),
                ],
            );
        }
        // The duration is elapsed time: from 23:00 to 06:00 on the clock.
        check(
            "[{start: '23:00', duration: 6h, timeZone: Europe/Berlin}]",
            &[("2026-03-28T22:00:00Z", "open", "2026-03-29T04:00:00Z")],
        );
    }

    #[test]
    fn a_repeated_start_is_the_first_one() {
        // In Berlin 02:00 follows 03:00 summer time, at 01:00 UTC.
        check(
            "[{start: '02:30', duration: 1h, timeZone: Europe/Berlin}]",
            &[
                ("2026-10-25T00:29:59Z", "closed", "2026-10-25T00:30:00Z"),
                ("2026-10-25T00:30:00Z", "open", "2026-10-25T01:30:00Z"),
                ("2026-10-25T01:30:00Z", "closed", "2026-10-26T01:30:00Z"),
            ],
        );
        // From 23:00 to 04:00 on the clock.
        check(
            "[{start: '23:00', duration: 6h, timeZone: Europe/Berlin}]",
            &[("2026-10-24T21:00:00Z", "open", "2026-10-25T03:00:00Z")],
        );
    }

    #[test]
    fn a_day_that_a_time_zone_skips_has_a_start() {
        // Samoa went from Thursday to Saturday, at 10:00 UTC.
        check(
            "[{days: [Friday], start: '12:00', duration: 1h, timeZone: Pacific/Apia}]",
            &[
                ("2011-12-30T09:59:59Z", "closed", "2011-12-30T10:00:00Z"),
                ("2011-12-30T10:00:00Z", "open", "2011-12-30T11:00:00Z"),
            ],
        );
    }

    #[test]
    fn invalid_windows_are_never_open() {
        const DAILY: &str = "{start: '00:00', duration: 24h}";
        for (window, message) in [
            (
                "{start: '00:00', duration: 24h, timeZone: Europe/Berlinn}",
                "rollout.windows: time zone Europe/Berlinn is unknown; write the name of a time zone of the IANA database, such as Europe/Berlin",
            ),
            (
                "{start: '24:00', duration: 24h}",
                "rollout.windows: start 24:00 is not a time of day; write one such as \"22:00\"",
            ),
        ] {
            let windows = windows(&format!("[{DAILY}, {window}]"));
            let state = state_at(&windows, at("2026-01-01T00:00:00Z"));
            assert_eq!(state, Windows::Invalid(message.to_owned()));
            assert_eq!(problem(&windows).as_deref(), Some(message));
            assert_eq!(state.closed(), Some(format!("update pending: {message}")));
        }
        assert_eq!(problem(&windows(&format!("[{DAILY}]"))), None);
    }

    #[test]
    fn the_time_of_the_next_plan_is_when_windows_change() {
        for (time, next) in [("20:00:00Z", "21:00:00Z"), ("21:30:00Z", "23:00:00Z")] {
            let clock = Clock::at(at(&format!("2026-12-01T{time}")));
            let state = Windows::of(&windows("[{start: \"21:00\", duration: 2h}]"), &clock);
            let next = at(&format!("2026-12-01T{next}"));
            assert_eq!(clock.next(), Some(next));
            let pending = format!("update pending: the next window of rollout.windows opens at {next}");
            assert_eq!(state.closed(), (state == Windows::Closed(next)).then_some(pending));
        }
    }

    fn window() -> impl Strategy<Value = RolloutWindow> {
        let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns", "Africa/Cairo"];
        let days = [
            Weekday::Monday,
            Weekday::Tuesday,
            Weekday::Wednesday,
            Weekday::Thursday,
            Weekday::Friday,
            Weekday::Saturday,
            Weekday::Sunday,
        ];
        (subsequence(days.to_vec(), 0..=7), 0..24, 0..60, 1..=168 * 3600_u64, option::of(select(zones.to_vec())))
            .prop_map(|(days, hour, minute, seconds, zone)| RolloutWindow {
                days,
                start: format!("{hour:02}:{minute:02}"),
                duration: Duration::from_secs(seconds).into(),
                time_zone: zone.map(Into::into),
            })
    }

    proptest! {
        #[test]
        fn a_window_is_open_or_opens_within_eight_days(
            windows in vec(window(), 1..4),
            // From 1970 to 2100.
            now in 0..4_102_444_800_i64,
        ) {
            let now = Timestamp::from_second(now).expect("a time");
            let soon = later(now, Duration::from_hours(8 * 24));
            match state_at(&windows, now) {
                Windows::Open(closes) => {
                    prop_assert!(closes > now);
                    let before = Timestamp::from_second(closes.as_second() - 1).expect("a time");
                    prop_assert!(matches!(state_at(&windows, before), Windows::Open(_)));
                }
                Windows::Closed(opens) => {
                    prop_assert!(opens > now && opens <= soon, "{opens}");
                    prop_assert!(matches!(state_at(&windows, opens), Windows::Open(_)));
                    let before = Timestamp::from_second(opens.as_second() - 1).expect("a time");
                    prop_assert_eq!(state_at(&windows, before), Windows::Closed(opens));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
