//! What saves time and changes no plan: two memories that differ in it only are the same state of the loop.

use std::hash::{Hash, Hasher};

#[derive(Clone, Debug, Default)]
pub struct Unhashed<T>(pub T);

impl<T> PartialEq for Unhashed<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Unhashed<T> {}

impl<T> Hash for Unhashed<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
