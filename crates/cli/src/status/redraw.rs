//! A text that is drawn again in place whenever it changes.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use futures::{Stream, StreamExt};
use terminal_size::{Height, Width};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    read::ReadError,
    screen::{WIDTH, columns},
    status::{error::StatusError, facts::Facts},
};

/// How often ages are drawn again.
const TICK: Duration = Duration::from_secs(1);

/// The size of a terminal, in rows and columns.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: usize,
    columns: usize,
}

/// Draws the facts whenever they or their ages change, until the user ends the program. If standard output is not a terminal, each text is
/// printed below the one before.
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

/// Returns the number of rows that a text occupies.
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

/// Returns what replaces the last `below` rows of a terminal by a text: each line is overwritten, and only what is left of it erased, so that
/// nothing flickers.
fn frame(text: &str, below: usize) -> String {
    let up = if below > 0 { format!("\x1b[{below}A\r") } else { String::new() };
    let lines = text.lines().fold(String::new(), |lines, line| lines + line + "\x1b[K\n");
    format!("{up}{lines}\x1b[J")
}

#[cfg(test)]
mod tests {
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
}
