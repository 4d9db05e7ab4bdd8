//! Values of vocabularies that grow. An older operator must be able to read an object of a newer one, and must keep in it what it
//! does not know. And which values are left out of serialized objects.

use std::{borrow::Cow, fmt, str::FromStr};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, IntoDeserializer},
};

const MAX_LENGTH: i64 = 64;
const PATTERN: &str = "^[A-Z][A-Za-z0-9]*$";

/// A value of a vocabulary that grows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Open<T> {
    /// A value that this version knows.
    Known(T),
    /// A value that only another version knows.
    Other(Box<str>),
}

/// Reads a value that this version does not need to keep, because its writer judges it again. An unknown value is read as the
/// default.
pub fn or_default<'de, T: DeserializeOwned + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    let known: Result<T, serde::de::value::Error> = T::deserialize(text.into_deserializer());
    Ok(known.unwrap_or_default())
}

/// As [`or_default`], for an optional field.
pub fn some_or_default<'de, T: DeserializeOwned + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(deserializer)?;
    text.map(|text| or_default(text.into_deserializer())).transpose()
}

impl<T: Default> Default for Open<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl<T: Copy> Open<T> {
    /// Returns the value, if this version knows it.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Other(_) => None,
        }
    }
}

impl<T: Copy + Into<&'static str>> Open<T> {
    /// Returns the value as it is written.
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
        json_schema!({"type": "string", "maxLength": MAX_LENGTH, "pattern": PATTERN})
    }
}

/// Replaces the enumerations in a schema by patterns, so that an object of a newer version is accepted.
pub(crate) fn open_enumerations(schema: &mut JSONSchemaProps) {
    if let Some(values) = schema.enum_.take() {
        (schema.max_length, schema.pattern) = (Some(MAX_LENGTH), Some(PATTERN.to_owned()));
        let known: Vec<_> = values.iter().filter_map(|value| value.0.as_str()).collect();
        let description = schema.description.get_or_insert_default();
        if !description.contains("\n- ") {
            *description = format!("{description} Known values: {}.", known.join(", "));
        }
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| open_enumerations(property));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        open_enumerations(items);
    }
}

/// Returns whether a field has its default value, and is therefore not serialized.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{GpuHealth, GpuNodeStatus, Reason, health::HealthState};

    #[test]
    fn an_unknown_value_that_its_writer_judges_again_is_the_default() {
        let read =
            |state: &str| serde_json::from_value::<GpuHealth>(json!({"state": state, "action": "CleanConnector"}));
        assert_eq!(read("Degraded").unwrap().state, HealthState::Degraded);
        let unknown = read("Remediating").unwrap();
        assert_eq!((unknown.state, unknown.action.as_str()), (HealthState::Unknown, "CleanConnector"));
        let read = |health: serde_json::Value| serde_json::from_value::<GpuNodeStatus>(json!({"health": health}));
        assert_eq!(read(json!("Remediating")).unwrap().health, Some(HealthState::Unknown));
        assert_eq!(read(json!(null)).unwrap().health, None);
        assert!(read(json!(1)).is_err());
    }

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
