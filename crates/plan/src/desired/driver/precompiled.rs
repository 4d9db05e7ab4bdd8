//! NVIDIA's driver container with modules that are precompiled for one kernel.

use gpu_operator_crd::policy::Driver;

use crate::{
    catalogue::branch_of,
    desired::{
        driver::{choice::DriverChoice, subject::Subject},
        images,
    },
};

/// Returns the precompiled image of a choice, or the one that the choice replaces, if the policy enables precompiled
/// drivers.
pub fn wanted(driver: &Driver, on: &Subject<'_>, choice: &DriverChoice) -> Option<String> {
    let DriverChoice::Container { version, os, .. } = choice else {
        return None;
    };
    image(driver, on, branch_of(version)?, os)
}

/// Returns the image with modules for the node's kernel; `None` if the kernel's name is not valid in a tag.
pub fn image(driver: &Driver, on: &Subject<'_>, branch: u16, os: &str) -> Option<String> {
    let kernel = on.node.kernel.as_str();
    let in_tags = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let tag = tag(&branch.to_string(), kernel, os);
    let can_be = driver.precompiled.unwrap_or_default() && !kernel.is_empty() && tag.len() <= 128;
    (can_be && kernel.chars().all(in_tags))
        .then(|| images::reference(on.images, driver.operand.image.as_ref(), images::DRIVER, &tag))
}

/// Returns the tag of a precompiled driver's image.
pub fn tag(branch: &str, kernel: &str, os: &str) -> String {
    format!("{branch}-{kernel}-{os}")
}
