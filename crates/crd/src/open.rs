//! Values of vocabularies that grow. An older operator must be able to read an object of a newer one, and must keep in it what it
//! does not know.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of a vocabulary that grows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Open<T> {
    /// A value that this version knows.
    Known(T),
    /// A value that only another version knows.
    Other(Box<str>),
}

impl<T: Copy> Open<T> {
    /// Returns the value, if this version knows it.
    #[must_use]
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Other(_) => None,
        }
    }
}

impl<T: Copy + Into<&'static str>> Open<T> {
    /// Returns the value as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(value) => (*value).into(),
            Self::Other(text) => text,
        }
    }
}

impl<T> From<T> for Open<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: PartialEq> PartialEq<T> for Open<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(value) if value == other)
    }
}

impl<T: Copy + Into<&'static str>> fmt::Display for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Copy + Into<&'static str>> Serialize for Open<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: FromStr> Deserialize<'de> for Open<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(text.parse().map_or_else(|_| Self::Other(text.as_ref().into()), Self::Known))
    }
}

impl<T> JsonSchema for Open<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Open".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 64, "pattern": "^[A-Z][A-Za-z0-9]*$"})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Reason;

    #[test]
    fn an_unknown_value_is_kept() {
        let read = |text: &str| serde_json::from_value::<Open<Reason>>(json!(text)).unwrap();
        assert_eq!(read("DriverInUse"), Reason::DriverInUse);
        assert_eq!(read("DriverInUse").known(), Some(Reason::DriverInUse));
        let unknown = read("OfTomorrow");
        assert_eq!((unknown.known(), unknown.as_str()), (None, "OfTomorrow"));
        assert_eq!(serde_json::to_value(unknown).unwrap(), json!("OfTomorrow"));
    }
}
