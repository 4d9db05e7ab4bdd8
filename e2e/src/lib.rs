//! What the end-to-end tests without a cluster share: hosts for the probe, and the API server that receives its reports.
//!
//! The crates below `e2e`, each of which depends only on those above it, and on no more of them than it uses:
//!
//! | Folder | Content |
//! |---|---|
//! | `standins` | stand-ins: `nvml` (NVIDIA's library), `node` (the driver's container, nvidia-smi, vectorAdd), `docker` (cri-dockerd), `plugin` (device plugins) |
//! | `harness` | files, processes, programs and images on this machine; no cluster |
//! | `cluster` | a real cluster on one machine: control plane, real nodes, chart, control of the stand-ins; no API client, so that `cargo xtask` builds quickly |
//! | `client` | the running cluster for tests and benchmarks: API client, audit log, operator and probe as processes |
//! | `fleet` | simulated nodes in the running cluster |
//! | `xtask` | `cargo xtask`: arguments, demo, test run, release; it starts `generated` and `benchmark` as programs of their own |
//! | `generated` | `cargo xtask generate`: the generated files of the checkout |
//! | `benchmark` | `cargo xtask benchmark`, and the benchmark of planning |
//! | `tests` | the end-to-end tests |
//! | `checks` | checks of what no single crate owns: the sources of all crates, the chart's monitoring, the images' scripts |
#![allow(clippy::expect_used, clippy::missing_panics_doc, reason = "fails like a test")]

mod api;
pub mod host;
