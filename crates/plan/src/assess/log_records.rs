//! A container's log as records: lines with those that continue them.

/// The size from which the beginning of a message may be missing: 2048 bytes without surrounding whitespace.
const CUT_FROM: usize = 2000;
/// In characters, of the 1,024 of a node's whole message.
pub const MAX_LENGTH: usize = 600;

/// What programs without log levels print about errors, in lower case.
const ERRORS: [&str; 18] = [
    "error",
    "fatal",
    "failed",
    "failure",
    "panic",
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "unable to",
    "not found",
    "no such",
    "denied",
    "refused",
    "mismatch",
    "timed out",
    "no space left",
    "segmentation fault",
];

/// Log levels, and whether they are those of errors. Apt prints the first letter.
const LEVELS: [(&str, bool); 14] = [
    ("trace", false),
    ("debug", false),
    ("info", false),
    ("notice", false),
    ("warn", false),
    ("warning", false),
    ("i", false),
    ("w", false),
    ("error", true),
    ("fatal", true),
    ("critical", true),
    ("panic", true),
    ("e", true),
    ("f", true),
];

/// What NVIDIA's module prefixes its lines in the kernel's log with.
const KERNEL_MODULE: &str = "NVRM: ";

/// A line of a log, with the lines that continue it.
pub struct Record<'l> {
    pub head: &'l str,
    continued: Vec<&'l str>,
    is_cut: bool,
}

/// Leaves out stack traces of Go's goroutines, and commands that shells print before executing them.
pub fn records(log: &str) -> Vec<Record<'_>> {
    let lines: Vec<_> = log.split(['\n', '\r']).map(str::trim_end).collect();
    let mut records: Vec<Record<'_>> = Vec::new();
    let mut continues = false;
    for (index, line) in lines.iter().copied().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        if continues_a_line(line, records.last()) {
            let text = line.trim_start();
            if let Some(record) = records.last_mut().filter(|_| continues && !text.is_empty() && !is_quote(text)) {
                record.continued.push(kernel_message(text).unwrap_or(text));
            }
        } else {
            continues = !is_of_stack(line, next) && !is_command(line);
            let is_cut = records.is_empty() && index == 0 && log.len() >= CUT_FROM;
            records.extend(continues.then(|| Record { head: line, continued: Vec::new(), is_cut }));
        }
        continues &= !line.is_empty();
    }
    records
}

fn continues_a_line(line: &str, last: Option<&Record<'_>>) -> bool {
    // The kernel and dkms wrap lines without an indentation.
    let is_wrapped = |last: &Record<'_>| {
        let end = last.continued.last().unwrap_or(&last.head);
        end.ends_with(" at") || !end.ends_with('.') && last.is_of_kernel_module() && kernel_message(line).is_some()
    };
    line.starts_with(char::is_whitespace) || !line.contains(char::is_alphanumeric) || last.is_some_and(is_wrapped)
}

/// A compiler quotes the line of an error, and underlines it.
fn is_quote(line: &str) -> bool {
    line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
}

/// In a stack trace of Go, an indented line with the place follows each function.
fn is_of_stack(line: &str, next: &str) -> bool {
    line.starts_with("goroutine ") || next.starts_with('\t') && next.contains(".go:")
}

fn is_command(line: &str) -> bool {
    line.trim_start_matches('+').len() < line.len() && line.trim_start_matches('+').starts_with(' ')
}

impl Record<'_> {
    /// By the record's level if it has one, otherwise by its text.
    pub fn reports_an_error(&self) -> bool {
        let words = self.head.to_lowercase();
        // An installer prints the end of the kernel's log, with lines of all devices.
        if kernel_line(self.head).is_some() && !["nvidia", "nvrm", "module"].iter().any(|word| words.contains(word)) {
            return false;
        }
        let by_words =
            || ERRORS.iter().any(|error| contains_word(&words, error)) || begins_with_an_exception(self.head);
        level_is_error(self.head).unwrap_or_else(by_words)
    }

    /// Returns whether it is a line of NVIDIA's module in the kernel's log.
    pub fn is_of_kernel_module(&self) -> bool {
        kernel_message(self.head).is_some()
    }

    fn joined(&self, head: &str) -> String {
        [head].into_iter().chain(self.continued.iter().copied()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the whole record in lower case.
    pub fn to_lowercase(&self) -> String {
        self.joined(self.head).to_lowercase()
    }

    pub fn text(&self) -> String {
        let text = self.joined(if self.is_cut { self.head } else { without_time(self.head) });
        let surplus = text.chars().count().saturating_sub(MAX_LENGTH);
        match (self.is_cut, surplus) {
            (true, surplus) => format!("…{}", text.chars().skip(surplus).collect::<String>()),
            (false, 0) => text,
            (false, _) => text.chars().take(MAX_LENGTH).chain(['…']).collect(),
        }
    }
}

/// Whether a text contains words that are not part of longer ones.
fn contains_word(text: &str, words: &str) -> bool {
    let borders = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    text.match_indices(words)
        .any(|(at, found)| borders(text[..at].chars().next_back()) && borders(text[at + found.len()..].chars().next()))
}

/// The last line of Python's tracebacks begins with the name of an exception.
fn begins_with_an_exception(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '.' || c == '_');
    is_name && (name.contains("Error") || name.contains("Exception"))
}

/// A level is a field of logrus or JSON, the letter before the date in klog's lines, the first word with a colon, or one of the first words
/// in upper case.
fn level_is_error(line: &str) -> Option<bool> {
    let of_name =
        |name: &str| LEVELS.iter().find(|(level, _)| level.eq_ignore_ascii_case(name)).map(|(_, is_error)| *is_error);
    let field = ["level=", "\"level\":\""].iter().find_map(|field| line.split_once(field)).map(|(_, value)| value);
    if let Some(value) = field {
        return of_name(value.trim_start_matches('"').split(|c: char| !c.is_alphabetic()).next()?);
    }
    let first = line.split_whitespace().next()?;
    let first = if klog_message(line).is_some() { &first[..1] } else { first.strip_suffix(':').unwrap_or_default() };
    let upper = || {
        let names = line.split_whitespace().take(4).map(|word| word.trim_matches(|c: char| !c.is_alphabetic()));
        let mut names = names.filter(|name| name.len() > 1 && name.chars().all(char::is_uppercase));
        names.find_map(of_name)
    };
    of_name(first).or_else(upper)
}

/// Returns the message of a line by klog, with its place in the source: `E1124 10:00:00.000000 1 main.go:1] message`.
fn klog_message(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(['I', 'W', 'E', 'F'])?;
    let (date, rest) = rest.split_at_checked(4)?;
    let is_header = date.bytes().all(|byte| byte.is_ascii_digit()) && rest.starts_with(' ');
    // Time and thread.
    is_header.then(|| rest.trim_start().splitn(3, char::is_whitespace).last()).flatten()
}

/// Returns a line of the kernel's log without its time: `[   12.345678] `.
fn kernel_line(line: &str) -> Option<&str> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let is_time = time.contains('.') && time.trim_start().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_time.then_some(rest)
}

fn kernel_message(line: &str) -> Option<&str> {
    kernel_line(line).unwrap_or(line).strip_prefix(KERNEL_MODULE)
}

fn without_time(line: &str) -> &str {
    if let Some(line) = kernel_line(line) {
        return line;
    }
    if let Some(message) = klog_message(line) {
        return message.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    }
    let mut rest = line;
    while let Some((word, after)) = rest.split_once(' ') {
        let word = word.trim_start_matches("time=").trim_matches(['"', '[', ']', ',']);
        let is_time = word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains(['-', '/', ':'])
            && !word.contains(char::is_lowercase);
        if !is_time {
            break;
        }
        rest = after.trim_start();
    }
    rest
}
