//! The CUDA version that an image's reference tells, where it tells one without doubt.

use std::collections::BTreeSet;

use super::version::Version;

/// The CUDA version of an image, from the tag of `nvidia/cuda`, or from words such as `cuda11.7.1` and `cu128` in the last
/// part of its name or in its tag. `None` where it says none, or several.
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

/// The words of a name or tag. `cuda-11.7` is one, as is `cuda11.7`.
fn words(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(['-', '_', '+']).collect();
    let joined = parts.windows(2).filter(|pair| pair[0] == "cuda").map(<[&str]>::concat);
    parts.iter().map(ToString::to_string).chain(joined).collect()
}

/// The version that a word tells.
fn word(word: &str) -> Option<Version> {
    if let Some(version) = word.strip_prefix("cuda") {
        // At least major and minor: what 118 or 12 stands for is anybody's guess.
        return Version::parse(version).filter(|version| is_plausible(*version));
    }
    // PyTorch's way: cu92, cu118, cu128.
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
