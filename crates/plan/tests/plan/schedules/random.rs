//! Random orders of steps in larger clusters, which shrink to the few steps that violate a law.

use super::{cluster::Cluster, step::Step};
use crate::law;

/// The number of rounds after which a cluster without faults must have settled.
const ROUNDS: usize = 400;

/// Takes a step for each number, then all steps in turn and without further faults until nothing is left to do.
pub fn run(mut cluster: Cluster, choices: &[u16]) -> Result<Cluster, String> {
    let mut taken = Vec::new();
    for choice in choices {
        let mut steps = cluster.steps();
        if !cluster.is_healthy {
            steps.push(Step::Wait);
        }
        let step = steps[usize::from(*choice) % steps.len()];
        let before = cluster.hash();
        let outcome = cluster.take(step);
        if before != cluster.hash() || outcome.is_err() {
            taken.push(step);
        }
        outcome.map_err(|why| format!("{why}\nafter {} steps: {taken:?}", taken.len()))?;
    }
    settle(cluster).map_err(|why| format!("{why}\nin the end of {} steps: {taken:?}", taken.len()))
}

/// Deletes all policies of a cluster that has settled, and checks that nothing is left.
pub fn uninstalled(mut cluster: Cluster) -> Result<(), String> {
    let policies: Vec<_> = cluster.sim.policies.keys().cloned().collect();
    for policy in policies {
        cluster.sim.delete_policy(policy);
    }
    let cluster = settle(cluster).map_err(|why| format!("{why}\nwhile all policies are deleted"))?;
    law::of_the_end(&cluster.sim)
}

fn settle(mut cluster: Cluster) -> Result<Cluster, String> {
    for _ in 0..ROUNDS {
        // An event may have made something unreadable.
        cluster.calm();
        let before = cluster.hash();
        for step in cluster.steps() {
            // The steps of a pass appear and disappear with it.
            if !matches!(step, Step::Write(..)) || cluster.is_writing() {
                cluster.take(first(step))?;
            }
        }
        if cluster.hash() == before {
            cluster.take(Step::Wait)?;
            if cluster.hash() == before {
                return Ok(cluster);
            }
        }
    }
    Err(format!("not settled after {ROUNDS} rounds"))
}

fn first(step: Step) -> Step {
    if let Step::Write(_, fault) = step { Step::Write(0, fault) } else { step }
}
