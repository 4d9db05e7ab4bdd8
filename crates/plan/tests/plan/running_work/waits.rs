//! A node that waits names what it waits for.

use gpu_operator_crd::policy::Stage;

use super::{Event, Fleet, History, Law, NEW, Policy, event::Pod};
use crate::{law::Lawful, sim::Sim, truth::governing};

/// A node that waits for a pod that the API server does not create shows the last answer of the API server, or the taint that keeps it from
/// being requested.
pub const THE_LAST_ANSWER: Law = Law { after_step: the_last_answer, ..Law::NONE };

fn the_last_answer(history: &History, sim: &Sim) -> Lawful {
    for (name, past) in history.nodes.iter().filter(|(name, _)| governing(sim, name).is_some()) {
        let status = sim.status(name);
        if let Some((set, since)) = &past.missing {
            let answer = sim.refusals.get(set).filter(|refusal| refusal.at > Some(*since));
            let Some(answer) = answer.filter(|_| sim.now.duration_since(*since).as_secs() > 60) else { continue };
            let expected = sim.untolerated(set, name).map_or_else(|| answer.message.clone(), ToString::to_string);
            let mut parts = expected.split(": ").filter(|part| part.len() > 12);
            if !parts.any(|part| status.message.contains(part)) {
                return Err(format!("{name} waits for a pod of {set} and says {:?}, not {expected:?}", status.message));
            }
        }
    }
    Ok(())
}

#[test]
fn a_webhook_that_does_not_answer_is_named() {
    let mut fleet = Fleet::settled(Policy::default(), 2, &[THE_LAST_ANSWER]);
    // The images are pulled by then.
    assert_eq!(fleet.go(&[(Event::Driver(NEW), 5), (Event::WebhookDown(true), 600)]), Ok(()));
}

#[test]
fn a_node_that_gets_another_revision_waits_from_then_on() {
    let mut fleet = Fleet::settled(Policy { tolerates_all: false, ..Policy::default() }, 4, &[THE_LAST_ANSWER]);
    let events = [
        (Event::WebhookDown(true), 0),
        (Event::Crashes("a", Stage::Driver), 60),
        (Event::Driver(NEW), 120),
        (Event::Managed("a", false), 300),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_node_waits_for_what_it_has_until_its_update_begins() {
    let mut fleet = Fleet::settled(Policy { tolerates_all: false, ..Policy::default() }, 4, &[THE_LAST_ANSWER]);
    let events = [
        (Event::PodStarts("c", Pod::Plain), 0),
        (Event::Plugin("{sharing: {mps: {replicas: 2}}}"), 0),
        (Event::WebhookDown(true), 0),
        (Event::Crashes("c", Stage::Driver), 600),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_node_with_a_taint_waits_for_no_answer() {
    let mut fleet = Fleet::settled(Policy { tolerates_all: false, ..Policy::default() }, 2, &[THE_LAST_ANSWER]);
    let events =
        [(Event::IsTakenAway("a"), 0), (Event::WebhookDown(true), 0), (Event::Crashes("a", Stage::Driver), 600)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_node_that_awaits_its_pods_shows_why_it_is_not_ready() {
    let policy = Policy { mode: "Await", tolerates_all: false, ..Policy::default() };
    let mut fleet = Fleet::settled(policy, 4, &[THE_LAST_ANSWER]);
    let events = [
        (Event::WebhookDown(true), 0),
        (Event::PodComesLate("b"), 0),
        (Event::Plugin("{sharing: {mps: {replicas: 2}}}"), 0),
        (Event::Crashes("a", Stage::Driver), 600),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}
