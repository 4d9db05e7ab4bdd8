//! The end of a container's log, in a limited number of bytes.

use kube::{
    Client,
    api::{ApiResource, LogParams},
    client::Body,
    core::{Request, Status},
};

use crate::read::{ReadError, classify};

/// The number of lines that are asked for. If they are longer than the limit, fewer are.
const LINES: i64 = 8192;
/// The smallest number of lines that are asked for.
const FEWEST: i64 = 8;

/// A log of a container.
#[derive(Clone, Debug)]
pub struct LogOf<'a> {
    /// The namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// Name of the container.
    pub container: &'a str,
    /// Whether the log is that of the container's previous run.
    pub previous: bool,
}

/// The end of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Tail {
    /// Whole lines.
    pub text: String,
    /// Whether earlier lines have been left out because of the limit in bytes.
    pub is_cut: bool,
}

/// Reads the end of a log, of at most `limit` bytes.
pub async fn tail(client: &Client, log: &LogOf<'_>, since: Option<i64>, limit: usize) -> Result<Tail, ReadError> {
    let mut lines = LINES;
    loop {
        // The API server counts the limit from the first of the lines, so that the last ones would be missing.
        let params = LogParams {
            container: Some(log.container.to_owned()),
            limit_bytes: i64::try_from(limit + 1).ok(),
            previous: log.previous,
            since_seconds: since,
            tail_lines: Some(lines),
            timestamps: true,
            ..LogParams::default()
        };
        let content = fetch(client, log.namespace, log.pod, &Part::Log(params)).await?;
        if content.len() <= limit || lines <= FEWEST {
            let is_cut = content.len() > limit || lines < LINES;
            return Ok(Tail { text: whole_lines(&content, limit), is_cut });
        }
        lines /= 4;
    }
}

/// Returns the lines of a text of which at most `limit` bytes are shown. A line that is cut is left out as a whole, because a
/// credential in it might not be recognized any more.
pub fn whole_lines(content: &[u8], limit: usize) -> String {
    let end = match content.get(..limit) {
        Some(start) if content.len() > limit => start.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        _ => content.len(),
    };
    String::from_utf8_lossy(&content[..end]).into_owned()
}

/// Reads the metrics that a pod serves at a port, through the API server.
pub async fn metrics(client: &Client, namespace: &str, pod: &str, port: i64) -> Result<String, ReadError> {
    let content = fetch(client, namespace, pod, &Part::Metrics(port)).await?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// What is read of a pod.
enum Part {
    Log(LogParams),
    Metrics(i64),
}

async fn fetch(client: &Client, namespace: &str, pod: &str, part: &Part) -> Result<Vec<u8>, ReadError> {
    let plural = match part {
        Part::Log(_) => "pods/log",
        Part::Metrics(_) => "pods/proxy",
    };
    let (version, kind) = ("v1".to_owned(), "Pod".to_owned());
    let (group, api_version) = (String::new(), version.clone());
    let resource = ApiResource { group, version, api_version, kind, plural: plural.to_owned() };
    bytes(client, namespace, pod, part).await.map_err(|error| match error {
        // The pod, and not the resource, does not exist any more.
        kube::Error::Api(status) if status.is_not_found() => {
            ReadError::Rejected(format!("get {plural} {pod}"), kube::Error::Api(status))
        }
        error => classify("get", &resource, Some(pod), error),
    })
}

/// Returns the body of an answer. It may contain bytes that are no UTF-8.
async fn bytes(client: &Client, namespace: &str, pod: &str, part: &Part) -> Result<Vec<u8>, kube::Error> {
    let pods = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
    let request = match part {
        Part::Log(params) => pods.logs(pod, params),
        Part::Metrics(number) => pods.get_subresource("proxy/metrics", &format!("{pod}:{number}")),
    };
    let answer = client.send(request.map_err(kube::Error::BuildRequest)?.map(Body::from)).await?;
    let code = answer.status();
    let body = answer.into_body().collect_bytes().await?.to_vec();
    if code.is_success() {
        return Ok(body);
    }
    let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), code.canonical_reason().unwrap_or_default()).with_code(code.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeApi;

    #[test]
    fn a_line_that_is_cut_is_left_out() {
        for (content, limit, shown) in [
            ("one\ntwo\n", 8, "one\ntwo\n"),
            ("one\ntwo\n", 7, "one\n"),
            ("one\ntwo\n", 4, "one\n"),
            ("one\ntwo", 7, "one\ntwo"),
            ("one\n", 2, ""),
            ("", 0, ""),
        ] {
            assert_eq!(whole_lines(content.as_bytes(), limit), shown, "{content:?} {limit}");
        }
        assert_eq!(whole_lines(b"a\xff\n", 9), "a\u{fffd}\n");
    }

    #[tokio::test]
    async fn fewer_lines_are_read_if_they_are_long() {
        let api = FakeApi::default();
        api.add_text("/api/v1/namespaces/a/pods/p/log", "token=canary\n123456789\n");
        let log = LogOf { namespace: "a", pod: "p", container: "c", previous: false };
        let whole = tail(&api.client(), &log, None, 100).await.expect("a log");
        assert_eq!((whole.is_cut, api.requests().len()), (false, 1));
        let cut = tail(&api.client(), &log, Some(60), 15).await.expect("a log");
        assert_eq!(cut, Tail { text: "token=canary\n".to_owned(), is_cut: true });
        let lines =
            |request: &String| request.split("tailLines=").nth(1).map(|rest| rest.split('&').next().map(str::to_owned));
        let asked: Vec<_> = api.requests().iter().skip(1).filter_map(lines).flatten().collect();
        assert_eq!(asked, ["8192", "2048", "512", "128", "32", "8"]);
        assert!(api.requests()[1].contains("sinceSeconds=60") && api.requests()[1].contains("limitBytes=16"));
    }
}
