//! The requests of one user to the API server, from the server's audit log.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Deserialize;

/// Responses with this status or a higher one reject the request.
const REJECTED: u16 = 400;

/// The audit log: a line of JSON for every write, and also for every read by the operator and the probe.
#[derive(Clone, Debug)]
pub struct Audit {
    file: PathBuf,
}

/// A position in the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// One answered request. A watch counts when it begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The verb, such as `patch`.
    pub verb: String,
    /// Plural and subresource, such as `gpunodes/status`; the URI of a request that is not for an object.
    pub resource: String,
    /// The object's name; empty for a list or watch of many objects.
    pub name: String,
    /// The HTTP status of the response.
    pub code: u16,
}

/// Requests in the order of their responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(pub Vec<Request>);

impl Audit {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self { file }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the current end of the log. The server writes a request's line before it responds, so all answered
    /// requests are before the mark.
    pub fn mark(&self) -> Result<Mark> {
        let length = self.file.metadata().with_context(|| format!("reading {}", self.file.display()))?.len();
        Ok(Mark(length))
    }

    /// Returns the requests of `user` since a mark.
    pub fn requests(&self, user: &str, since: Mark) -> Result<Requests> {
        let mut file = File::open(&self.file).with_context(|| format!("reading {}", self.file.display()))?;
        file.seek(SeekFrom::Start(since.0))?;
        read(BufReader::new(file), user)
    }
}

/// Parses the log. A last line that is only partly written is skipped.
fn read(lines: impl BufRead, user: &str) -> Result<Requests> {
    let mut requests = Vec::new();
    for line in lines.lines() {
        let line = line?;
        // Most lines belong to other users, and parsing is slow.
        if !line.contains(user) {
            continue;
        }
        let Ok(entry) = serde_json::from_str::<Entry>(&line) else { continue };
        if entry.user.username == user && entry.counts() {
            requests.push(entry.into());
        }
    }
    Ok(Requests(requests))
}

impl Request {
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Returns whether it opens a watch. The server ends watches every few minutes, and clients open them again.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// Returns whether the server rejected it.
    pub fn is_rejected(&self) -> bool {
        self.code >= REJECTED
    }
}

impl Requests {
    /// Returns the requests that pass a test.
    pub fn only(&self, test: impl Fn(&Request) -> bool) -> Self {
        Self(self.0.iter().filter(|request| test(request)).cloned().collect())
    }

    pub fn writes(&self) -> Self {
        self.only(Request::is_write)
    }

    /// Returns the requests that do not open a watch.
    pub fn without_watches(&self) -> Self {
        self.only(|request| !request.is_watch())
    }

    /// Returns the requests that the server rejected.
    pub fn rejected(&self) -> Self {
        self.only(Request::is_rejected)
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Counts the requests by verb, resource and, if rejected, code.
    pub fn by_kind(&self) -> BTreeMap<String, usize> {
        self.tally(
            |Request { verb, resource, code, .. }| {
                if *code >= REJECTED { format!("{verb} {resource} {code}") } else { format!("{verb} {resource}") }
            },
        )
    }

    /// Counts the requests by object name, whatever the kind of object: a Node and its GpuNode have the same name.
    pub fn by_name(&self) -> BTreeMap<String, usize> {
        self.tally(|request| request.name.clone())
    }

    fn tally(&self, key: impl Fn(&Request) -> String) -> BTreeMap<String, usize> {
        let mut tally = BTreeMap::new();
        for request in &self.0 {
            *tally.entry(key(request)).or_default() += 1;
        }
        tally
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests", self.count())?;
        let mut before = ": ";
        for (kind, count) in self.by_kind() {
            write!(f, "{before}{count} {kind}")?;
            before = ", ";
        }
        Ok(())
    }
}

/// The fields of a log line that are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    response_status: ResponseStatus,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl Entry {
    /// Returns whether the line counts as a request. A watch has one line when it begins and one when it ends; other
    /// requests have one line. The renewals of a replica's Lease do not count, which continue whatever happens in the fleet.
    fn counts(&self) -> bool {
        if self.object_ref.as_ref().is_some_and(|object| object.resource == "leases") {
            return false;
        }
        self.stage == if self.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" }
    }
}

impl From<Entry> for Request {
    fn from(entry: Entry) -> Self {
        let (resource, name) = match entry.object_ref {
            Some(ObjectRef { resource, subresource, name }) if subresource.is_empty() => (resource, name),
            Some(ObjectRef { resource, subresource, name }) => (format!("{resource}/{subresource}"), name),
            None => (entry.request_uri, String::new()),
        };
        Self { verb: entry.verb, resource, name, code: entry.response_status.code }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use cluster::clients::OPERATOR;

    use super::*;

    fn line(user: &str, stage: &str, verb: &str, resource: [&str; 3], code: u16) -> String {
        let [resource, subresource, name] = resource;
        let mut object = json!({"resource": resource, "name": name, "apiVersion": "v1"});
        if !subresource.is_empty() {
            object["subresource"] = subresource.into();
        }
        let entry = json!({
            "kind": "Event", "stage": stage, "verb": verb, "requestURI": "/x", "user": {"username": user},
            "objectRef": object, "responseStatus": {"code": code},
        });
        format!("{entry}\n")
    }

    fn requests(lines: &str) -> Requests {
        read(lines.as_bytes(), OPERATOR).unwrap()
    }

    #[test]
    fn requests_are_counted_by_verb_resource_and_rejection() {
        let log = [
            line(OPERATOR, "ResponseComplete", "patch", ["nodes", "", "a"], 200),
            line(OPERATOR, "ResponseComplete", "patch", ["gpunodes", "status", "a"], 200),
            line(OPERATOR, "ResponseComplete", "patch", ["gpunodes", "status", "b"], 409),
            line(OPERATOR, "ResponseComplete", "list", ["pods", "", ""], 200),
        ]
        .concat();
        let requests = requests(&log);
        assert_eq!(
            requests.by_kind(),
            BTreeMap::from([
                ("list pods".into(), 1),
                ("patch gpunodes/status".into(), 1),
                ("patch gpunodes/status 409".into(), 1),
                ("patch nodes".into(), 1),
            ])
        );
        assert_eq!(requests.writes().by_name(), BTreeMap::from([("a".into(), 2), ("b".into(), 1)]));
        assert_eq!((requests.writes().count(), requests.rejected().count()), (3, 1));
        assert!(requests.to_string().starts_with("4 requests: 1 list pods, "), "{requests}");
    }

    #[test]
    fn a_watch_counts_when_it_begins_and_not_again_when_it_ends() {
        let watch = |stage| line(OPERATOR, stage, "watch", ["nodes", "", ""], 200);
        assert_eq!(requests(&(watch("ResponseStarted") + &watch("ResponseComplete"))).count(), 1);
        assert_eq!(requests(&watch("ResponseStarted")).without_watches().count(), 0);
        assert_eq!(requests(&watch("ResponseComplete")).count(), 0, "the watch began before the mark");
    }

    #[test]
    fn other_users_and_incomplete_lines_are_skipped() {
        let other = line("system:admin", "ResponseComplete", "patch", ["nodes", "", OPERATOR], 200);
        let operators = line(OPERATOR, "ResponseComplete", "patch", ["nodes", "", "a"], 200);
        assert_eq!(requests(&format!("{other}{operators}{}", &operators[..operators.len() / 2])).count(), 1);
    }
}
