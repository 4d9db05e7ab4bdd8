//! The driver's pod: the image or the installer loads a driver unless the present one is in use.

use gpu_operator_crd::{
    NodeName,
    policy::Stage,
    report::{InstalledDriver, NvmlState},
};
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Exit, PodFacts, Role};
use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{
    Sim,
    faults::Faults,
    machine::CONTAINER_ROOT,
    pod::{is_slow, run, wait_at_guard},
};

/// The sidecar that creates device nodes beside NVIDIA's container.
const SIDECAR: &str = "device-nodes";

/// The version that an installer selects by default.
const INSTALLER_DEFAULT: &str = "580.1.1";

impl Sim {
    /// Returns the version of a driver pod: from its installer's environment or arguments, otherwise from the image's
    /// tag.
    pub fn driver_version(&self, node: &NodeName) -> Option<String> {
        let template = self.templates.get(&format!("driver@{node}"))?;
        if let Some(installer) = installer(template) {
            let args = installer.args.iter().flatten().find_map(|arg| arg.strip_prefix("--version="));
            let version = env_value(installer, "NVIDIA_DRIVER_VERSION").or(args);
            return Some(version.filter(|version| version.contains('.')).unwrap_or(INSTALLER_DEFAULT).to_owned());
        }
        let image = template.containers.first()?.image.clone()?;
        let tag = image.rsplit_once(':')?.1;
        let version = tag.split('-').next()?;
        // The tag of a precompiled image only contains the branch.
        Some(if version.contains('.') { version.to_owned() } else { format!("{version}.1.1") })
    }

    /// Returns the directory into which a driver pod installs the driver.
    fn driver_root(&self, node: &NodeName) -> String {
        let installer = self.templates.get(&format!("driver@{node}")).and_then(installer);
        let root = installer.and_then(|installer| env_value(installer, "NVIDIA_INSTALL_DIR_HOST"));
        root.unwrap_or(CONTAINER_ROOT).to_owned()
    }

    /// Returns the tag of a driver pod's image.
    fn driver_tag(&self, node: &NodeName) -> String {
        let image = self.templates.get(&format!("driver@{node}")).and_then(|pod| pod.containers[0].image.clone());
        image.and_then(|image| Some(image.rsplit_once(':')?.1.to_owned())).unwrap_or_default()
    }

    /// Ends a pod, if it exists.
    pub fn end_pod(&mut self, name: &str) -> bool {
        let Some(pod) = self.pods.get(name).cloned() else { return false };
        let is_driver = pod.role == Role::Operand(Stage::Driver) && self.driver_root(&pod.node) == CONTAINER_ROOT;
        if self.unloads_drivers && is_driver && pod.has_started() {
            let is_held = self.is_driver_held(&pod.node);
            let driver = &mut self.report(&pod.node).driver;
            driver.installed.retain(|installed| installed.root != CONTAINER_ROOT);
            if !is_held {
                (driver.loaded, driver.config_digest, driver.container_ran) = (None, None, false);
            }
        }
        self.pods.remove(name).is_some()
    }

    /// Returns whether the loaded driver cannot be replaced: programs, a device plugin or the probe use it.
    pub(super) fn is_driver_held(&self, node: &NodeName) -> bool {
        let plugins = [Stage::Mps, Stage::DevicePlugin].map(|stage| format!("{}@{node}", stage.as_str()));
        self.machines[node].nvml.state == NvmlState::Answering
            || self.is_used(node)
            || self.unloads_drivers
                && (plugins.iter().any(|plugin| self.pods.get(plugin).is_some_and(PodFacts::has_started))
                    || self.foreign_plugin_serves(node))
    }

    /// Runs the driver's pod of a node.
    pub(super) fn run_driver(&mut self, node: &NodeName, faults: &Faults) {
        let version = self.driver_version(node);
        let root = self.driver_root(node);
        let (unloads, is_held) = (self.unloads_drivers, self.is_driver_held(node));
        let broken = version.as_ref().filter(|version| self.broken_drivers.contains(*version));
        let crash = faults.driver_crash.clone().or(broken.map(|version| format!("driver {version} does not load")));
        let missing = faults.missing_images.contains(&self.driver_tag(node));
        let now = self.now;
        let Some(pod) = self.pods.get_mut(&format!("driver@{node}")) else { return };
        let container = &mut pod.containers[0];
        let runs = matches!(container.state, ContainerState::Running(_));
        let Some(version) = version.filter(|version| runs || !missing && !faults.missing_images.contains(version))
        else {
            container.state = faults.lacks_its_image();
            container.ready = false;
            return;
        };
        if let Some(message) = crash {
            let exit = Exit { code: 1, message };
            container.state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
            container.last_failure = Some(exit);
            container.ready = false;
            return;
        }
        if !runs && is_slow(pod, now, faults) {
            return;
        }
        let machine = &self.machines[node];
        let loaded = machine.driver.loaded.as_ref();
        let template = &self.templates[&format!("driver@{node}")];
        let digest = env_value(&template.containers[0], "DRIVER_CONFIG_DIGEST").map(str::to_owned);
        let same = loaded == Some(&version) && (digest.is_none() || digest == machine.driver.config_digest);
        if loaded.is_some() && !same && is_held && !runs {
            wait_at_guard(pod, now);
            return;
        }
        pod.init.clear();
        if template.init_containers.iter().flatten().any(|init| init.name == SIDECAR) {
            let state = ContainerState::Running(None);
            pod.init = vec![ContainerFacts { name: SIDECAR.into(), state, last_failure: None, ready: true }];
        }
        run(pod, now);
        let machine = self.report(node);
        // The container loads the driver on start; if it loaded the wrong version, it retries once the cause is gone.
        let wrong = machine.driver.loaded.as_ref() != Some(&version);
        let loads = faults.loads_instead.clone().unwrap_or(version);
        let installed = machine.driver.installed.iter().any(|found| found.root == root && found.version == loads);
        let done = installed && machine.driver.loaded.as_ref() == Some(&loads);
        if !done && (!runs || wrong) {
            // The container does not unload a driver that is in use; beside the one that it would load, it only installs its files.
            let stays = unloads && machine.driver.loaded.as_ref() == Some(&loads);
            if machine.driver.loaded.is_some() && is_held && !stays {
                return;
            }
            machine.driver.loaded = Some(loads.clone());
            machine.driver.installed.retain(|installed| installed.root != root);
            machine.driver.container_ran |= root == CONTAINER_ROOT;
            machine.driver.config_digest = digest;
            machine.driver.installed.push(InstalledDriver { root, version: loads, ..InstalledDriver::default() });
        }
    }
}

/// Returns the init container that installs a driver on the host, if the main container only keeps running.
fn installer(template: &PodSpec) -> Option<&Container> {
    template.init_containers.iter().flatten().find(|init| init.name == "install-driver")
}

fn env_value<'c>(container: &'c Container, name: &str) -> Option<&'c str> {
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.as_deref()
}
