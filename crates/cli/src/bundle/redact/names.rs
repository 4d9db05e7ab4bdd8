//! Names whose values are credentials.

/// Words that a name contains if its value is a credential.
const CREDENTIALS: [&str; 6] = ["token", "password", "passwd", "passphrase", "secret", "credential"];
/// The last of several words of a name whose value is a credential. `PWD` alone is a directory.
const ENDINGS: [&str; 4] = ["auth", "pass", "pat", "pwd"];
/// What precedes the word *key* in the name of a key that is a credential. Most keys of Kubernetes are none.
const KEYS: [&str; 12] = [
    "access",
    "account",
    "api",
    "auth",
    "encryption",
    "license",
    "master",
    "private",
    "secret",
    "signing",
    "ssh",
    "storage",
];
/// The last word of a name whose value is not a credential, but names its place or its lifetime.
const PLACES: [&str; 8] = ["dir", "file", "kind", "name", "namespace", "path", "ref", "ttl"];

/// Returns whether the value of an environment variable is a credential, by its name.
pub fn is_sensitive_variable(name: &str) -> bool {
    let words = words(name);
    contains_credential(name)
        || ends_as_credential(&words)
        || words.iter().any(|word| is_key(word) || is_compound(word))
}

/// Returns whether the value of a field, of a flag or of a pair in a text is a credential, by its name.
pub fn is_sensitive(name: &str) -> bool {
    let words = words(name);
    let is_place = words.last().is_some_and(|last| PLACES.contains(&last.as_str()));
    // Pull secrets are referred to by name only.
    if is_place || matches!(words.as_slice(), [.., pull, secret] if pull == "pull" && secret.starts_with("secret")) {
        return false;
    }
    let is_pair = |pair: &[String]| KEYS.contains(&pair[0].as_str()) && is_key(&pair[1]);
    contains_credential(name)
        || ends_as_credential(&words)
        || words.windows(2).any(is_pair)
        || words.iter().any(|word| is_compound(word))
}

fn contains_credential(name: &str) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    CREDENTIALS.iter().any(|word| name.contains(word))
}

fn ends_as_credential(words: &[String]) -> bool {
    matches!(words, [_, .., last] if ENDINGS.contains(&last.as_str()))
}

fn is_key(word: &str) -> bool {
    word == "key" || word == "keys"
}

/// Returns whether a word is one such as `apikey`.
fn is_compound(word: &str) -> bool {
    let stem = word.strip_suffix("keys").or_else(|| word.strip_suffix("key"));
    stem.is_some_and(|stem| KEYS.iter().any(|key| stem.ends_with(key)))
}

/// Returns the words of a name in lower case: `API_KEY`, `api-key` and `apiKey` have two.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || (was_lower && c.is_ascii_uppercase()) {
            words.push(String::new());
        }
        was_lower = c.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_by_parts_of_names() {
        for name in [
            "TOKEN",
            "NGC_API_KEY",
            "apiKey",
            "APIKEY",
            "DB_PASSWORD",
            "clientSecret",
            "AWS_CREDENTIALS",
            "--access-key",
            "GITHUBTOKEN",
            "registry.passphrase",
            "private-key",
            "DB_PASS",
            "dbPwd",
            "REGISTRY_AUTH",
            "GITHUB_PAT",
        ] {
            assert!(is_sensitive_variable(name) && is_sensitive(name), "{name}");
        }
        for name in [
            "PATH",
            "MONKEY",
            "NVIDIA_VISIBLE_DEVICES",
            "keyboard",
            "NODE_NAME",
            "pass-device-specs",
            "PWD",
            "OLDPWD",
            "COMPAT",
        ] {
            assert!(!is_sensitive_variable(name) && !is_sensitive(name), "{name}");
        }
        // A variable of any key is hidden; a field that is called key is not.
        for name in ["KEY", "SSL_KEY", "topologyKey", "secretName", "TOKEN_FILE", "--image-pull-secret", "pullSecrets"]
        {
            assert!(is_sensitive_variable(name) && !is_sensitive(name), "{name}");
        }
    }
}
