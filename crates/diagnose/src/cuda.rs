//! Images that are built for a later CUDA version than the driver of their node supports, by their reference or by
//! `NVIDIA_REQUIRE_CUDA`.

use std::{cmp::Ordering, collections::BTreeSet};

use gpu_operator_common::version as dotted;
use gpu_operator_crd::NodeName;

use crate::{
    fleet::{Fleet, Host, Room},
    pending::{Container, PendingPod},
};

struct Driver<'w> {
    node: &'w NodeName,
    loaded: &'w str,
    cuda: Version,
    consumer: bool,
}

impl<'w> Driver<'w> {
    fn of(host: &Host<'w>) -> Option<Self> {
        let facts = host.driver()?;
        let cuda = Version::parse(facts.cuda_version.as_deref()?)?;
        let consumer = host.has_consumer_gpus_only();
        Some(Self { node: &host.node.name, loaded: facts.loaded.as_deref()?, cuda, consumer })
    }

    /// Returns the driver's branch, such as 470.
    fn branch(&self) -> Option<u32> {
        Some(gpu_operator_common::version::Version::leading(self.loaded)?.major())
    }

    /// Returns what a container requires that this driver does not support.
    fn falls_short(&self, container: &Container) -> Option<String> {
        let required = container.require_cuda.as_deref().filter(|_| !container.disable_require);
        if let Some(required) = required.filter(|required| fails(required, self.cuda, self.loaded)) {
            let short: String = required.split(' ').next().unwrap_or_default().chars().take(80).collect();
            return Some(format!("NVIDIA_REQUIRE_CUDA requires {short}"));
        }
        let required = cuda_of(&container.image)?;
        let falls_short = falls_short(required, self.cuda, self.branch()?, self.consumer);
        falls_short.then(|| format!("image {} is built for CUDA {required}", container.image))
    }
}

/// Returns the message for a pod whose image is too new for the driver of its node or, before it is scheduled, for the
/// driver of every eligible node.
pub fn find(pod: &PendingPod, fleet: &Fleet<'_>) -> Option<String> {
    let mut containers: Vec<&Container> = pod.containers.iter().filter(|container| container.requests_gpus()).collect();
    if containers.is_empty() {
        return None;
    }
    if let Some(node) = &pod.node {
        let driver = Driver::of(fleet.hosts.get(node.as_str())?)?;
        return containers
            .iter()
            .find_map(|container| Some(message(container, &driver.falls_short(container)?, &driver, "")));
    }
    let requests = pod.requests();
    let hosts = fleet.meant(&pod.placement).filter(|host| host.room(&requests) != Room::Never);
    let mut best: Option<Driver<'_>> = None;
    let mut which = "";
    // The first node with an unknown or a sufficient driver decides. In a large fleet that is usually the very first node.
    for host in hosts {
        let driver = Driver::of(host)?;
        containers.retain(|container| driver.falls_short(container).is_some());
        if containers.is_empty() {
            return None;
        }
        best = match best {
            None => Some(driver),
            Some(best) => {
                which = ", the newest of all eligible nodes,";
                Some(if best.cuda < driver.cuda { driver } else { best })
            }
        };
    }
    let (driver, container) = (best?, containers.first()?);
    Some(message(container, &driver.falls_short(container)?, &driver, which))
}

fn message(container: &Container, required: &str, driver: &Driver<'_>, which: &str) -> String {
    format!(
        "driver {} of node {}{which} supports CUDA {}, but {required} (container {}); use an image for CUDA {} or earlier, or \
         install a newer driver on the node",
        driver.loaded, driver.node, driver.cuda, container.name, driver.cuda
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// Parses `12.8` or `12.8.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let version: dotted::Version = text.parse().ok()?;
        Some(Self { major: version.major(), minor: version.minor()? })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// From this major version on, a program for a minor version also runs on drivers for an earlier minor version.
const MINOR_COMPATIBILITY: u32 = 11;

/// The earliest driver branch on which NVIDIA's forward-compatibility package of a CUDA major version runs. General knowledge,
/// unverified, and more likely too early than too late: if the package may help, nothing is reported.
const FORWARD_COMPATIBILITY: [(u32, u32); 4] = [(10, 384), (11, 418), (12, 450), (13, 525)];

/// Returns whether an image for one CUDA version certainly does not run on a driver that supports another. An image may contain
/// NVIDIA's forward-compatibility package, which bridges one major version, but not on consumer cards.
pub fn falls_short(required: Version, served: Version, branch: u32, consumer: bool) -> bool {
    if required <= served || required.major == served.major && required.major >= MINOR_COMPATIBILITY {
        return false;
    }
    let bridged = required.major <= served.major + 1
        && !consumer
        && match FORWARD_COMPATIBILITY.iter().find(|(major, _)| *major == required.major) {
            Some((_, first)) => branch >= *first,
            // There is no package before CUDA 10, and later ones are unknown.
            None => required.major > 10,
        };
    !bridged
}

/// Returns the CUDA version of an image: from the tag of `nvidia/cuda`, or from words such as `cuda11.7.1` and `cu128`
/// in its name's last part or its tag. `None` if there is no version, or more than one.
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

/// Returns whether no alternative can hold. Alternatives are separated by spaces, and the conditions of an alternative by
/// commas. Conditions on values that are unknown here, such as a GPU's brand, are assumed to hold.
pub fn fails(required: &str, cuda: Version, driver: &str) -> bool {
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
