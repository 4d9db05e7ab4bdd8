//! Bounds of what is kept of texts and objects that others write.

/// The maximum length of an object's name in Kubernetes, in bytes.
pub const MAX_NAME: usize = 253;

/// Shortens a text to at most this many characters.
pub fn shorten(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
    }
}

/// Returns the beginning of a text, of at most this many bytes.
pub fn clipped(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, most, expected) in
            [("abc", 3, "abc"), ("abc", 2, "ab"), ("aäb", 2, "a"), ("aäb", 3, "aä"), ("", 0, "")]
        {
            assert_eq!(clipped(text, most), expected, "{text} {most}");
        }
    }
}
