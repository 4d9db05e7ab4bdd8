//! From what the program was built.

/// The version of the product, and the revision of its sources: the environment variable `GPU_OPERATOR_REVISION` at build
/// time, such as `GPU_OPERATOR_REVISION=$(git rev-parse HEAD) cargo build --release`.
pub const LABELS: [(&str, &str); 2] = [
    ("version", env!("CARGO_PKG_VERSION")),
    (
        "revision",
        match option_env!("GPU_OPERATOR_REVISION") {
            Some(revision) => revision,
            None => "unknown",
        },
    ),
];
