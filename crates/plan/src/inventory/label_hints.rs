//! Labels that seem to name another product than the node's model: they are left as written and reported with the actual model.

use gpu_operator_crd::{keys, policy::Labels};

use crate::world::NodeLabels;

/// `on_node` are all labels of the node, because those of users can contradict the hardware as well.
pub fn mismatch_message(published: &Labels, on_node: &NodeLabels, model: Option<&str>) -> Option<String> {
    let model = model?.to_lowercase();
    let names_another = |value: &str| {
        // Every product has three digits, and few values have as many.
        if value.bytes().filter(u8::is_ascii_digit).count() < 3 {
            return false;
        }
        let words = value.split(|c: char| !c.is_ascii_alphanumeric());
        let mut products = words.filter(|word| is_product(word)).peekable();
        products.peek().is_some() && products.all(|word| !model.contains(&word.to_lowercase()))
    };
    // Labels that are derived from the report are of the GPUs themselves, and also name the machine.
    let named = published.iter().filter(|(key, _)| !keys::is_discovered(key));
    let published_labels = named.map(|(key, value)| (key.as_str(), value.as_str()));
    let by_policy: Vec<String> =
        published_labels.filter(|(_, value)| names_another(value)).map(|(key, value)| written(key, value)).collect();
    let others = on_node.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    // Few values name a product, so they are checked first.
    let others = others.filter(|(key, value)| names_another(value) && !published.contains_key(*key) && is_of_gpus(key));
    let by_user: Vec<String> = others.map(|(key, value)| written(key, value)).collect();
    let by_policy = (!by_policy.is_empty()).then(|| format!("the policy publishes {}", by_policy.join(" and ")));
    let by_user = (!by_user.is_empty()).then(|| format!("the node is labelled {}", by_user.join(" and ")));
    let labels: Vec<String> = by_policy.into_iter().chain(by_user).collect();
    (!labels.is_empty()).then(|| format!("{}, but the GPUs are of model {model}", labels.join(", ")))
}

fn written(key: &str, value: &str) -> String {
    format!("{key}={value}")
}

/// Whether a user's label is about the node's GPUs. NVIDIA's labels also name the machine; those of clouds are compared elsewhere.
fn is_of_gpus(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    let a_programs = prefix == "nvidia.com"
        || ["nodestack.dev", "k8s.io", "kubernetes.io", "google.com", "k8s.aws", "amazonaws.com", "azure.com"]
            .iter()
            .any(|of| prefix.ends_with(of));
    let word = |text: &str| ["gpu", "accelerator", "nvidia"].iter().any(|word| text.to_lowercase().contains(word));
    !a_programs && (word(prefix) || word(name))
}

/// A product's name is a letter and three digits, or `rtx` or `gtx` and three or four digits, and up to two letters. Shorter names, such as
/// `t4`, are ambiguous.
fn is_product(word: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic();
    let digits = word.trim_start_matches(is_letter);
    let counts = match &word[..word.len() - digits.len()] {
        letters if letters.len() == 1 => 3..=3,
        letters if ["rtx", "gtx"].iter().any(|line| letters.eq_ignore_ascii_case(line)) => 3..=4,
        _ => return false,
    };
    let number = digits.trim_end_matches(is_letter);
    let rest = digits.len() - number.len();
    rest <= 2 && counts.contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_label_that_names_another_product_is_reported() {
        for (value, model, reported) in [
            ("P630", "nvidia-quadro-k620", true),
            ("nvidia-tesla-p100", "nvidia-tesla-v100", true),
            ("rtx4090", "nvidia-geforce-rtx-2080-ti", true),
            ("RTX4090", "nvidia-geforce-rtx-2080-ti", true),
            ("K620", "nvidia-quadro-k620", false),
            ("H100-80GB", "nvidia-h100-80gb", false),
            ("nvidia-tesla-k80", "nvidia-tesla-k80", false),
            ("yes", "nvidia-quadro-k620", false),
            ("team-a", "nvidia-quadro-k620", false),
            ("rack12345", "nvidia-quadro-k620", false),
            ("gpu01", "nvidia-quadro-k620", false),
            ("row12", "nvidia-quadro-k620", false),
            ("x86-64", "nvidia-quadro-k620", false),
            ("dc101", "nvidia-quadro-k620", false),
            ("v12", "nvidia-quadro-k620", false),
            ("", "nvidia-quadro-k620", false),
        ] {
            let published = Labels::from([("gpu/nividia".to_owned(), value.to_owned())]);
            assert_eq!(
                mismatch_message(&published, &NodeLabels::new(), Some(model)).is_some(),
                reported,
                "{value} on {model}"
            );
            assert_eq!(mismatch_message(&published, &NodeLabels::new(), None), None);
        }
    }

    #[test]
    fn labels_derived_from_the_report_are_ignored() {
        let machine = Labels::from([("nvidia.com/gpu.machine".to_owned(), "PowerEdge-R750".to_owned())]);
        assert_eq!(mismatch_message(&machine, &NodeLabels::new(), Some("nvidia-quadro-k620")), None);
    }

    #[test]
    fn the_remark_names_the_labels_and_the_model() {
        let published = Labels::from([("gpu/nividia".to_owned(), "P630".to_owned()), ("x".to_owned(), "y".to_owned())]);
        let on_node = NodeLabels::from([("gpu/nividia".into(), "P630".into()), ("gpu-type".into(), "p620".into())]);
        let only_published = mismatch_message(&published, &NodeLabels::new(), Some("nvidia-quadro-k620")).unwrap();
        assert_eq!(
            only_published,
            "the policy publishes gpu/nividia=P630, but the GPUs are of model nvidia-quadro-k620"
        );
        assert_eq!(
            mismatch_message(&published, &on_node, Some("nvidia-quadro-k620")).unwrap(),
            "the policy publishes gpu/nividia=P630, the node is labelled gpu-type=p620, but the GPUs are of model nvidia-quadro-k620"
        );
    }

    #[test]
    fn a_users_label_is_compared_if_its_key_is_about_gpus() {
        for (key, value, reported) in [
            ("gpu/nividia", "P630", true),
            ("accelerator", "nvidia-tesla-p100", true),
            ("example.com/gpu-model", "H100", true),
            ("gpu/nividia", "K620", false),
            ("example.com/chassis", "r750", false),
            ("nvidia.com/gpu.machine", "PowerEdge-R750", false),
            ("cloud.google.com/gke-accelerator", "nvidia-tesla-p100", false),
            ("gpu.nodestack.dev/model", "nvidia-tesla-p100", false),
        ] {
            let on_node = NodeLabels::from([(key.into(), value.into())]);
            let remark = mismatch_message(&Labels::new(), &on_node, Some("nvidia-quadro-k620"));
            assert_eq!(remark.is_some(), reported, "{key}={value}: {remark:?}");
        }
    }
}
