//! What the tables of reasons contain, and the macro that declares an enum from one.

/// What a reason is about, which decides how it is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The node is ready, or a third party provides its GPUs.
    Normal,
    /// The node is in progress.
    InProgress,
    /// The node waits for other nodes or for GPU pods, and its progress deadline is suspended.
    Waiting,
    /// The Node itself is unavailable.
    Unavailable,
    /// Only conditions of stages have the reason.
    StageCondition,
    /// The node cannot proceed until a user, or time, resolves a problem.
    Failure,
    /// The state of a policy or a pool, or an Event about a node.
    Policy,
    /// The policy or pool cannot proceed until a user, or time, resolves a problem.
    PolicyFailure,
    /// A node that works has a problem.
    Warning,
    /// A pod does not get the GPUs that it needs.
    Pod,
}

/// The explanation of a reason. The texts may contain code in backticks and Markdown links, which are relative to the page of the
/// documentation that lists the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The name of the reason in the API.
    pub name: &'static str,
    /// What the reason is about.
    pub class: Class,
    /// The condition that has the reason, such as `Ready=False`, or another context. Empty for a reason of nodes only.
    pub context: &'static str,
    /// What the reason means.
    pub meaning: &'static str,
    /// What to do. Empty if nothing has to be done.
    pub action: &'static str,
}

/// Declares an enum of reasons from a table with the name of each, its class, its context in parentheses (if it has one), its meaning,
/// and what to do (if anything).
macro_rules! reasons {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident;
        $($name:ident: $class:ident $(($context:literal))?, $meaning:literal $(, $action:literal)?;)*
    ) => {
        $(#[$attribute])*
        #[derive(strum::IntoStaticStr, strum::EnumIter, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $(#[doc = $meaning] $name,)*
        }

        impl $type {
            /// Returns the name of the reason in the API.
            pub fn as_str(self) -> &'static str {
                self.into()
            }

            /// Returns what the reason is about.
            pub fn class(self) -> $crate::reason::table::Class {
                match self {
                    $(Self::$name => $crate::reason::table::Class::$class,)*
                }
            }

            /// Returns the explanation of the reason.
            pub fn explanation(self) -> $crate::reason::table::Explanation {
                let (name, class) = (self.as_str(), self.class());
                let (context, meaning, action) = match self {
                    $(Self::$name => (concat!($($context)?), $meaning, concat!($($action)?)),)*
                };
                $crate::reason::table::Explanation { name, class, context, meaning, action }
            }
        }
    };
}
