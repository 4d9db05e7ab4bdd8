//! A law of every plan: until the time at which it says that it may change, it stays the same. What it records of the present moves along.

use gpu_operator_plan::{catalogue::Catalogue, plan, settings::Settings, world::World};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// How far into the future plans without a next time are made again.
const FAR: SignedDuration = SignedDuration::from_hours(24 * 400);

/// Two later plans are compared: the present one may leave out a status that was written within the same second.
///
/// # Errors
/// If the plan changes before its next time: what differs.
pub fn is_constant(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Result<(), String> {
    let next = plan(settings, catalogue, world, now).check_again;
    let last = next.map_or(FAR, |next| next.duration_since(now)) - SignedDuration::from_nanos(1);
    let times = [now + last / 3, now + last];
    let [before, after] = times.map(|time| {
        let plan = plan(settings, catalogue, world, time);
        serde_json::to_value((plan.writes, plan.questions, plan.statuses)).expect("plain data")
    });
    compare(&before, &after, times[1].duration_since(times[0]), "plan")
        .map_err(|what| format!("the plan at {now} says {next:?}, but between {times:?}: {what}"))
}

fn compare(before: &Value, after: &Value, shift: SignedDuration, path: &str) -> Result<(), String> {
    match (before, after) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            let mut pairs = one.iter().zip(other.values());
            pairs.try_for_each(|((key, one), other)| compare(one, other, shift, &format!("{path}.{key}")))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.try_for_each(|(index, (one, other))| compare(one, other, shift, &format!("{path}[{index}]")))
        }
        _ if before == after || moves_along(before, after, shift) => Ok(()),
        _ => Err(format!("{path}: {before} became {after}")),
    }
}

/// Returns whether two texts differ only in times that are as far apart as the plans. Times are stored in whole seconds.
fn moves_along(before: &Value, after: &Value, shift: SignedDuration) -> bool {
    let words = |value: &Value| Some(value.as_str()?.split([' ', ',', ';']).map(str::to_owned).collect::<Vec<_>>());
    let Some((before, after)) = words(before).zip(words(after)) else { return false };
    let time = |word: &str| word.parse::<Timestamp>().ok();
    let moved = |(one, other): (&String, &String)| {
        let apart = time(one).zip(time(other)).map(|(one, other)| other.duration_since(one) - shift);
        one == other || apart.is_some_and(|apart| apart.abs() <= SignedDuration::from_secs(1))
    };
    before.len() == after.len() && before.iter().zip(&after).all(moved)
}
