//! Explanations of simulated nodes and pods, as they are printed.

mod node;
mod pod;
