//! Names for what the catalogue does not know.

/// Longest legal label value.
const LONGEST: usize = 63;

/// A canonical name for a PCI device that the catalogue lacks: `nvidia-` and the product's name as NVML gives it, or
/// else the PCI id (`nvidia-10de-2684`). Always a legal label value, of lower-case letters, digits and `-` alone, so that
/// it can be part of an object's name as well.
#[must_use]
pub fn unknown_model_name(device_id: u16, product_name: Option<&str>) -> String {
    let mut words = product_name.map(sanitised).unwrap_or_default();
    if let Some(rest) = words.strip_prefix("nvidia-") {
        words = rest.to_owned();
    }
    // NVML may answer with the vendor's name alone, which tells no two models apart.
    if words.is_empty() || words == "nvidia" {
        words = format!("10de-{device_id:04x}");
    }
    let name = format!("nvidia-{words}");
    // All ASCII by now, so that cutting cannot split a letter.
    name.get(..LONGEST).unwrap_or(&name).trim_end_matches('-').to_owned()
}

/// Lower-case ASCII letters and digits, everything between them one `-`.
fn sanitised(text: &str) -> String {
    let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

/// Whether a model's name is that of a desktop or workstation card.
pub(super) fn is_desktop(name: &str) -> bool {
    let families = ["quadro-", "geforce-", "titan-", "rtx-", "nvs-"];
    name.strip_prefix("nvidia-").is_some_and(|rest| families.iter().any(|family| rest.starts_with(family)))
}

/// Whether Kubernetes takes this as a non-empty label value, or as what stands behind the prefix of a label's key.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST && text.starts_with(outer) && text.ends_with(outer) && text.chars().all(inner)
}
