//! Input from outside: bytes at random, and samples that are cut, repeated, joined with another one or changed in
//! single bytes. Used by the tests of all crates that parse such input.

use std::{fs, path::Path};

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::{Number, Value};

/// Returns the files of a folder of samples, `tests/corpus/<kind>` of a crate. Input that has failed a test is added there.
pub fn corpus(crate_folder: &str, kind: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(crate_folder).join("tests/corpus").join(kind);
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no samples in {}", folder.display());
    files.iter().map(|path| fs::read(path).expect("a file")).collect()
}

/// The length of a flood, in bytes.
const FLOOD: usize = 1024 * 1024;

/// Returns a sample that is repeated until it is at least a mebibyte long.
pub fn flood(sample: &[u8]) -> Vec<u8> {
    sample.repeat(FLOOD / sample.len() + 1)
}

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Damage {
    Cut(Index, Index),
    RepeatLine(Index, u16),
    SwapLines(Index, Index),
    Join(usize, Index, Index),
    Overwrite(Index, u8),
    Insert(Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        (at(), at()).prop_map(|(from, to)| Damage::Cut(from, to)),
        (at(), 1..200_u16).prop_map(|(line, times)| Damage::RepeatLine(line, times)),
        (at(), at()).prop_map(|(one, other)| Damage::SwapLines(one, other)),
        (any::<usize>(), at(), at()).prop_map(|(sample, from, at)| Damage::Join(sample, from, at)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Overwrite(at, byte)),
        (at(), vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
    ]
}

impl Damage {
    fn apply(self, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
        let place = |index: Index, length: usize| index.index(length + 1);
        let length = bytes.len();
        match self {
            Self::Cut(one, other) => {
                let (one, other) = (place(one, length), place(other, length));
                drop(bytes.drain(one.min(other)..one.max(other)));
            }
            Self::Join(sample, from, at) => {
                let sample = &samples[sample % samples.len()];
                bytes.truncate(place(at, length));
                bytes.extend_from_slice(&sample[place(from, sample.len())..]);
            }
            Self::Overwrite(at, byte) if length > 0 => bytes[at.index(length)] = byte,
            Self::Insert(at, more) => drop(bytes.splice(place(at, length)..place(at, length), more)),
            Self::RepeatLine(line, times) if length > 0 => lines(bytes, |lines| {
                let at = line.index(lines.len());
                let line = lines[at].clone();
                // Input without line breaks is a single line, which several repetitions would multiply.
                let times = usize::from(times).min(FLOOD / line.len());
                lines.splice(at..at, vec![line; times]);
            }),
            Self::SwapLines(one, other) if length > 0 => lines(bytes, |lines| {
                let (one, other) = (one.index(lines.len()), other.index(lines.len()));
                lines.swap(one, other);
            }),
            Self::Overwrite(..) | Self::RepeatLine(..) | Self::SwapLines(..) => {}
        }
    }
}

fn lines(bytes: &mut Vec<u8>, edit: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    edit(&mut lines);
    *bytes = lines.concat();
}

/// Generates bytes at random and damaged samples, including undamaged ones.
pub fn bytes(samples: Vec<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    let damaged = (0..samples.len(), vec(damage(), 0..6)).prop_map(move |(sample, all)| {
        let mut bytes = samples[sample].clone();
        for damage in all {
            damage.apply(&mut bytes, &samples);
        }
        bytes
    });
    prop_oneof![1 => vec(any::<u8>(), 0..200), 9 => damaged].boxed()
}

/// As [`bytes`], with everything that is not UTF-8 replaced.
pub fn text(samples: Vec<Vec<u8>>) -> BoxedStrategy<String> {
    bytes(samples).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).boxed()
}

/// Generates samples of JSON with some values replaced by extreme ones of the same or another type, or removed.
pub fn json(samples: &[Vec<u8>]) -> BoxedStrategy<Value> {
    let samples: Vec<Value> = samples.iter().map(|sample| serde_json::from_slice(sample).expect("JSON")).collect();
    let edits = vec((any::<Index>(), extreme()), 0..6);
    (0..samples.len(), edits)
        .prop_map(move |(sample, edits)| {
            let mut value = samples[sample].clone();
            for (at, new) in edits {
                let mut left = at.index(leaves(&value).max(1));
                replace(&mut value, &mut left, new.as_ref());
            }
            value
        })
        .boxed()
}

/// Generates a value at the end of the range of its type; `None` removes a field.
fn extreme() -> impl Strategy<Value = Option<Value>> {
    let numbers =
        [Number::from(0), u64::MAX.into(), i64::MAX.into(), i64::MIN.into(), u32::MAX.into(), i32::MIN.into()];
    let texts = [String::new(), "\0\n\u{1b}".into(), "ü".repeat(5000), "../../etc".into(), "-1".into(), "1e999".into()];
    prop_oneof![
        4 => prop::sample::select(numbers.to_vec()).prop_map(|number| Some(Value::Number(number))),
        4 => prop::sample::select(texts.to_vec()).prop_map(|text| Some(Value::String(text))),
        1 => Just(Some(Value::Null)),
        1 => any::<bool>().prop_map(|value| Some(Value::Bool(value))),
        1 => Just(None),
    ]
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.values().map(leaves).sum(),
        Value::Array(values) => values.iter().map(leaves).sum(),
        _ => 1,
    }
}

/// Replaces the leaf with a number, and returns whether it was in this value.
fn replace(value: &mut Value, left: &mut usize, new: Option<&Value>) -> bool {
    match value {
        Value::Object(fields) => {
            let found = fields.iter_mut().find_map(|(name, value)| {
                let is_leaf = !value.is_object() && !value.is_array();
                replace(value, left, new).then(|| is_leaf.then(|| name.clone()))
            });
            if let (Some(Some(name)), None) = (&found, new) {
                fields.remove(name);
            }
            found.is_some()
        }
        Value::Array(values) => values.iter_mut().any(|value| replace(value, left, new)),
        leaf if *left == 0 => {
            if let Some(new) = new {
                leaf.clone_from(new);
            }
            true
        }
        _ => {
            *left -= 1;
            false
        }
    }
}
