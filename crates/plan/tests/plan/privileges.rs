//! The allow-list of privileges: one golden file lists what each container of this project may do on a node, so that a new
//! privilege, mount or namespace of the host changes the file and is reviewed.

mod chart;
mod shape;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::{golden, preflight, sim::Sim, validation_pod};
use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt;
use shape::{Shape, uses};

/// What the containers of each shape use on any node, and the case that shows the shape first.
#[derive(Default)]
struct AllowList(BTreeMap<Shape, (String, BTreeSet<String>)>);

impl AllowList {
    fn add(&mut self, pod: &str, spec: &PodSpec, own_image: &str, case: &str) {
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            let shape = Shape::of(pod, spec, container, own_image);
            let (_, used) = self.0.entry(shape).or_insert_with(|| (case.to_owned(), BTreeSet::new()));
            used.extend(uses(spec, container));
        }
    }

    fn add_daemon_sets(&mut self, sim: &Sim, case: &str) {
        for (name, set) in &sim.sets {
            self.add(&set.labels()[keys::STAGE], sim.template(name), &sim.settings.probe_image, case);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (shape, (case, used)) in &self.0 {
            let uses: Vec<&str> = used.iter().map(String::as_str).collect();
            let uses = uses.join("\n  ");
            writeln!(text, "{shape}  first seen in {case}\n  {uses}\n").expect("a string takes everything");
        }
        text
    }
}

#[test]
fn no_container_may_do_more_than_was_reviewed() {
    let mut list = AllowList::default();
    for (case, sim) in golden::every_case() {
        list.add_daemon_sets(&sim, case);
    }
    let own_image = Sim::new().settings.probe_image;
    for (case, pod) in validation_pod::every_shape().into_iter().chain(preflight::every_shape()) {
        list.add(&pod.labels()[keys::STAGE], pod.spec.as_ref().expect("a spec"), &own_image, case);
    }
    for (template, spec) in chart::pods() {
        list.add("chart", &spec, "", &template);
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("privileges", list.text());
    });
}
