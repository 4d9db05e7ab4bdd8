//! The kubelet's interface, generated.
#![allow(unused_qualifications, clippy::pedantic, clippy::all)]

tonic::include_proto!("v1beta1");
