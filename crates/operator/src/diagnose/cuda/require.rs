//! `NVIDIA_REQUIRE_CUDA`: what NVIDIA's container runtime wants of a driver before it starts a container.

use std::cmp::Ordering;

/// Whether no alternative can hold. Alternatives stand apart by spaces, the conditions of one by commas. What is not known
/// here, such as a GPU's brand, may hold.
pub fn fails(required: &str, cuda: super::Version, driver: &str) -> bool {
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

/// Whether a condition such as `cuda>=11.7` holds, as far as that is known.
fn holds<'v>(condition: &str, value: impl Fn(&str) -> Option<&'v str>) -> Option<bool> {
    let at = condition.find(['<', '>', '=', '!'])?;
    let (name, rest) = condition.split_at(at);
    let end = rest.find(|letter: char| !"<>=!".contains(letter))?;
    let (operator, wanted) = rest.split_at(end);
    let order = compare(value(name)?, wanted)?;
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

/// Compares versions part by part; a part that is not there is zero.
fn compare(a: &str, b: &str) -> Option<Ordering> {
    let parts = |text: &str| text.split('.').map(|part| part.parse::<u32>().ok()).collect::<Option<Vec<u32>>>();
    let (mut a, mut b) = (parts(a)?, parts(b)?);
    let length = a.len().max(b.len());
    a.resize(length, 0);
    b.resize(length, 0);
    Some(a.cmp(&b))
}
