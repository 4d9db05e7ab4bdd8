//! What a user of the API server has asked of it, from the server's audit log.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use serde::Deserialize;

/// The operator, as the API server knows it.
pub const OPERATOR: &str = "system:serviceaccount:gpu-operator:gpu-operator";
/// The probe, as the API server knows it.
pub const PROBE: &str = "system:serviceaccount:gpu-operator:nvml-probe";
/// Who may do everything: whoever has the cluster's kubeconfig, as a fleet's agent has.
pub const ADMIN: &str = "admin";

/// From this status on an answer is a no.
const REFUSED: u16 = 400;

/// The audit log: a line of JSON for every write, and for every read of [`OPERATOR`]'s and [`PROBE`]'s too.
#[derive(Clone, Debug)]
pub struct Audit {
    file: PathBuf,
}

/// A place in the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// One request, once it was answered. A watch counts when it begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Such as `patch`.
    pub verb: String,
    /// Plural and subresource, such as `gpunodes/status`; the path of a request that is for no object.
    pub resource: String,
    /// The object's name; empty for a list or watch of many.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// Requests in the order of their answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(pub Vec<Request>);

impl Audit {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// The end of the log as it is now. The server writes a request's line before it answers, so every request that has
    /// been answered lies before it.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        let length = self.file.metadata().with_context(|| format!("reading {}", self.file.display()))?.len();
        Ok(Mark(length))
    }

    /// What `user` has asked since a mark.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn requests(&self, user: &str, since: Mark) -> Result<Requests> {
        let mut file = File::open(&self.file).with_context(|| format!("reading {}", self.file.display()))?;
        file.seek(SeekFrom::Start(since.0))?;
        read(BufReader::new(file), user)
    }
}

/// The last line may be half written, and is then not yet a request.
fn read(lines: impl BufRead, user: &str) -> Result<Requests> {
    let mut requests = Vec::new();
    for line in lines.lines() {
        let line = line?;
        // Most lines are others', and parsing is what takes long.
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
    /// Whether it was to change something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether it opens a watch, which the server ends every few minutes, so that it is opened anew.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// Whether the server said no.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.code >= REFUSED
    }
}

impl Requests {
    /// Those that pass a test.
    #[must_use]
    pub fn only(&self, test: impl Fn(&Request) -> bool) -> Self {
        Self(self.0.iter().filter(|request| test(request)).cloned().collect())
    }

    /// Those that were to change something.
    #[must_use]
    pub fn writes(&self) -> Self {
        self.only(Request::is_write)
    }

    /// Those that open no watch.
    #[must_use]
    pub fn without_watches(&self) -> Self {
        self.only(|request| !request.is_watch())
    }

    /// Those to which the server said no.
    #[must_use]
    pub fn refused(&self) -> Self {
        self.only(Request::is_refused)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many of each kind there are: by verb, resource and, where it was refused, code.
    #[must_use]
    pub fn by_kind(&self) -> BTreeMap<String, usize> {
        self.tally(
            |Request { verb, resource, code, .. }| {
                if *code >= REFUSED { format!("{verb} {resource} {code}") } else { format!("{verb} {resource}") }
            },
        )
    }

    /// How many speak of each name, whatever the kind of object: a Node and its GpuNode bear the same.
    #[must_use]
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

/// What is read of a line.
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
    /// A watch is told of when it begins and when it ends, everything else once.
    fn counts(&self) -> bool {
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
    fn requests_are_told_apart_by_verb_resource_and_refusal() {
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
        assert_eq!((requests.writes().count(), requests.refused().count()), (3, 1));
        assert!(requests.to_string().starts_with("4 requests: 1 list pods, "), "{requests}");
    }

    #[test]
    fn a_watch_counts_when_it_begins_and_not_again_when_it_ends() {
        let watch = |stage| line(OPERATOR, stage, "watch", ["nodes", "", ""], 200);
        assert_eq!(requests(&(watch("ResponseStarted") + &watch("ResponseComplete"))).count(), 1);
        assert_eq!(requests(&watch("ResponseStarted")).without_watches().count(), 0);
        assert_eq!(requests(&watch("ResponseComplete")).count(), 0, "it began before the mark");
    }

    #[test]
    fn others_and_half_a_line_are_passed_over() {
        let other = line("system:admin", "ResponseComplete", "patch", ["nodes", "", OPERATOR], 200);
        let ours = line(OPERATOR, "ResponseComplete", "patch", ["nodes", "", "a"], 200);
        assert_eq!(requests(&format!("{other}{ours}{}", &ours[..ours.len() / 2])).count(), 1);
    }

    #[test]
    fn what_was_asked_before_a_mark_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path().join("audit.log"));
        let ours = |name| line(OPERATOR, "ResponseComplete", "patch", ["nodes", "", name], 200);
        std::fs::write(&audit.file, ours("before")).unwrap();
        let mark = audit.mark().unwrap();
        std::fs::write(&audit.file, ours("before") + &ours("after")).unwrap();
        let since = audit.requests(OPERATOR, mark).unwrap();
        assert_eq!(since.by_name().into_keys().collect::<Vec<_>>(), ["after"]);
    }
}
