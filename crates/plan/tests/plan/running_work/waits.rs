//! A node that waits names what it waits for.

use super::{Event, Fleet, History, Law, NEW, Policy};
use crate::{law::Lawful, sim::Sim};

/// A node that waits for a pod that the API server does not create shows the last answer of the API server.
pub const THE_LAST_ANSWER: Law = Law { after_step: the_last_answer, ..Law::NONE };

fn the_last_answer(history: &History, sim: &Sim) -> Lawful {
    for (name, past) in &history.nodes {
        let status = sim.status(name);
        for (stage, since) in &past.missing {
            let revision =
                sim.nodes[name].labels.get(stage.key()).map(|revision| format!("{}-{revision}", stage.as_str()));
            let answer = revision.and_then(|set| sim.refusals.get(&set)).filter(|refusal| refusal.at > Some(*since));
            let Some(answer) = answer.filter(|_| sim.now.duration_since(*since).as_secs() > 60) else { continue };
            let mut parts = answer.message.split(": ").filter(|part| part.len() > 12);
            if !parts.any(|part| status.message.contains(part)) {
                let message = &status.message;
                return Err(format!(
                    "{name} waits for a pod of {stage:?} and says {message:?}, not {:?}",
                    answer.message
                ));
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
