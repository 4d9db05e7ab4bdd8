//! Findings are published once and within the rate limit.

use super::*;

use gpu_operator_plan::time::later;

fn finding(pod: usize, family: &str) -> Finding {
    let pod = PendingPod { uid: format!("{family}-{pod}"), owner: Some(family.into()), ..PendingPod::default() };
    pod.finding(Mistake::LegacyGpuResource, String::new())
}

fn published(journal: &mut Journal, findings: &[Finding], after: u64) -> Vec<String> {
    let (published, _) = journal.to_publish(findings, later(now(), Duration::from_secs(after)));
    published.into_iter().map(|finding| finding.subject.uid().to_owned()).collect()
}

#[test]
fn a_current_finding_is_published_once() {
    let mut journal = Journal::default();
    let mut other = finding(0, "a");
    other.reason = Mistake::NoNodeFits;
    let both = [finding(0, "a"), other];
    assert_eq!(published(&mut journal, &both, 0), ["a-0", "a-0"]);
    assert!(published(&mut journal, &both, 3600).is_empty());
}

#[test]
fn entries_of_deleted_objects_are_removed() {
    let mut journal = Journal::default();
    let there = symptoms(&[pod("p", "{containers: [{name: c}], runtimeClassName: nvidia}")]);
    let stands = there.pods["team/p"].finding(Mistake::NoNodeFits, String::new());
    assert_eq!(published(&mut journal, std::slice::from_ref(&stands), 0).len(), 1);
    journal.record("uid-p", Some(vec![]), now());
    journal.keep(&there);
    assert!(!journal.is_empty() && published(&mut journal, &[stands], 1).is_empty());
    journal.keep(&Symptoms::default());
    assert!(journal.is_empty());
}

#[test]
fn a_job_of_a_thousand_pods_does_not_suppress_a_single_pod() {
    let mut journal = Journal::default();
    let mut findings: Vec<Finding> = (0..1000).map(|pod| finding(pod, "job")).collect();
    let first = journal.to_publish(&findings, now());
    assert_eq!(first.0.len(), 30);
    assert_eq!(first.1, Some(later(now(), Duration::from_mins(1))), "the rest is published later");
    findings.push(finding(0, "single"));
    assert!(published(&mut journal, &findings, 59).is_empty());
    let next = published(&mut journal, &findings, 60);
    assert_eq!((next.len(), next[0].as_str()), (30, "single-0"));
}

#[test]
fn events_are_read_at_most_thrice_and_of_few_pods_at_once() {
    let mut journal = Journal::default();
    let pods: Vec<PendingPod> =
        (0..20).map(|pod| PendingPod { uid: pod.to_string(), ..PendingPod::default() }).collect();
    let (due, again) = journal.to_read(pods.iter(), now());
    assert_eq!(due.len(), 8);
    assert!(again.is_some(), "the others are read later");
    let mut readings = 0;
    let mut at = Some(now());
    while let Some(now) = at {
        let (due, again) = journal.to_read(pods[..1].iter(), now);
        let due = due.len();
        readings += due;
        if due > 0 {
            // An attempt without an answer counts as well.
            journal.record("0", (readings > 1).then(Vec::new), now);
        }
        at = if due > 0 { journal.to_read(pods[..1].iter(), now).1 } else { again };
    }
    assert_eq!(readings, 3);
    assert_eq!(journal.pod_events().len(), 1);
}

#[test]
fn only_some_events_of_a_pod_are_kept() {
    let event = |reason: &str| {
        let event = json!({"metadata": {}, "involvedObject": {}, "reason": reason, "message": "ä".repeat(5000)});
        PodEvent::of(serde_json::from_value(event).unwrap())
    };
    assert_eq!(event("FailedScheduling"), None, "diagnosis does not evaluate it");
    assert_eq!(event("Nominated").map(|event| event.message.chars().count()), Some(1000));
    let mut journal = Journal::default();
    journal.record("p", Some(vec![event("FailedCreatePodSandBox").unwrap(); 50]), now());
    assert_eq!(journal.pod_events()["p"].len(), 8);
}
