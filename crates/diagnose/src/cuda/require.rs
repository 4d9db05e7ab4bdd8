//! `NVIDIA_REQUIRE_CUDA`: what NVIDIA's container runtime requires of a driver before it starts a container.

use std::cmp::Ordering;

use gpu_operator_common::version as dotted;

/// Returns whether no alternative can hold. Alternatives are separated by spaces, and the conditions of an alternative by
/// commas. Conditions on values that are unknown here, such as a GPU's brand, are assumed to hold.
pub fn fails(required: &str, cuda: super::version::Version, driver: &str) -> bool {
    let mut alternatives = required.split(' ').filter(|alternative| !alternative.is_empty()).peekable();
    let cuda = cuda.to_string();
    alternatives.peek().is_some()
        && alternatives.all(|alternative| {
            alternative.split(',').any(|condition| {
                let value = |name: &str| match name {
                    "cuda" => Some(cuda.as_str()),
                    "driver" => Some(driver),
                    _ => None,
                };
                holds(condition, value) == Some(false)
            })
        })
}

/// Returns whether a condition such as `cuda>=11.7` holds, or `None` if that is unknown.
fn holds<'v>(condition: &str, value: impl Fn(&str) -> Option<&'v str>) -> Option<bool> {
    let at = condition.find(['<', '>', '=', '!'])?;
    let (name, rest) = condition.split_at(at);
    let end = rest.find(|letter: char| !"<>=!".contains(letter))?;
    let (operator, wanted) = rest.split_at(end);
    let version = |text: &str| text.parse::<dotted::Version>().ok();
    let order = version(value(name)?)?.cmp(&version(wanted)?);
    Some(match operator {
        "=" | "==" => order == Ordering::Equal,
        "!=" => order != Ordering::Equal,
        ">=" => order != Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        "<" => order == Ordering::Less,
        _ => return None,
    })
}
