//! Removal of credentials from texts, such as logs and messages. What looks like a credential is removed, even if it is none.

use gpu_operator_common::text::hide_in_urls;

use super::names::is_sensitive;

/// What is shown in place of a credential.
pub const HIDDEN: &str = "***";

/// What tokens of well-known services begin with. `eyJ` begins every JSON object in base64, such as a JWT.
const TOKENS: [&str; 14] = [
    "AKIA",
    "ASIA",
    "dckr_pat_",
    "eyJ",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "hf_",
    "hvs.",
    "nvapi-",
    "sk-",
    "xox",
];
/// The length from which a word with such a beginning is a token.
const TOKEN: usize = 12;
/// The length of a line of a private key.
const KEY_LINE: usize = 64;
const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

pub fn text(text: &str) -> String {
    let text = hide_in_urls(&without_private_keys(text));
    text.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    let line = without_authorization(line);
    let line = without_words_after_bearer(&line);
    let line = without_values_of_flags(&line);
    let line = without_values(&line);
    let line = without_users(&line);
    without_tokens(&line)
}

/// Hides private keys. One that begins or ends outside of the text is hidden as far as it is in it.
fn without_private_keys(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PRIVATE_KEY) {
        let after = at + PRIVATE_KEY.len();
        let (header, tail) = (&rest[..at], &rest[after..]);
        let (begin, end) = (header.rfind(BEGIN), header.rfind(END));
        if begin > end {
            shown.push_str(&rest[..after]);
            shown.push_str(HIDDEN);
            rest = tail.find(END).map_or("", |end| &tail[end..]);
        } else if let Some(end) = end {
            // The key begins outside, unless it has just been hidden.
            let is_word = |c: char| c.is_ascii_alphanumeric() || "+/=\n\r\\ ".contains(c);
            shown.push_str(rest[..end].trim_end_matches(is_word));
            shown.push_str(&rest[end..after]);
            rest = tail;
        } else {
            shown.push_str(&rest[..after]);
            rest = tail;
        }
    }
    shown + rest
}

/// Hides the rest of a line after an `Authorization` header.
fn without_authorization(line: &str) -> String {
    const HEADER: &str = "authorization";
    let lower = line.to_ascii_lowercase();
    let mut from = 0;
    while let Some(at) = lower[from..].find(HEADER) {
        let end = from + at + HEADER.len();
        let value = line[end..].trim_start_matches(['"', '\'', '\\', ' ']);
        if value.starts_with([':', '=']) && !value.trim_end().ends_with(':') {
            let kept = line.len() - value.len() + 1;
            return format!("{} {HIDDEN}{}", &line[..kept], if line.ends_with('\n') { "\n" } else { "" });
        }
        from = end;
    }
    line.to_owned()
}

/// Hides the word after `Bearer`, if it looks like a token.
fn without_words_after_bearer(line: &str) -> String {
    let mut after_bearer = false;
    let words = line.split_inclusive(char::is_whitespace).map(|word| {
        let hides = after_bearer && word.trim_end().len() >= 8 && word.contains(|c: char| c.is_ascii_digit());
        let bare = word.trim_end();
        after_bearer = bare.get(bare.len().saturating_sub(6)..).is_some_and(|end| end.eq_ignore_ascii_case("bearer"));
        if hides { hidden_word(word) } else { word.to_owned() }
    });
    words.collect()
}

/// Hides the words after flags such as `--password`, and users with passwords after `-u`.
fn without_values_of_flags(line: &str) -> String {
    let (mut after_flag, mut after_user, mut quote) = (false, false, None);
    let words = line.split_inclusive(char::is_whitespace).map(|word| {
        let bare = word.trim();
        if let Some(open) = quote {
            if bare.ends_with(open) {
                quote = None;
            }
            return hidden_word(word);
        }
        if bare.is_empty() {
            return word.to_owned();
        }
        let hides = (after_flag && !bare.starts_with("--")) || (after_user && bare.contains(':'));
        if hides {
            quote = bare.chars().next().filter(|open| "\"'".contains(*open));
            quote = quote.filter(|open| bare.len() == 1 || !bare.ends_with(*open));
        }
        let flag = bare.trim_matches(['"', '\'', '`', '(', '[']);
        after_flag = flag.starts_with('-') && !flag.contains(['=', ':', ',']) && is_sensitive(flag);
        after_user = flag == "-u" || flag == "--user" || flag == "--proxy-user";
        if hides { hidden_word(word) } else { word.to_owned() }
    });
    words.collect()
}

/// Returns what replaces a word, with the white space that ends it.
fn hidden_word(word: &str) -> String {
    format!("{HIDDEN}{}", &word[word.trim_end().len()..])
}

/// Hides the values of pairs such as `token=…`, `password: …`, `"secret":"…"` and `"--token","…"`.
fn without_values(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    let mut before = String::new();
    while let Some(at) = rest.find(['=', ':', ',']) {
        let (start, after) = rest.split_at(at + 1);
        before.push_str(&start[..at]);
        shown.push_str(start);
        rest = after;
        let is_path = start.ends_with(':') && after.starts_with(':');
        let is_list = start.ends_with(',');
        if !is_path && names_credential(&before, is_list) {
            let begins_line = start.ends_with(':')
                && name_of(&before).is_some_and(|name| before.trim_start_matches([' ', '\t', '-']) == name);
            let opening = after.len() - after.trim_start_matches(['"', '\'', '\\', ' ', '\t', '[', '{']).len();
            let (opening, value) = after.split_at(opening);
            let end = if begins_line && !opening.contains(['"', '\'']) {
                value.trim_end().len()
            } else {
                end_of_value(opening, value)
            };
            shown.push_str(opening);
            if end > 0 {
                shown.push_str(HIDDEN);
            }
            rest = &value[end..];
        }
        before.clear();
    }
    shown + rest
}

/// Returns whether a text ends with the name of a credential, which is a flag if it is an item of a list.
fn names_credential(before: &str, is_list: bool) -> bool {
    name_of(before).is_some_and(|name| is_sensitive(name) && (!is_list || name.starts_with('-')))
}

fn name_of(before: &str) -> Option<&str> {
    let before = before.trim_end_matches(['"', '\'', '\\', ' ']);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let start = before.trim_end_matches(is_part).len();
    Some(&before[start..]).filter(|name| !name.is_empty())
}

/// Returns the end of a value: the quote that closes it, or else white space or any quote.
fn end_of_value(opening: &str, value: &str) -> usize {
    let quote = opening.chars().rev().find(|c| "\"'".contains(*c));
    let escaped_quote = opening.contains('\\');
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        let ends = match quote {
            Some(quote) => c == quote && !escaped,
            None => c.is_whitespace() || c == '"' || c == '\'',
        };
        if ends || c == '\n' {
            // The backslash of an escaped quote is kept, as is the one of the opening quote.
            return at - usize::from(escaped_quote && ends && value[..at].ends_with('\\'));
        }
        escaped = c == '\\' && !escaped && !escaped_quote;
    }
    value.len()
}

/// Hides users with passwords before `@`. Digests of images are kept.
fn without_users(line: &str) -> String {
    let words = line.split_inclusive(|c: char| c.is_whitespace() || "\"'`<>(){},=".contains(c));
    words.map(without_user).collect()
}

fn without_user(word: &str) -> String {
    let Some((before, host)) = word.rsplit_once('@') else { return word.to_owned() };
    let (scheme, user) = before.split_once("://").unwrap_or(("", before));
    let is_digest = host.starts_with("sha256:") || host.starts_with("sha512:");
    if is_digest || !user.contains(':') {
        return word.to_owned();
    }
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    format!("{scheme}{HIDDEN}@{host}")
}

/// Hides words that look like tokens or like lines of a private key.
fn without_tokens(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.+/=".contains(c);
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_part) {
        shown.push_str(&rest[..start]);
        let from = &rest[start..];
        let word = &from[..from.find(|c| !is_part(c)).unwrap_or(from.len())];
        shown.push_str(&without_token(word));
        rest = &from[word.len()..];
    }
    shown + rest
}

fn without_token(word: &str) -> String {
    if is_key_line(word) {
        return HIDDEN.to_owned();
    }
    // A token begins the word, or follows a separator in it.
    let separated = |at: usize| word[..at].chars().next_back().is_none_or(|c| "=/._-+".contains(c));
    let begins = |prefix: &'static str| word.match_indices(prefix).map(|(at, _)| at).find(|at| separated(*at));
    let start = TOKENS.into_iter().filter_map(begins).min();
    match start {
        Some(start) if word.len() - start >= TOKEN => format!("{}{HIDDEN}", &word[..start]),
        _ => word.to_owned(),
    }
}

fn is_key_line(word: &str) -> bool {
    let is_base64 = word.len() == KEY_LINE && word.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c));
    let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
    is_base64 && has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(|c| !c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts with a credential that contains CANARY or canary, and what is shown.
    const CASES: [(&str, &str); 38] = [
        ("a GET https://me:canary@h/p?q=canary b", "a GET https://***@h/p?*** b"),
        ("http://me:ca/nary@h", "http://***@h"),
        ("proxy me:canary@proxy:3128 failed", "proxy ***@proxy:3128 failed"),
        ("> Authorization: Basic canary=\nnext", "> Authorization: ***\nnext"),
        ("authorization=canary", "authorization= ***"),
        (r#"{"Proxy-Authorization":["Bearer canary"]}"#, r#"{"Proxy-Authorization": ***"#),
        ("sent Bearer canary12345 to h", "sent Bearer *** to h"),
        ("token: Bearer canary12345", "token: ***"),
        ("t eyJcanary.eyJcanary.canary_-, u", "t ***, u"),
        ("cut eyJcanaryabc", "cut ***"),
        ("t=eyJcanary.eyJcanary.canary", "t=***"),
        ("key nvapi-canary12345", "key ***"),
        ("key hf_canary12345", "key ***"),
        ("key sk-proj-canary12345", "key ***"),
        ("key xoxb-canary12345", "key ***"),
        ("DB_PASS=canary NODE=a", "DB_PASS=*** NODE=a"),
        ("TOKEN=canary NODE=a", "TOKEN=*** NODE=a"),
        ("a token=canary,b", "a token=***"),
        ("password: canary canary", "password: ***"),
        ("  - secret: canary canary\nnext: a", "  - secret: ***\nnext: a"),
        (r#"{"password":"ca\"nary","a":1}"#, r#"{"password":"***","a":1}"#),
        (r#"{"password" : "canary canary"}"#, r#"{"password" : "***"}"#),
        (r#"msg="{\"token\":\"canary\",\"a\":1}""#, r#"msg="{\"token\":\"***\",\"a\":1}""#),
        ("password='canary canary' a", "password='***' a"),
        (r#"["--password","canary","a"]"#, r#"["--password","***","a"]"#),
        ("run --password canary --a b", "run --password *** --a b"),
        ("run --password 'canary canary' b", "run --password *** *** b"),
        ("run --api-key=canary b", "run --api-key=*** b"),
        ("curl -u me:canary h", "curl -u *** h"),
        (
            "a -----BEGIN RSA PRIVATE KEY-----\ncanary\n-----END RSA PRIVATE KEY----- b",
            "a -----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- b",
        ),
        ("-----BEGIN PRIVATE KEY-----\ncanary\ncanary", "-----BEGIN PRIVATE KEY-----***"),
        ("a: 1\nCANARY/+\ncanary=\n-----END PRIVATE KEY-----\nb", "a:-----END PRIVATE KEY-----\nb"),
        (
            "-----BEGIN PRIVATE KEY-----\\ncanary\\n-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----",
        ),
        ("a CANARYcanaryCANARYcanaryCANARYcanaryCANARYcanaryCANARYcanaryCANA b", "a *** b"),
        ("https://h/a?sig=canary", "https://h/a?***"),
        ("secret = \"canary\"", "secret = \"***\""),
        ("access_key_id:canary", "access_key_id:***"),
        ("ü token=ücanary ü", "ü token=*** ü"),
    ];

    #[test]
    fn credentials_in_texts_are_hidden() {
        for (given, shown) in CASES {
            assert!(given.to_ascii_lowercase().contains("nary"), "{given}");
            assert_eq!(text(given), shown, "{given}");
        }
    }

    #[test]
    fn other_texts_are_unchanged() {
        for given in [
            "",
            "\n",
            "node a is ready: 8 GPUs at 10:00:00Z",
            "pulled nvcr.io/nvidia/driver:595@sha256:0123456789abcdef",
            "gpu_operator::token::refresh: done",
            "workqueue_depth{name=\"node\",key=\"a\"} 1",
            "mail root@node, scope @a",
            "secrets is forbidden",
            "Unable to retrieve image pull secrets (regcred)",
            "bearer tokens are used",
            "authorization mode RBAC",
            "disk-pressure-taint and taxoxide-1234567",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            "a PRIVATE KEY----- b",
        ] {
            assert_eq!(text(given), given);
        }
    }

    proptest! {
        #[test]
        fn no_url_keeps_its_user_or_query(
            before in "[ -~]{0,20}",
            user in "[a-z]{1,8}",
            host in "[a-z]{1,8}(:[0-9]{2,4})?",
            path in "(/[a-z.]{0,8}){0,2}",
            after in "[ -~]{0,20}",
        ) {
            let given = format!("{before} https://{user}:CANARY1@{host}{path}?sig=CANARY2 {after}");
            let shown = text(&given);
            prop_assert!(!shown.contains("CANARY"), "{}", shown);
        }

        #[test]
        fn what_is_redacted_is_not_changed_again(given in "[ -~\n]{0,200}") {
            let shown = text(&given);
            prop_assert_eq!(text(&shown), shown);
        }

        #[test]
        fn no_value_of_a_token_is_kept(before in "[ -~\n]{0,40}", after in "[ -~\n]{0,40}") {
            for pair in ["token=CANARY", "--password CANARY", "\"secret\":\"CANARY\"", "Authorization: x CANARY"] {
                let shown = text(&format!("{before}\n{pair}\n{after}"));
                prop_assert!(!shown.contains("CANARY"), "{}", shown);
            }
        }
    }
}
