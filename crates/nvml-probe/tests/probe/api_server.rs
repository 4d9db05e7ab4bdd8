//! The GpuNode of the node, at the API server.

use http::StatusCode;
use serde_json::Value;
use test_api_server::{Api, Fault};

/// The GpuNode of node n1.
pub const PATH: &str = "/apis/gpu.nodestack.dev/v1alpha1/gpunodes/n1";

/// Returns the requests since the last call: method and URI, and the body.
pub fn asked(api: &Api) -> Vec<(String, Value)> {
    api.take().into_iter().map(|made| (made.line(), made.body)).collect()
}

pub fn has_none(api: &Api) {
    if !api.get(PATH).is_null() {
        api.delete(PATH);
    }
}

pub fn refuses_next(api: &Api, code: StatusCode) {
    api.fail_times(1, |_| true, Fault::Refused(code));
}
