//! Follows the fleet: draws its state again in place whenever it changes, or waits until the policies are ready.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use futures::{Stream, StreamExt};
use terminal_size::{Height, Width};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use crate::{
    context::Outcome,
    output::{WIDTH, columns},
    read::ReadError,
    status::{
        facts::{Facts, StatusError},
        report::{Progress, progress},
    },
};

/// How often ages are drawn again.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Size {
    rows: usize,
    columns: usize,
}

/// Draws the facts whenever they or their ages change, until the user ends the program. Without a terminal, each text
/// is printed below the previous one.
pub async fn each(
    changes: impl Stream<Item = Result<Facts, ReadError>>,
    draw: impl Fn(&Facts) -> String,
) -> Result<(), StatusError> {
    let mut changes = pin!(changes);
    let is_terminal = io::stdout().is_terminal();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut facts, mut drawn) = (None, String::new());
    let mut below = 0;
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => facts = Some(change?),
                None => return Ok(()),
            },
            _ = ticks.tick(), if is_terminal => {}
        }
        let Some(text) = facts.as_ref().map(&draw).filter(|text| *text != drawn) else { continue };
        let frame = if is_terminal {
            let size = size();
            let cut = cut(&text, size);
            let frame = frame(&cut, below);
            below = rows(&cut, size);
            frame
        } else if drawn.is_empty() {
            text.clone()
        } else {
            format!("\n{text}")
        };
        let mut output = io::stdout().lock();
        output.write_all(frame.as_bytes())?;
        output.flush()?;
        drawn = text;
    }
}

fn size() -> Size {
    let found = terminal_size::terminal_size();
    let (Width(columns), Height(rows)) = found.unwrap_or((Width(80), Height(24)));
    Size { rows: rows.max(2).into(), columns: usize::from(columns).clamp(1, WIDTH * 4) }
}

fn rows(text: &str, size: Size) -> usize {
    text.lines().map(|line| columns(line).div_ceil(size.columns).max(1)).sum()
}

/// Returns a text with only as many lines as the terminal has room for, because it cannot go back to lines above its first row. The last
/// line has the number of the others.
fn cut(text: &str, size: Size) -> String {
    // The cursor is below the text.
    let room = size.rows - 1;
    if rows(text, size) <= room {
        return text.to_owned();
    }
    let (mut kept, mut used) = (Vec::new(), 0);
    for line in text.lines() {
        used += rows(line, size);
        if used >= room {
            break;
        }
        kept.push(line);
    }
    let more = text.lines().count() - kept.len();
    kept.into_iter().fold(String::new(), |text, line| text + line + "\n") + &format!("... {more} more lines\n")
}

/// Returns the text that overwrites the last `below` rows of a terminal. Each line is overwritten, and only its rest
/// erased, so that nothing flickers.
fn frame(text: &str, below: usize) -> String {
    let up = if below > 0 { format!("\x1b[{below}A\r") } else { String::new() };
    let lines = text.lines().fold(String::new(), |lines, line| lines + line + "\x1b[K\n");
    format!("{up}{lines}\x1b[J")
}

/// Waits until the policies are ready, one of them cannot become ready by itself, or the time is over. Returns the last facts.
pub async fn until_ready(
    changes: impl Stream<Item = Result<Facts, ReadError>>,
    most: Duration,
) -> Result<(Facts, Outcome), ReadError> {
    let mut changes = pin!(changes);
    let mut last = Facts::default();
    let end = Instant::now() + most;
    while let Ok(Some(facts)) = timeout_at(end, changes.next()).await {
        last = facts?;
        match progress(&last) {
            Progress::Ready => return Ok((last, Outcome::Good)),
            Progress::Stuck => return Ok((last, Outcome::Bad)),
            Progress::Moving => {}
        }
    }
    Ok((last, Outcome::TimedOut))
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use gpu_operator_crd::ClusterGpuPolicy;
    use serde_json::json;

    use super::*;

    const SIZE: Size = Size { rows: 4, columns: 10 };

    #[test]
    fn a_frame_overwrites_the_one_before_without_erasing_it() {
        assert_eq!(frame("a\nb\n", 0), "a\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(frame("c\n", 2), "\x1b[2A\rc\x1b[K\n\x1b[J");
    }

    #[test]
    fn a_text_is_cut_to_the_rows_of_the_terminal() {
        assert_eq!(cut("a\nb\nc\n", SIZE), "a\nb\nc\n");
        assert_eq!(cut("a\nb\nc\nd\n", SIZE), "a\nb\n... 2 more lines\n");
        // The second line occupies two rows.
        assert_eq!(cut("a\nb0123456789\nc\n", SIZE), "a\n... 2 more lines\n");
        assert_eq!(rows("a\nb0123456789\n\n", SIZE), 4);
        assert_eq!(rows("\x1b[31m0123456789\x1b[0m\n", SIZE), 1);
    }

    /// A policy with these generations and conditions.
    fn facts(generation: i64, observed: i64, conditions: &[(&str, bool)]) -> Facts {
        let condition = |(kind, is): &(&str, bool)| {
            let status = if *is { "True" } else { "False" };
            json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        let policy: ClusterGpuPolicy = serde_json::from_value(json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "ClusterGpuPolicy",
            "metadata": {"name": "all", "generation": generation}, "spec": {},
            "status": {"observedGeneration": observed, "conditions": conditions},
        }))
        .expect("a policy");
        Facts { policies: vec![policy], ..Facts::default() }
    }

    async fn awaited(steps: Vec<Facts>) -> Outcome {
        let changes = stream::iter(steps.into_iter().map(Ok)).chain(stream::pending());
        until_ready(changes, Duration::from_mins(30)).await.expect("facts").1
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_a_policy_is_ready_or_stuck_or_too_late() {
        let (ready, stuck) = ([("Ready", true)], [("Ready", false), ("Stalled", true)]);
        let moving = [("Ready", true), ("Reconciling", true)];
        for (steps, outcome) in [
            (vec![facts(1, 1, &[("Ready", false)]), facts(1, 1, &ready)], Outcome::Good),
            // An earlier generation was ready, or stuck.
            (vec![facts(2, 1, &ready)], Outcome::TimedOut),
            (vec![facts(2, 1, &stuck), facts(2, 2, &ready)], Outcome::Good),
            (vec![facts(1, 1, &moving)], Outcome::TimedOut),
            (vec![facts(1, 1, &stuck), facts(1, 1, &ready)], Outcome::Bad),
            (vec![facts(1, 1, &[("Ready", true), ("Accepted", false)])], Outcome::Bad),
            // No policy yet.
            (vec![Facts::default()], Outcome::TimedOut),
            (vec![], Outcome::TimedOut),
        ] {
            assert_eq!(awaited(steps.clone()).await, outcome, "{steps:?}");
        }
        let missing = stream::iter([Err(ReadError::Forbidden("list policies".into()))]);
        assert!(until_ready(missing, Duration::from_mins(1)).await.is_err());
    }
}
