//! What an election decides about a replica, as the parts that write see it.

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Whether this replica leads, which changes with time.
#[derive(Clone, Debug)]
pub struct Leadership(Option<watch::Receiver<Option<Instant>>>);

impl Leadership {
    /// Returns the leadership of the only replica, which leads always.
    pub const fn sole() -> Self {
        Self(None)
    }

    /// Returns the leadership of a replica that leads until the time that was sent last.
    pub const fn elected(term: watch::Receiver<Option<Instant>>) -> Self {
        Self(Some(term))
    }

    /// Returns whether this replica leads now. A process that was suspended, or whose requests hang, leads no longer without having
    /// been notified.
    pub fn holds(&self) -> bool {
        let Some(term) = &self.0 else { return true };
        term.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Does work that has no end until this replica leads no longer.
    pub async fn while_held(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.lost() => {}
        }
    }

    /// Waits until this replica leads.
    pub async fn gained(&self) {
        let Some(mut term) = self.0.clone() else { return };
        while !self.holds() {
            changed(&mut term).await;
        }
    }

    /// Waits until this replica leads no longer.
    pub async fn lost(&self) {
        let Some(mut term) = self.0.clone() else { return std::future::pending().await };
        loop {
            let Some(until) = *term.borrow_and_update() else { return };
            tokio::select! {
                () = changed(&mut term) => {}
                () = sleep_until(until) => return,
            }
        }
    }
}

/// Waits for the next decision; indefinitely if the election is over.
async fn changed(term: &mut watch::Receiver<Option<Instant>>) {
    if term.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_term_lasts_as_long_as_it_is_renewed() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::elected(term);
        let (began, seconds) = (Instant::now(), Duration::from_secs);
        let terms = RefCell::new(Vec::new());
        let observe = async {
            loop {
                leadership.gained().await;
                let gained = began.elapsed().as_secs();
                leadership.lost().await;
                terms.borrow_mut().push((gained, began.elapsed().as_secs()));
            }
        };
        let elect = async {
            for (after, lasts) in [(100, Some(10)), (5, Some(10)), (100, Some(50)), (20, None), (100, None)] {
                sleep(seconds(after)).await;
                sender.send_replace(lasts.map(|lasts| Instant::now() + seconds(lasts)));
                assert_eq!(leadership.holds(), lasts.is_some());
            }
        };
        tokio::select! {
            () = observe => {}
            () = elect => {}
        }
        // Renewed once and then not any more; and ended early.
        assert_eq!(*terms.borrow(), [(100, 115), (205, 225)]);
        assert!(Leadership::sole().holds());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_over_in_time_without_a_notification() {
        let (sender, term) = watch::channel(None);
        let leadership = Leadership::elected(term);
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(leadership.holds());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!leadership.holds());
    }
}
