//! The clock of the API server, by the header `Date` of its answers.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, Request, header::DATE};
use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};

/// How far two clocks may be apart. The header has whole seconds, and answers take time.
const MOST: SignedDuration = SignedDuration::from_mins(1);

/// How far this machine's clock was ahead of the API server's at the last answer with a date; `None` if there was none.
#[derive(Clone, Debug, Default)]
pub struct ServerClock(Arc<Mutex<Option<SignedDuration>>>);

impl ServerClock {
    /// Returns a client that reads the server's time from each answer.
    pub fn of(inner: Client) -> (Client, Self) {
        let (namespace, clock) = (inner.default_namespace().to_owned(), Self::default());
        let observed = clock.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (inner, clock) = (inner.clone(), observed.clone());
            async move {
                let answer = inner.send(request).await?;
                clock.observe(answer.headers(), Timestamp::now());
                Ok::<_, kube::Error>(answer)
            }
        });
        (Client::new(service, namespace), clock)
    }

    fn observe(&self, headers: &HeaderMap, now: Timestamp) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok());
        if let Some(date) = date {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.duration_since(date));
        }
    }

    /// Returns by how many seconds the two clocks differ, if that is too much.
    pub fn difference(&self) -> Option<u64> {
        let ahead = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.filter(|ahead| ahead.abs() > MOST).map(|ahead| ahead.as_secs().unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is known after answers with these headers, at 00:02:00.
    fn observed(answers: &[Option<&str>]) -> ServerClock {
        let clock = ServerClock::default();
        for date in answers {
            let headers = date.map(|date| (DATE, date.parse().unwrap())).into_iter().collect();
            clock.observe(&headers, "2026-01-01T00:02:00Z".parse().unwrap());
        }
        clock
    }

    #[test]
    fn a_difference_of_more_than_a_minute_is_too_much() {
        for (date, difference) in [
            ("Thu, 01 Jan 2026 00:02:00 GMT", None),
            ("Thu, 01 Jan 2026 00:01:00 GMT", None),
            ("Thu, 01 Jan 2026 00:03:00 GMT", None),
            ("Thu, 01 Jan 2026 00:00:59 GMT", Some(61)),
            ("Thu, 01 Jan 2026 00:33:00 GMT", Some(1860)),
        ] {
            assert_eq!(observed(&[Some(date)]).difference(), difference, "{date}");
        }
    }

    #[test]
    fn an_answer_without_a_date_changes_nothing() {
        let wrong = Some("Thu, 01 Jan 2026 00:00:59 GMT");
        for without in [None, Some("yesterday")] {
            assert_eq!(observed(&[without]).difference(), None);
            assert_eq!(observed(&[wrong, without]).difference(), Some(61));
        }
    }
}
