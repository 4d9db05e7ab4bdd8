//! What values change in the pods of the chart: their images, namespace and security contexts.

use serde_json::{Value, json};

use super::{EVERYTHING, cluster, documents, render, template};

/// The pods of a rendered chart, each with the kind of its object, in order.
fn pods(rendered: &str) -> Vec<(String, Value)> {
    let pod = |object: Value| {
        let spec = object.pointer("/spec/template/spec").or_else(|| object.get("spec"))?;
        spec.get("containers")?;
        Some((object["kind"].as_str()?.to_owned(), spec.clone()))
    };
    let mut pods: Vec<_> = documents(rendered).expect("YAML").into_iter().filter_map(pod).collect();
    pods.sort_by_key(|(kind, pod)| (kind.clone(), pod["containers"][0]["name"].to_string()));
    pods
}

#[test]
fn each_image_may_have_a_repository_of_its_own() {
    let own =
        "image.repositories.operator=a.example.com/x/operator,image.repositories.probe=b.example.com:5000/y/probe";
    let allowed = "admission.allowedRegistries[0]=c.example.com";
    let cluster = cluster();
    for (set, operator, probe) in [
        (own.to_owned(), "a.example.com/x/operator", "b.example.com:5000/y/probe"),
        (format!("{own},global.imageRegistry=c.example.com"), "c.example.com/x/operator", "c.example.com/y/probe"),
        (
            "image.repository=a.example.com,image.repositories.probe=y/probe".to_owned(),
            "a.example.com/gpu-operator",
            "y/probe",
        ),
    ] {
        let rendered = template(&cluster, &[set.as_str(), allowed]).expect("a chart");
        let images: Vec<_> =
            pods(&rendered).into_iter().map(|(kind, pod)| (kind, pod["containers"][0]["image"].clone())).collect();
        let [operator, tagged] = [operator, probe].map(|repository| format!("{repository}:0.2.0"));
        let expected = [("DaemonSet", &tagged), ("DaemonSet", &tagged), ("Deployment", &operator)];
        let expected = expected.into_iter().chain([("Job", &operator), ("Pod", &operator)]);
        let expected: Vec<_> = expected.map(|(kind, image)| (kind.to_owned(), json!(image))).collect();
        assert_eq!(images, expected, "{set}");
        // The operator's account may use the probe's image.
        let registry = if probe.contains(".example.com") { "" } else { "docker.io/" };
        assert!(rendered.contains(&format!(r#"["c.example.com","{registry}{probe}"]"#)), "{set}");
    }
}

#[test]
fn a_namespace_override_applies_to_all_objects_and_accounts() {
    let set = [&EVERYTHING[..], &["namespaceOverride=elsewhere"]].concat().join(",");
    let rendered = render(&cluster(), &["--namespace", "of-the-release", "--set", &set]).expect("a chart");
    let left: Vec<_> = rendered.lines().filter(|line| line.contains("of-the-release")).collect();
    assert!(left.is_empty(), "{left:?}");
    for account in ["nodestack-nvml-probe", "nodestack-dra-driver"] {
        assert!(rendered.contains(&format!("system:serviceaccount:elsewhere:{account}'")), "{account}");
    }
}

#[test]
fn security_contexts_apply_to_all_pods_of_their_part() {
    let set = "image.repository=x,operator.podSecurityContext.runAsUser=null,detector.podSecurityContext.runAsUser=7,\
               operator.securityContext.readOnlyRootFilesystem=false,detector.securityContext.runAsGroup=8";
    let found = pods(&template(&cluster(), &[set]).expect("a chart")).into_iter().map(|(kind, pod)| {
        let own = &pod["containers"][0]["securityContext"];
        let name = pod["containers"][0]["name"].as_str().unwrap_or_default().to_owned();
        let user = pod["securityContext"]["runAsUser"].clone();
        (kind, name, user, own["readOnlyRootFilesystem"].clone(), own["runAsGroup"].clone())
    });
    let row = |kind: &str, name: &str, user: Value, read_only: bool, group: Value| {
        (kind.to_owned(), name.to_owned(), user, json!(read_only), group)
    };
    let expected = [
        row("DaemonSet", "detector", json!(7), true, json!(8)),
        // That of the probe is fixed.
        row("DaemonSet", "nvml-probe", Value::Null, true, json!(0)),
        row("Deployment", "gpu-operator", Value::Null, false, Value::Null),
        row("Job", "uninstall", Value::Null, false, Value::Null),
        row("Pod", "check", Value::Null, false, Value::Null),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_disruption_budget_needs_a_second_replica() {
    for (set, budget) in [
        ("operator.replicas=2", Some(json!(1))),
        ("operator.replicas=4,operator.podDisruptionBudget.maxUnavailable=50%", Some(json!("50%"))),
        ("operator.replicas=1", None),
        ("operator.podDisruptionBudget.enabled=false", None),
    ] {
        let rendered = documents(&template(&cluster(), &["image.repository=x", set]).expect("a chart")).expect("YAML");
        let found = rendered.iter().find(|document| document["kind"] == "PodDisruptionBudget");
        assert_eq!(found.map(|found| found["spec"]["maxUnavailable"].clone()), budget, "{set}");
    }
}
