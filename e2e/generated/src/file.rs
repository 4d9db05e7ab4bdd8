//! A generated file.

pub(super) struct Generated {
    /// Its path in the checkout.
    pub path: String,
    /// Its content.
    pub text: String,
}
