//! The CUDA version in an image's reference, if it is unambiguous.

use std::collections::BTreeSet;

use super::version::Version;

/// Returns the CUDA version of an image, from the tag of `nvidia/cuda`, or from words such as `cuda11.7.1` and `cu128` in the
/// last part of its name or in its tag. Returns `None` if there is no version, or more than one.
pub fn cuda_of(image: &str) -> Option<Version> {
    let image = image.split('@').next().unwrap_or_default();
    let (path, last) = image.rsplit_once('/').unwrap_or(("", image));
    let (name, tag) = last.split_once(':').unwrap_or((last, ""));
    if name == "cuda" && path.rsplit('/').next() == Some("nvidia") {
        return Version::parse(tag.split('-').next()?);
    }
    let words = |text| words(text).into_iter().filter_map(|text| word(&text));
    let told: BTreeSet<Version> = words(name).chain(words(tag)).collect();
    let versions: Vec<Version> = told.into_iter().collect();
    match versions[..] {
        [version] => Some(version),
        _ => None,
    }
}

/// Returns the words of a name or tag. Both `cuda-11.7` and `cuda11.7` are one word.
fn words(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(['-', '_', '+']).collect();
    let joined = parts.windows(2).filter(|pair| pair[0] == "cuda").map(<[&str]>::concat);
    parts.iter().map(ToString::to_string).chain(joined).collect()
}

fn word(word: &str) -> Option<Version> {
    if let Some(version) = word.strip_prefix("cuda") {
        // Major and minor are required: what 118 or 12 stands for is ambiguous.
        return Version::parse(version).filter(|version| is_plausible(*version));
    }
    // PyTorch's notation: cu92, cu118, cu128.
    let digits = word.strip_prefix("cu").filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    let major = match digits.len() {
        2 => 1,
        3 => 2,
        _ => return None,
    };
    let version = Version { major: digits[..major].parse().ok()?, minor: digits[major..].parse().ok()? };
    // cu12 is CUDA 12 and not 1.2.
    Some(version).filter(|version| is_plausible(*version))
}

fn is_plausible(version: Version) -> bool {
    (5..=30).contains(&version.major)
}
