//! Missing images of precompiled drivers: the image is recorded in the node's GpuNode, and the driver is compiled on the node
//! instead, until a different image is wanted. Without the record the node would alternate between the two.

use std::collections::BTreeSet;

use gpu_operator_crd::{policy::Stage, reason::Reason};

use crate::{
    assess::{member::Member, pod_failure, preflight},
    catalogue::Catalogue,
    desired::{
        driver::{choice::DriverChoice, precompiled, subject::Subject},
        effective_spec,
    },
    note::Note,
};

/// Returns the precompiled image that the policy selects for a node, if it does not exist. `without_image` are the revisions whose
/// image a node has tried to pull; see [`preflight::without_driver_image`].
pub fn missing(catalogue: &Catalogue, member: &Member<'_>, without_image: &BTreeSet<&str>) -> Option<String> {
    // This is called for every node, and most policies select no precompiled driver.
    if !effective_spec::is_precompiled(member.policy, member.pool.named) {
        return None;
    }
    let status = member.status()?;
    if member.desired.is_unknown() {
        return status.missing_image.clone();
    }
    let (report, choice) = (member.report?, member.driver()?);
    let subject = Subject {
        catalogue,
        images: &member.policy.spec.images,
        node: member.node,
        has_driver: member.have.driver.is_some(),
        discovery: &member.discovery,
        report,
        missing_image: status.missing_image.as_deref(),
    };
    let settings = effective_spec::driver(member.policy, member.pool.named);
    let image = precompiled::wanted(&settings, &subject, choice)?;
    let known = status.missing_image.as_ref() == Some(&image);
    let want = member.want();
    let now_seen = || {
        let Some(want) = &want else { return false };
        want.driver == member.have.driver && member.pod(Stage::Driver).is_some_and(pod_failure::lacks_its_image)
            || !without_image.is_empty() && without_image.contains(preflight::prefix(want).as_str())
    };
    (known || choice.is_precompiled() && now_seen()).then_some(image)
}

/// Returns the note that the driver is compiled on the node instead, if it is.
pub fn note(member: &Member<'_>, image: &str) -> Option<Note> {
    let compiles = matches!(member.driver(), Some(DriverChoice::Container { kernel: None, .. }));
    let message = format!(
        "image {image} does not exist, so the driver is compiled on the node; the image is checked again when the kernel or the driver's branch changes"
    );
    compiles.then(|| Note::new(Reason::PrecompiledImageMissing, message))
}
