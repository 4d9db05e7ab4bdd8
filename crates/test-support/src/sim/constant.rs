//! A law of every plan: until the time at which it says that it may change, it stays the same. What it records of the present moves along.

use gpu_operator_plan::{
    Plan,
    catalogue::Catalogue,
    output::{
        body::{Body, Kind},
        write::Write,
    },
    plan,
    settings::Settings,
    world::World,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// How far into the future plans without a next time are made again.
const FAR: SignedDuration = SignedDuration::from_hours(24 * 400);

/// # Errors
/// If the plan of a time before its next one is another one: what differs.
pub fn is_constant(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Result<(), String> {
    let planned = plan(settings, catalogue, world, now);
    let wait = planned.check_again.map_or(FAR, |next| next.duration_since(now));
    let last = wait - SignedDuration::from_nanos(1);
    for shift in [last / 3, last] {
        let later = plan(settings, catalogue, world, now + shift);
        let [before, after] = [&planned, &later].map(|plan| serde_json::to_value((writes(plan), &plan.questions)));
        let (Ok(before), Ok(after)) = (before, after) else { return Err("a plan cannot be serialized".to_owned()) };
        compare(&before, &after, shift, "plan")
            .map_err(|what| format!("the plan at {now} says {:?}, but {shift} later: {what}", planned.check_again))?;
    }
    Ok(())
}

/// The phases of a node whose record is written as well begin now.
fn writes(plan: &Plan) -> Vec<&Write> {
    let is_of = |write: &Write, body: fn(&Body) -> bool| write.target.kind == Kind::GpuNode && body(&write.body);
    let recorded = |name: &str| {
        let mut records = plan.writes.iter().filter(|write| is_of(write, |body| matches!(body, Body::Spec(_))));
        records.any(|write| write.target.name == name)
    };
    let counts =
        |write: &&Write| !(is_of(write, |body| matches!(body, Body::Status(_))) && recorded(&write.target.name));
    plan.writes.iter().filter(counts).collect()
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
