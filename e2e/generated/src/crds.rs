//! `config/crd`: the CRDs, from the types of the API.

use anyhow::Result;

use super::file::Generated;

pub(super) fn files() -> Result<Vec<Generated>> {
    let yaml = |(file, crd)| {
        let text = gpu_operator_crd::crd_yaml(&crd)?;
        Ok(Generated { path: format!("config/crd/{file}"), text })
    };
    gpu_operator_crd::crds().into_iter().map(yaml).collect()
}
