//! Texts that others write: bounds of what is kept of them, and removal of credentials from what is shown.

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

/// What ends a URL in a text, apart from white space.
const END: [char; 5] = ['"', '\'', '`', '<', '>'];

/// Returns a text with `***` in place of the user and password, and of the query, of each URL in it, such as
/// `http://***@proxy.example.com` and `https://mirror.example.com/a.run?***`: the query of a signed URL is a credential. Programs write
/// the URLs that they are given into their logs, and the ends of logs are shown in statuses and Events.
pub fn hide_in_urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(is_end).unwrap_or(after.len());
        let host_end = after[..end].find('/').unwrap_or(end);
        // A password may contain '@', '?' and '#', although they should be escaped there.
        let at = after[..host_end].rfind('@');
        if at.is_some() {
            shown.push_str("***");
        }
        let url = &after[at.unwrap_or_default()..end];
        rest = match url.split_once('?') {
            // Of two URLs in sequence, the first one has no query.
            Some((path, _)) if !path.contains("://") => {
                shown.push_str(path);
                shown.push_str("?***");
                &after[end..]
            }
            _ => &after[at.unwrap_or_default()..],
        };
    }
    shown + rest
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || END.contains(&c)
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

    #[test]
    fn user_password_and_query_of_every_url_are_hidden() {
        for (text, shown) in [
            ("", ""),
            ("curl: (22) https://me:canary@mirror/a.run: 403", "curl: (22) https://***@mirror/a.run: 403"),
            ("http://canary@p:3128", "http://***@p:3128"),
            ("http://me:can#ary?@p:3128", "http://***@p:3128"),
            ("http://me:can@ary@p:3128", "http://***@p:3128"),
            ("a 'http://me:canary@p' b \"https://me:canary@q?x=1\"", "a 'http://***@p' b \"https://***@q?***\""),
            ("https://mirror/a.run?token=canary&x=/b@c failed", "https://mirror/a.run?*** failed"),
            ("https://mirror/a?to=https://b/c&token=canary", "https://mirror/a?***"),
            ("http://me:canary@http://b/c?token=canary", "http://***@http://b/c?***"),
            ("<https://mirror?token=canary>, what?", "<https://mirror?***>, what?"),
            ("http://me:canary@http://me:canary@p", "http://***@http://***@p"),
            ("https://mirror/@scope/a@1, mail root@node", "https://mirror/@scope/a@1, mail root@node"),
            ("ü://ü:canary@ü/ü", "ü://***@ü/ü"),
            ("://", "://"),
        ] {
            assert_eq!(hide_in_urls(text), shown);
        }
    }
}
