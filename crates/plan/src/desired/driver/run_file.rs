//! The addresses of NVIDIA's `.run` files, and the driver version in such an address.

use crate::catalogue::{Accelerator, branch_of};

/// NVIDIA's public download site.
const SITE: &str = "https://us.download.nvidia.com";

/// Returns the address of a version's file on NVIDIA's site: below `tesla` for data-center GPUs, below `XFree86` for
/// workstation and desktop GPUs. (Unverified.)
pub fn public_url(version: &str, accelerators: &[&Accelerator], arch: &str) -> String {
    let machine = if arch == "arm64" { "aarch64" } else { "x86_64" };
    let place = match (accelerators.iter().any(|model| model.desktop), machine) {
        (false, _) => "tesla".to_owned(),
        (true, "aarch64") => "XFree86/aarch64".to_owned(),
        (true, machine) => format!("XFree86/Linux-{machine}"),
    };
    format!("{SITE}/{place}/{version}/NVIDIA-Linux-{machine}-{version}.run")
}

/// Returns the driver version in an address's file name: NVIDIA's own, or that of a CUDA bundle
/// (`cuda_8.0.61_375.26_linux.run`, or with a dash before `run`).
pub fn version_of(url: &str) -> Option<&str> {
    let file = url.split(['?', '#']).next()?.rsplit('/').next()?;
    let stem = file.strip_suffix(".run").or_else(|| file.strip_suffix("-run"))?;
    let version = match stem.strip_prefix("NVIDIA-Linux-") {
        Some(rest) => rest.split('-').nth(1)?,
        None => stem.strip_prefix("cuda_")?.split('_').nth(1)?,
    };
    branch_of(version).filter(|_| version.contains('.')).map(|_| version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn an_address_contains_the_version_in_its_file_name() {
        for (url, version) in [
            ("https://mirror.example.com/NVIDIA-Linux-x86_64-470.256.02.run", Some("470.256.02")),
            ("http://10.0.0.1/a/NVIDIA-Linux-x86_64-384.111.run?x=1", Some("384.111")),
            ("https://m.example.com/NVIDIA-Linux-x86_64-470.256.02-no-compat32.run", Some("470.256.02")),
            ("https://m.example.com/cuda_8.0.61_375.26_linux.run", Some("375.26")),
            ("https://m.example.com/cuda_8.0.61_375.26_linux-run", Some("375.26")),
            ("https://m.example.com/cuda_8.0.61.2_linux.run", None),
            ("https://m.example.com/driver.run", None),
            ("https://m.example.com/470.256.02/", None),
        ] {
            assert_eq!(version_of(url), version, "{url}");
        }
    }

    #[test]
    fn the_public_site_has_a_folder_for_desktop_gpus() {
        let catalogue = Catalogue::builtin().unwrap();
        for (model, version, arch, url) in [
            (
                "nvidia-tesla-k80",
                "470.256.02",
                "amd64",
                "https://us.download.nvidia.com/tesla/470.256.02/NVIDIA-Linux-x86_64-470.256.02.run",
            ),
            (
                "nvidia-quadro-k620",
                "460.56",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/460.56/NVIDIA-Linux-x86_64-460.56.run",
            ),
            (
                "nvidia-geforce-gtx-1080-ti",
                "580.173.02",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/580.173.02/NVIDIA-Linux-x86_64-580.173.02.run",
            ),
            (
                "nvidia-rtx-2080-ti",
                "595.91.07",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/595.91.07/NVIDIA-Linux-x86_64-595.91.07.run",
            ),
            (
                "nvidia-rtx-pro-6000",
                "595.91.07",
                "amd64",
                "https://us.download.nvidia.com/tesla/595.91.07/NVIDIA-Linux-x86_64-595.91.07.run",
            ),
            (
                "nvidia-h100-80gb",
                "580.173.02",
                "arm64",
                "https://us.download.nvidia.com/tesla/580.173.02/NVIDIA-Linux-aarch64-580.173.02.run",
            ),
        ] {
            let model = catalogue.model(model).unwrap();
            assert_eq!(public_url(version, &[model], arch), url);
        }
    }
}
