//! The kubelet's interface, generated.
#![allow(missing_docs, unused_qualifications, clippy::pedantic, clippy::all)]

tonic::include_proto!("v1beta1");
