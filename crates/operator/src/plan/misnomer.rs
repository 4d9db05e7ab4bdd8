//! Labels that a policy publishes and that read like the name of another product than the node's: they are published as
//! written, and told of beside the model that is there.

use gpu_operator_crd::policy::Labels;

/// That labels name another product than the node's model, in a sentence; `None` where none does.
#[must_use]
pub fn remark(published: &Labels, model: Option<&str>) -> Option<String> {
    let model = model?.to_lowercase();
    let names_another = |value: &&str| {
        let words: Vec<String> = value.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_lowercase).collect();
        words.iter().any(|word| is_product(word)) && !words.iter().any(|word| is_product(word) && model.contains(word))
    };
    let labels: Vec<String> = published
        .iter()
        .filter(|(_, value)| names_another(&value.as_str()))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    (!labels.is_empty())
        .then(|| format!("the policy publishes {}, and the GPUs are of model {model}", labels.join(" and ")))
}

/// Whether a word, in lower case, is formed like a product's name and like little else: a letter and three digits, or `rtx` or
/// `gtx` and more of them. Shorter names, such as `t4`, are formed like too much.
fn is_product(word: &str) -> bool {
    let (digits, counts) = match word.strip_prefix("rtx").or_else(|| word.strip_prefix("gtx")) {
        Some(rest) => (rest, 3..=4),
        None => (word.trim_start_matches(|c: char| c.is_ascii_lowercase()), 3..=3),
    };
    let letters = word.len() - digits.len();
    let number = digits.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let rest = digits.len() - number.len();
    let named = letters == 1 || letters == 3 && counts != (3..=3);
    named && rest <= 2 && counts.contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_names_another_product_is_told_of_and_no_other() {
        for (value, model, told) in [
            ("P630", "nvidia-quadro-k620", true),
            ("nvidia-tesla-p100", "nvidia-tesla-v100", true),
            ("rtx4090", "nvidia-geforce-rtx-2080-ti", true),
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
            assert_eq!(remark(&published, Some(model)).is_some(), told, "{value} on {model}");
            assert_eq!(remark(&published, None), None);
        }
    }

    #[test]
    fn the_remark_names_the_labels_and_the_model() {
        let published = Labels::from([("gpu/nividia".to_owned(), "P630".to_owned()), ("x".to_owned(), "y".to_owned())]);
        let remark = remark(&published, Some("nvidia-quadro-k620")).unwrap();
        assert_eq!(remark, "the policy publishes gpu/nividia=P630, and the GPUs are of model nvidia-quadro-k620");
    }
}
