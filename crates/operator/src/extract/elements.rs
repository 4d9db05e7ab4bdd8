//! A deserializer that counts the elements of all lists and maps, and skips those beyond a maximum; and the managed fields of objects
//! of which nothing else is read: they are a third of an object's text, and as a tree of values take more time and memory than the rest.

use std::{cell::Cell, fmt};

use serde::{
    de::{
        DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    },
    forward_to_deserialize_any,
};

/// The field of the entries of `metadata.managedFields` with the fields of a manager.
const FIELDS: &str = "fieldsV1";

pub struct Elements {
    left: Cell<usize>,
    skipped: Cell<bool>,
    keeps_fields: bool,
    /// Whether the value that follows is one.
    at_fields: Cell<bool>,
}

impl Elements {
    /// Keeps at most this many.
    pub fn of_at_most(most: usize) -> Self {
        Self { left: Cell::new(most), skipped: Cell::new(false), keeps_fields: true, at_fields: Cell::new(false) }
    }

    /// Determines whether managed fields are kept; otherwise only their managers and times are.
    pub fn keeping_fields(self, keeps_fields: bool) -> Self {
        Self { keeps_fields, ..self }
    }

    pub fn counted<D>(&self, deserializer: D) -> Counted<'_, D> {
        Counted { inner: deserializer, elements: self, is_struct: false }
    }

    pub fn are_complete(&self) -> bool {
        !self.skipped.get()
    }

    /// Counts an element, if it may be kept.
    fn count(&self) -> bool {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.unwrap_or_default());
        left.is_some()
    }
}

/// A part of serde's machinery that counts what passes through it.
pub struct Counted<'e, T> {
    inner: T,
    elements: &'e Elements,
    /// Whether a map has the fields of a struct, which are not counted: they take no memory of their own, and the name of an object
    /// is one of them.
    is_struct: bool,
}

impl<'e, T> Counted<'e, T> {
    fn next<U>(&self, inner: U) -> Counted<'e, U> {
        Counted { inner, elements: self.elements, is_struct: false }
    }
}

/// Defines methods of a deserializer: those of values without elements pass the visitor on as it is.
macro_rules! deserialize {
    ($($plain:ident)*; $($counted:ident)*) => {
        $(fn $plain<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$plain(visitor)
        })*
        $(fn $counted<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let visitor = self.next(visitor);
            self.inner.$counted(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Counted<'_, D> {
    type Error = D::Error;

    deserialize! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier deserialize_ignored_any;
        deserialize_any deserialize_option deserialize_seq deserialize_map
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.next(visitor);
        self.inner.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Counted { is_struct: true, ..self.next(visitor) };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Defines methods of a visitor that pass a value on as it is.
macro_rules! visit {
    ($($method:ident: $value:ty),*) => {
        $(fn $method<E: Error>(self, value: $value) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Counted<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    visit! {
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64, visit_char: char,
        visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        let value = self.next(value);
        self.inner.visit_some(value)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        let value = self.next(value);
        self.inner.visit_newtype_struct(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        let list = self.next(list);
        self.inner.visit_seq(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let map = Counted { is_struct: self.is_struct, ..self.next(map) };
        self.inner.visit_map(map)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(data)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Counted<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.next(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Counted<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if self.elements.count() {
            let seed = self.next(seed);
            return self.inner.next_element_seed(seed);
        }
        while self.inner.next_element::<IgnoredAny>()?.is_some() {
            self.elements.skipped.set(true);
        }
        Ok(None)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Counted<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if self.is_struct && !self.elements.keeps_fields {
            return self.inner.next_key_seed(FieldName { inner: seed, elements: self.elements });
        }
        if self.is_struct || self.elements.count() {
            return self.inner.next_key_seed(seed);
        }
        while self.inner.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            self.elements.skipped.set(true);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.elements.at_fields.take() {
            self.inner.next_value::<IgnoredAny>()?;
            return seed.deserialize(().into_deserializer());
        }
        let seed = self.next(seed);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// A part of serde's machinery that finds out whether the name of a field is [`FIELDS`].
struct FieldName<'e, T> {
    inner: T,
    elements: &'e Elements,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for FieldName<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(FieldName { inner: deserializer, elements: self.elements })
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for FieldName<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_identifier(FieldName { inner: visitor, elements: self.elements })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for FieldName<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    visit! {
        visit_u64: u64, visit_string: String, visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        self.elements.at_fields.set(name == FIELDS);
        self.inner.visit_str(name)
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<V::Value, E> {
        self.elements.at_fields.set(name == FIELDS);
        self.inner.visit_borrowed_str(name)
    }
}
