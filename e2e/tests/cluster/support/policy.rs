//! Applying policies.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{DeletionPolicy, DevicePlugin, Driver, DriverSource, Operand, PluginFlavor},
};

use super::{Fixture, GOOGLES_DRIVER, HOSTNAME};

impl Fixture {
    /// Applies a policy with this spec, in YAML, to the node, with the local images. The next test need not wait until the node
    /// has left it, unless the spec sets a `deletionPolicy`.
    pub async fn apply(&self, spec: &str) -> Result<()> {
        let mut policy = ClusterGpuPolicy::new(&self.policy, serde_yaml::from_str(spec)?);
        policy.spec.deletion_policy.get_or_insert(DeletionPolicy::Now);
        policy.spec.images.registry = "localhost:5999".into();
        // NVIDIA's plugin reads the kernel's list of MIG's device nodes under /proc/driver, where tests cannot create
        // files.
        let plugins = policy.spec.pools.iter_mut().filter_map(|pool| pool.device_plugin.as_mut());
        for plugin in plugins.chain([&mut policy.spec.defaults.device_plugin]).filter(|plugin| plugin.mig.is_some()) {
            take_image(&mut plugin.operand, "localhost:5999/stand-in/k8s-device-plugin");
        }
        let selector = policy.spec.node_selector.get_or_insert_default();
        selector.match_labels.insert(HOSTNAME.into(), self.host.name());
        let params = kube::api::PatchParams::apply("test").force();
        self.policies().patch(&self.policy, &params, &kube::api::Patch::Apply(&policy)).await?;
        Ok(())
    }

    /// Applies an example unchanged, except for its name and its images.
    pub async fn apply_example(&self, example: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let policy: ClusterGpuPolicy = serde_yaml::from_str(&text)?;
        let mut spec = policy.spec;
        let (mut operands, pools) = (Vec::new(), &mut spec.pools);
        for pool in pools {
            operands.extend(pool.driver.as_mut().map(googles_driver));
            operands.extend(pool.device_plugin.as_mut().map(googles_plugin));
        }
        operands.extend([googles_driver(&mut spec.defaults.driver), googles_plugin(&mut spec.defaults.device_plugin)]);
        for (is_googles, operand) in operands {
            if is_googles || operand.image.is_some() {
                take_image(operand, "localhost:5999/google/stand-in");
            }
        }
        self.apply(&serde_yaml::to_string(&spec)?).await
    }
}

/// Returns a driver's operand, and whether it is Google's or another installer.
fn googles_driver(driver: &mut Driver) -> (bool, &mut Operand) {
    let installs = matches!(driver.source, Some(DriverSource::CloudInstaller | DriverSource::RunFile));
    if installs && driver.version.is_none() {
        // The stand-in installs the given version and does not choose one.
        driver.version = Some(GOOGLES_DRIVER.to_owned());
    }
    (installs, &mut driver.operand)
}

/// Returns a plugin's operand, and whether it is Google's.
fn googles_plugin(plugin: &mut DevicePlugin) -> (bool, &mut Operand) {
    (plugin.flavor == Some(PluginFlavor::Google), &mut plugin.operand)
}

/// Sets an operand's image to that of a stand-in.
fn take_image(operand: &mut Operand, repository: &str) {
    let image = operand.image.get_or_insert_default();
    image.repository = Some(repository.to_owned());
    image.tag = Some("dev".to_owned());
}
