//! Names of models that the catalogue does not have.

/// The maximum length of a label value.
const LONGEST: usize = 63;

/// Returns a canonical name for a PCI device that the catalogue does not have: `nvidia-` and the product name from NVML or, if
/// that is unknown, the PCI id (`nvidia-10de-2684`). The name is a legal label value of lower-case letters, digits and `-` only,
/// so that it can also be part of an object's name.
pub fn unknown_model_name(device_id: u16, product_name: Option<&str>) -> String {
    let mut words = product_name.map(sanitised).unwrap_or_default();
    if let Some(rest) = words.strip_prefix("nvidia-") {
        words = rest.to_owned();
    }
    // NVML may return only the vendor's name, which does not distinguish models.
    if words.is_empty() || words == "nvidia" {
        words = format!("10de-{device_id:04x}");
    }
    let name = format!("nvidia-{words}");
    // The name is ASCII here, so truncation cannot split a character.
    name.get(..LONGEST).unwrap_or(&name).trim_end_matches('-').to_owned()
}

/// Returns the text in lower case, with each sequence of other characters than ASCII letters and digits replaced by one `-`.
fn sanitised(text: &str) -> String {
    let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

/// Returns whether a model's name is that of a desktop or workstation card.
pub(super) fn is_desktop(name: &str) -> bool {
    let families = ["quadro-", "geforce-", "titan-", "rtx-", "nvs-"];
    name.strip_prefix("nvidia-").is_some_and(|rest| families.iter().any(|family| rest.starts_with(family)))
}

/// Returns whether this is a legal non-empty label value, or a legal name part of a label key.
pub fn is_label_value(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST && text.starts_with(outer) && text.ends_with(outer) && text.chars().all(inner)
}
