//! The assessment of one node: its progress, and everything else that its status reports.

use gpu_operator_crd::reason::Reason;
use k8s_openapi::jiff::Timestamp;

use super::{
    broken_stage,
    cuda::{self, Ceilings},
    driver_evidence, host_driver,
    member::Member,
    phase, precompiled,
    validation::{self, ValidationState},
    verdict::Verdict,
};
use crate::{
    catalogue::Catalogue,
    desired::node::DesiredNode,
    inventory::{
        gpus,
        membership::{name_of, overlap_note},
    },
    note::Note,
    world::World,
};

/// A node with its progress towards ready.
#[derive(Debug)]
pub struct Assessment<'w> {
    /// The node.
    pub member: Member<'w>,
    /// Notes that apply even if the node works.
    pub notes: Vec<Note>,
    /// The precompiled driver image that the policy selects for the node, if it does not exist.
    pub missing_image: Option<String>,
    /// The evidence against its driver, if there is any.
    pub against_driver: Option<Note>,
    /// The stage that is broken, if any, whatever is allocatable.
    pub broken_stage: Option<Verdict>,
    /// The highest CUDA versions that its drivers support.
    pub cuda: Ceilings,
    /// The state of its validation.
    pub validation: ValidationState,
    /// Its phase, and what keeps it from being ready.
    pub verdict: Verdict,
}

impl<'w> Assessment<'w> {
    /// Assesses a node.
    #[must_use]
    pub fn of(desired: DesiredNode<'w>, catalogue: &Catalogue, world: &'w World, now: Timestamp) -> Self {
        let member = Member::of(desired, world, now);
        let missing_image = precompiled::missing(catalogue, &member);
        let validation = validation::of(&member, &world.log_tails, now);
        let cuda = cuda::ceilings(catalogue, &member);
        let host_driver = host_driver::problem(catalogue, &member);
        let against_driver = driver_evidence::against_driver(&member, now);
        let broken_stage = broken_stage::of(&member, world, now);
        let evidence = phase::Evidence {
            validation: &validation,
            host_driver,
            against_driver: against_driver.as_ref(),
            broken_stage: broken_stage.as_ref(),
        };
        let verdict = phase::judge(&member, evidence, world, now);
        let notes = notes(&member, missing_image.as_deref());
        Self { member, notes, missing_image, against_driver, broken_stage, cuda, validation, verdict }
    }
}

fn notes(member: &Member<'_>, missing_image: Option<&str>) -> Vec<Note> {
    let passed_through =
        gpus::passed_through(member.last_report()).map(|message| Note::new(Reason::GpusPassedThrough, message));
    let compiled = missing_image.and_then(|image| precompiled::note(member, image));
    let overlap = overlap_note(&name_of(member.policy), &member.others);
    let known = member.discovery.notes.iter().cloned().chain(member.external.notes());
    known.chain(passed_through).chain(compiled).chain(overlap).collect()
}
