//! The exhaustive search through all orders of steps, and the proof that the end can be reached from everywhere.

use std::collections::HashMap;

use super::{cluster::Cluster, step::Step};

/// What a search has found.
#[derive(Debug, Default)]
pub struct Explored {
    pub states: usize,
    /// Steps that lead from one state to another.
    pub steps: usize,
    /// States in which nothing is left to do.
    pub ends: usize,
}

/// A state whose steps are being taken.
struct Frame {
    cluster: Cluster,
    hash: u64,
    id: usize,
    left: Vec<Step>,
    productive: bool,
    waited: bool,
}

impl Frame {
    fn new(cluster: Cluster, hash: u64, id: usize) -> Self {
        let mut left = cluster.steps();
        left.reverse();
        Self { cluster, hash, id, left, productive: false, waited: false }
    }

    /// Returns the next step to try. Time passes only where nothing else happens.
    fn next(&mut self) -> Option<Step> {
        let next = self.left.pop();
        if next.is_none() && !self.productive && !self.waited {
            self.waited = true;
            return Some(Step::Wait);
        }
        next
    }
}

/// Takes all steps in all orders. Panics with the steps that led there if a law is violated, if `end` rejects a state in which
/// nothing is left to do, or if no such state can be reached any more.
pub fn explore(start: Cluster, most: usize, end: impl Fn(&Cluster) -> Result<(), String>) -> Explored {
    let hash = start.hash();
    let (mut known, mut found) = (HashMap::from([(hash, 0)]), Explored::default());
    // The states from which each state was reached, and the path by which it was reached first.
    let mut reached_from: Vec<Vec<usize>> = vec![vec![]];
    let mut first: Vec<Option<(usize, Step)>> = vec![None];
    let mut ends = Vec::new();
    let mut stack = vec![Frame::new(start, hash, 0)];
    while let Some(frame) = stack.last_mut() {
        let Some(step) = frame.next() else {
            let frame = stack.pop().expect("a frame");
            if !frame.productive {
                if let Err(why) = end(&frame.cluster) {
                    fail(&why, &path(&first, frame.id));
                }
                ends.push(frame.id);
            }
            continue;
        };
        let (mut next, from) = (frame.cluster.clone(), frame.id);
        if let Err(why) = next.take(step) {
            fail(&why, &path(&first, from).into_iter().chain([step]).collect::<Vec<_>>());
        }
        let hash = next.hash();
        if hash == frame.hash {
            continue;
        }
        frame.productive |= !matches!(step, Step::Kill);
        found.steps += 1;
        let count = known.len();
        let id = *known.entry(hash).or_insert(count);
        if id == count {
            assert!(count < most, "more than {most} states");
            reached_from.push(vec![from]);
            first.push(Some((from, step)));
            stack.push(Frame::new(next, hash, id));
        } else {
            reached_from[id].push(from);
        }
    }
    let mut reaches_an_end = vec![false; known.len()];
    let mut to_visit = ends.clone();
    while let Some(id) = to_visit.pop() {
        if !std::mem::replace(&mut reaches_an_end[id], true) {
            to_visit.extend(&reached_from[id]);
        }
    }
    if let Some(lost) = reaches_an_end.iter().position(|reaches| !reaches) {
        fail("from here no end can be reached", &path(&first, lost));
    }
    Explored { states: known.len(), ends: ends.len(), ..found }
}

fn path(first: &[Option<(usize, Step)>], mut id: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some((from, step)) = first[id] {
        steps.push(step);
        id = from;
    }
    steps.reverse();
    steps
}

fn fail(why: &str, steps: &[Step]) -> ! {
    panic!("{why}\nafter {} steps: {steps:?}", steps.len())
}
