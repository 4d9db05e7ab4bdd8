//! Removes credentials from texts that are shown.

/// What ends the host of a URL in a text. Of `?` and `#`, which end it too, a password may contain one that is not escaped.
const END: [char; 6] = ['/', '"', '\'', '`', '<', '>'];

/// Returns a text with `***` in place of the user and password of each URL in it, such as `http://***@proxy.example.com`. Programs
/// write the URLs that they are given into their logs, and the ends of logs are shown in statuses and Events.
#[must_use]
pub fn hide_in_urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || END.contains(&c)).unwrap_or(after.len());
        // A password may contain '@', although it should be escaped there.
        rest = match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str("***");
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_of_every_url_are_hidden() {
        for (text, shown) in [
            ("", ""),
            ("curl: (22) https://me:canary@mirror/a.run: 403", "curl: (22) https://***@mirror/a.run: 403"),
            ("http://canary@p:3128", "http://***@p:3128"),
            ("http://me:can#ary?@p:3128", "http://***@p:3128"),
            ("http://me:can@ary@p:3128", "http://***@p:3128"),
            ("a 'http://me:canary@p' b \"https://me:canary@q?x=1\"", "a 'http://***@p' b \"https://***@q?x=1\""),
            ("http://me:canary@http://me:canary@p", "http://***@http://***@p"),
            ("https://mirror/@scope/a@1, mail root@node", "https://mirror/@scope/a@1, mail root@node"),
            ("ü://ü:canary@ü/ü", "ü://***@ü/ü"),
            ("://", "://"),
        ] {
            assert_eq!(hide_in_urls(text), shown);
        }
    }
}
