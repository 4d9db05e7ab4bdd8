//! `kubectl gpu-fleet images`: lists the images that the nodes of a policy may pull, without a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use gpu_operator_crd::ClusterGpuPolicy;
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    image_list::{ANY_KERNEL, Fleet, ImageList, PROBE_DIGEST, images},
    note::listed,
    settings::Settings,
};
use serde::Serialize;
use thiserror::Error;

use crate::{
    output::Output,
    policy_file::{self, FileError},
};

/// Which policies and nodes the list is for.
#[derive(Debug, clap::Args)]
pub struct Images {
    /// File with policies, as YAML or JSON; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: String,
    /// Only for nodes with this operating system, such as ubuntu22.04 or rhel9: `ID` and `VERSION_ID` of its os-release. May be
    /// repeated. Defaults to all that the catalogue has driver images for.
    #[arg(long, value_parser = system)]
    os: Vec<String>,
    /// Only for nodes with this GPU model, such as nvidia-tesla-t4. May be repeated. Defaults to all models.
    #[arg(long)]
    model: Vec<String>,
    /// The release of a kernel, as printed by `uname -r`, for images of precompiled drivers. May be repeated. By default these
    /// images have KERNEL in its place.
    #[arg(long)]
    kernel: Vec<String>,
    /// Image of nvml-probe, to be listed too.
    #[arg(long)]
    probe_image: Option<String>,
    /// Print the images' names as published, without the mirror in spec.images.registry.
    #[arg(long)]
    upstream: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    images: BTreeSet<String>,
    /// The images without a digest, by the field of the policy for it.
    without_digest: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Error)]
pub enum ImagesError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "--model {0} is neither in the catalogue nor in spec.models; write a value of the label gpu.nodestack.dev/model"
    )]
    Model(String),
    #[error(
        "--os {name}: the catalogue has no driver image for this operating system; valid are {}. For nodes with another one, whose driver is \
         installed on the host or by an image of the policy, omit --os", valid.join(", ")
    )]
    System { name: String, valid: Vec<String> },
    #[error("policy {0}: spec.{1}")]
    Conflict(String, String),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("cannot write the list: {0}")]
    Write(#[source] io::Error),
}

fn system(name: &str) -> Result<String, String> {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(word) {
        return Ok(name.to_owned());
    }
    Err("write ID and VERSION_ID of /etc/os-release without a space, such as ubuntu22.04".to_owned())
}

impl Images {
    pub fn run(&self) -> Result<(), ImagesError> {
        let policies = policy_file::read(&self.filename)?;
        let ImageList { images, by_tag, .. } = self.list(policies)?;
        for warning in by_tag.iter().map(|(field, images)| by_tag_warning(field, images)) {
            tracing::warn!("{warning}");
        }
        let without_digest = by_tag.into_iter().map(|(field, images)| (field.to_string(), images)).collect();
        let lines = |report: &Report| report.images.iter().fold(String::new(), |lines, image| lines + image + "\n");
        self.output.print(&Report { images, without_digest }, lines).map_err(ImagesError::Write)
    }

    /// Returns the images of all policies, and logs what is noteworthy.
    fn list(&self, policies: Vec<ClusterGpuPolicy>) -> Result<ImageList, ImagesError> {
        let catalogue = catalogue(&policies)?;
        let fleet = self.fleet(&catalogue)?;
        // The list depends on no other setting.
        let settings = Settings { probe_image: self.probe_image.clone().unwrap_or_default(), ..Settings::default() };
        let mut all = ImageList::default();
        for mut policy in policies {
            if self.upstream {
                policy.spec.images.registry.clear();
            }
            let list = images(&settings, &catalogue, &policy, &fleet);
            for note in list.notes {
                tracing::warn!(policy = policy.metadata.name.as_deref(), "{note}");
            }
            all.images.extend(list.images);
            for (field, images) in list.by_tag {
                all.by_tag.entry(field).or_default().extend(images);
            }
        }
        if all.images.iter().any(|image| image.contains(ANY_KERNEL)) {
            tracing::warn!(
                "images of precompiled drivers have {ANY_KERNEL} in place of a kernel's release; set --kernel to what `uname -r` prints on the nodes"
            );
        }
        Ok(all)
    }

    fn fleet(&self, catalogue: &Catalogue) -> Result<Fleet, ImagesError> {
        let mut fleet = Fleet::of(catalogue);
        if let Some(unknown) = self.model.iter().find(|name| catalogue.model(name).is_none()) {
            return Err(ImagesError::Model(unknown.clone()));
        }
        fleet.models.clone_from(&self.model);
        if let Some(name) = self.os.iter().find(|name| !fleet.serves(catalogue, name)) {
            let valid = fleet.systems.iter().map(|os| format!("{}{}", os.id, os.version_id)).collect();
            return Err(ImagesError::System { name: name.clone(), valid });
        }
        if !self.os.is_empty() {
            fleet.limit_systems(&self.os);
        }
        if !self.kernel.is_empty() {
            fleet.kernels.clone_from(&self.kernel);
        }
        Ok(fleet)
    }
}

/// Returns the warning about images without a digest, and where to write it.
fn by_tag_warning(field: &str, images: &BTreeSet<String>) -> String {
    let shown = listed(&images.iter().cloned().collect::<Vec<_>>());
    let place = if field == PROBE_DIGEST { "the chart's value" } else { "the policy's field" };
    format!("a registry can replace images that have no digest: {shown}; write the digest to {place} {field}")
}

fn catalogue(policies: &[ClusterGpuPolicy]) -> Result<Catalogue, ImagesError> {
    let mut catalogue = Catalogue::builtin()?;
    for policy in policies {
        let name = || policy.metadata.name.clone().unwrap_or_default();
        for model in &policy.spec.models {
            catalogue.add(model).map_err(|conflict| ImagesError::Conflict(name(), conflict.to_string()))?;
        }
    }
    Ok(catalogue)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        images: Images,
    }

    const AIR_GAPPED: &str = include_str!("../../../examples/air-gapped.yaml");

    fn list(flags: &str, text: &str) -> Result<Vec<String>, String> {
        let line =
            Line::try_parse_from(format!("images -f - {flags}").split_whitespace()).map_err(|e| e.to_string())?;
        let policies = policy_file::policies("-", text).map_err(|error| error.to_string())?;
        line.images.list(policies).map(|list| list.images.into_iter().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_list_has_names_of_the_mirror_or_as_published() {
        let flags =
            "--os ubuntu22.04 --model t4 --kernel 5.15.0-91-generic --probe-image registry.example.com/nvml-probe:1";
        let mirrored = list(flags, AIR_GAPPED).unwrap();
        let mirror = "registry.example.com:5000/mirror";
        let google = "gke-release/nvidia-gpu-device-plugin@sha256:6b25281cd0fa3ca55f3e837a18be4a14b44952105568f466530dd85bcebde62f";
        let paths = [
            google,
            "nvidia/driver:595-5.15.0-91-generic-ubuntu22.04",
            "nvidia/driver:595.91.07-ubuntu22.04",
            "nvidia/k8s-device-plugin:v0.19.3",
            "nvidia/k8s/container-toolkit:v1.20.2",
        ];
        let probe = "registry.example.com/nvml-probe:1".to_owned();
        let of = |host: &dyn Fn(&str) -> String| {
            let mut all: Vec<String> = paths.iter().map(|path| host(path)).chain([probe.clone()]).collect();
            all.sort();
            all
        };
        assert_eq!(mirrored, of(&|path| format!("{mirror}/{path}")));
        let published = list(&format!("{flags} --upstream"), AIR_GAPPED).unwrap();
        let host = |path: &str| format!("{}/{path}", if path == google { "gcr.io" } else { "nvcr.io" });
        assert_eq!(published, of(&host));
    }

    #[test]
    fn several_policies_have_one_list_and_may_add_models() {
        let policy = |name: &str, spec: &str| {
            format!(
                "---\napiVersion: gpu.nodestack.dev/v1alpha1\nkind: ClusterGpuPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"
            )
        };
        let one = policy("one", "{models: [{name: nvidia-new, pciIDs: [\"ff01\"], architecture: Hopper}]}");
        let text = one + &policy("two", "{defaults: {driver: {source: Container, image: {repository: own/driver}}}}");
        let images = list("--os ubuntu22.04 --model nvidia-new", &text).unwrap();
        for image in ["nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", "own/driver:595.91.07-ubuntu22.04"] {
            assert!(images.iter().any(|found| found == image), "{images:#?}");
        }
    }

    #[test]
    fn a_warning_names_images_by_tag_and_the_field() {
        let images = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let words = by_tag_warning("driver.image.digest", &images(&["a:1", "b:1", "c:1", "d:1", "e:1"]));
        assert!(
            words.contains(": a:1, b:1, c:1 and 2 more; ") && words.ends_with("policy's field driver.image.digest")
        );
        let words = by_tag_warning(PROBE_DIGEST, &images(&["a:1"]));
        assert!(words.contains(": a:1; ") && words.ends_with("chart's value image.digests.probe"), "{words}");
    }

    #[test]
    fn invalid_flags_and_policies_are_reported() {
        for (flags, text, message) in [
            ("", "{}", "-: the file contains no policy"),
            ("--model nvidia-h999", AIR_GAPPED, "--model nvidia-h999 is neither in the catalogue nor in spec.models"),
            ("--os Ubuntu", AIR_GAPPED, "such as ubuntu22.04"),
            (
                "--os ubuntu2404",
                AIR_GAPPED,
                "--os ubuntu2404: the catalogue has no driver image for this operating system; valid are ",
            ),
            ("--os ubuntu22.04 --os debian12", AIR_GAPPED, "cos. For nodes with another one"),
            ("--filename x", AIR_GAPPED, "cannot be used multiple times"),
        ] {
            let error = list(flags, text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
