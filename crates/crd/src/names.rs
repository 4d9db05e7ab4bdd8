//! Names of objects of different kinds, each as a type of its own, so that they cannot be mixed. In JSON and in the schema they
//! are strings. Each is stored once for all objects that refer to it.

use std::{borrow::Cow, fmt};

use gpu_operator_common::interned::Interned;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// Defines a type for the names of one kind of object.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[serde(transparent)]
        pub struct $name(Interned);

        impl $name {
            /// Returns the name as a string.
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }

        impl From<&Interned> for $name {
            fn from(name: &Interned) -> Self {
                Self(name.clone())
            }
        }

        impl From<&$name> for $name {
            fn from(name: &$name) -> Self {
                name.clone()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                String::json_schema(generator)
            }
        }
    };
}

name! {
    /// The name of a Node, and of its GpuNode.
    NodeName
}
name! {
    /// The name of a `ClusterGpuPolicy`.
    PolicyName
}
name! {
    /// The name of a pool, unique within its policy.
    PoolName
}
name! {
    /// The name of a revision of one stage: the value of the node's label for that stage, and the last part of the name of its
    /// DaemonSet.
    Revision
}
