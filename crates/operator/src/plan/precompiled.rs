//! Precompiled drivers that there are not: a node whose image is missing is remembered as such in its GpuNode and
//! compiles its driver instead, until another image is wanted. Without that memory it would go forth and back.

use gpu_operator_crd::{policy::Stage, reason::Reason};

use super::{
    driver::{self, DriverChoice},
    judge,
    member::Member,
    note::Note,
    pool, variant,
};
use crate::catalogue::Catalogue;

/// Looks whether the precompiled image that the policy would have on a node is missing, and says so of the node.
pub fn look(catalogue: &Catalogue, member: &mut Member<'_>) {
    member.missing_image = missing(catalogue, member);
    let compiles = matches!(member.driver(), Some(DriverChoice::Container { kernel: None, .. }));
    if let Some(image) = member.missing_image.as_ref().filter(|_| compiles) {
        let message = format!(
            "there is no image {image}, so the driver is compiled on the node; it is looked for again once the kernel or the driver's branch changes"
        );
        member.notes.push(Note::new(Reason::PrecompiledImageMissing, message));
    }
}

fn missing(catalogue: &Catalogue, member: &Member<'_>) -> Option<String> {
    // Most policies ask for none, and this is asked of every node.
    if !pool::is_precompiled(member.policy, member.named_pool) {
        return None;
    }
    let (status, report, choice) = (member.status()?, member.report()?, member.driver()?);
    let subject = variant::driver_subject(catalogue, member.policy, member.node, &member.discovery, (status, report));
    let settings = pool::driver(member.policy, member.named_pool);
    let image = driver::wanted_precompiled(&settings, &subject, choice)?;
    let known = status.missing_image.as_ref() == Some(&image);
    let is_wanted = member.want().is_some_and(|want| want.driver == member.have.driver);
    let precompiled = matches!(choice, DriverChoice::Container { kernel: Some(_), .. });
    let now_seen = || member.pod(Stage::Driver).is_some_and(judge::lacks_its_image);
    (known || precompiled && is_wanted && now_seen()).then_some(image)
}
