//! A value that has several owners without a copy, and is copied only if one changes it while another still has it.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// It reads and changes like a `T`. In contrast to `Arc`, a change needs no call of [`Arc::make_mut`], which every place that changes
/// one would have to make. Any use as mutable may copy the value, so what is not changed must not be borrowed as mutable.
#[derive(Clone, Debug, Default)]
pub struct CopyOnWrite<T>(Arc<T>);

impl<T> From<T> for CopyOnWrite<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T: FromIterator<I>, I> FromIterator<I> for CopyOnWrite<T> {
    fn from_iter<S: IntoIterator<Item = I>>(items: S) -> Self {
        T::from_iter(items).into()
    }
}

impl<T> Deref for CopyOnWrite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for CopyOnWrite<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[expect(clippy::into_iter_without_iter, reason = "`Deref` provides it")]
impl<'a, T> IntoIterator for &'a CopyOnWrite<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (**self).into_iter()
    }
}
