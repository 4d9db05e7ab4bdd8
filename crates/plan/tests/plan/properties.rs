//! Properties that hold for every fleet, every policy and every order of events. A failure prints the events that led
//! to it, shrunk, and the command that repeats it.

pub mod counts;
pub mod events;
pub mod fleet;
pub mod oracle;
mod policy_spec;

use std::collections::BTreeMap;

use counts::{count, reports_ready};
use events::{Event, OnNode, apply_event, apply_to_node, beginning, event, nth, on_node, policies};

use crate::{law, sim::Sim, truth};
use gpu_operator_crd::{
    ClusterGpuPolicySpec, GpuNodeStatus, NodeName,
    health::HealthState,
    policy::{Defaults, Driver, DriverSource, OnUnhealthy, PullPolicy, Stage, UnhealthyTaint},
};
use gpu_operator_plan::{
    loop_memory::LoopState,
    output::{
        body::{Body, Kind},
        write::Write,
    },
    world::{Resources, Role},
};
use k8s_openapi::{
    api::core::v1::{Pod, ResourceRequirements, Toleration},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time, util::intstr::IntOrString},
    jiff::Timestamp,
};
use oracle::{Oracle, discovered_labels_are_those_of_the_policy};
use policy_spec::RandomSpec;
use proptest::{collection::vec, prelude::*};
use test_support::{planned::Planned, random::config};

/// Returns a fleet after these events, and the oracle that checked them.
pub fn after(events: &[&[Event]]) -> (Sim, Oracle) {
    let (mut sim, mut oracle) = (Sim::new(), Oracle::default());
    for event in events.iter().copied().flatten() {
        apply_event(&mut sim, &mut oracle, event);
    }
    (sim, oracle)
}

/// Runs until nothing changes any more, which must be reached: several nodes of a pool may one after another miss a deadline. After
/// some more hours the plan must be empty.
pub fn settle(sim: &mut Sim, oracle: &mut Oracle) {
    for round in 0..10 {
        oracle.rest(sim);
        sim.sleep(3600);
        if round > 1 && sim.plan().is_empty() {
            break;
        }
    }
    let plan = sim.plan();
    assert!(plan.is_empty(), "an hour later: {plan:#?}");
    law::of_ready_nodes(sim).expect("nodes that are ready only if a GPU pod would start");
    law::of_programs(sim).expect("updates that do not wait for programs");
    discovered_labels_are_those_of_the_policy(sim);
    every_generation_is_observed(sim);
    assert!(sim.gpu_nodes.keys().all(|name| sim.nodes.contains_key(name)), "a GpuNode without a Node is left");
    for (name, status) in &plan.statuses {
        let count = count(sim, &plan, name);
        let deleting = sim.policies[name].metadata.deletion_timestamp.is_some();
        let ready = !deleting && count.able - count.moving >= count.required;
        assert!(reports_ready(status) || !ready, "{name}: {count:?}: {status:#?}");
    }
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn after_any_events_a_fleet_settles_and_is_uninstalled(
        beginning in beginning(),
        events in vec(event(), 1..30),
    ) {
        let (mut sim, mut oracle) = after(&[&beginning, &events]);
        settle(&mut sim, &mut oracle);
        let policies: Vec<_> = sim.policies.keys().cloned().collect();
        for policy in &policies {
            sim.delete_policy(policy);
        }
        // Nodes are left only when their GPU pods have ended.
        settle(&mut sim, &mut oracle);
        sim.gpu_pods.clear();
        settle(&mut sim, &mut oracle);
        let end = law::of_the_end(&sim);
        prop_assert!(end.is_ok(), "{}", end.unwrap_err());
    }

    #[test]
    fn non_disruptive_changes_update_no_node(
        beginning in beginning(),
        events in vec(event(), 0..10),
        least in 0..4,
    ) {
        let (mut sim, mut oracle) = after(&[&beginning, &events]);
        heal(&mut sim);
        settle(&mut sim, &mut oracle);
        let running = |sim: &Sim| -> Vec<_> {
            let operands = sim.pods.values().filter(|pod| matches!(pod.role, Role::Operand(_)) && pod.running());
            operands.map(|pod| (pod.name.clone(), pod.revision.clone(), pod.created)).collect()
        };
        let before: Vec<_> = sim.nodes.values().map(|node| (node.name.clone(), node.labels.clone())).collect();
        let pods = running(&sim);
        for (name, policy) in sim.policies.clone() {
            if policy.metadata.deletion_timestamp.is_none() {
                sim.apply_spec(&name, cosmetic(policy.spec, least));
            }
        }
        settle(&mut sim, &mut oracle);
        for (name, labels) in before {
            prop_assert_eq!(&sim.nodes[&name].labels, &labels, "{}", name);
        }
        let after = running(&sim);
        prop_assert!(pods.iter().all(|pod| after.contains(pod)), "{pods:#?} {after:#?}");
    }

    #[test]
    fn events_on_one_node_change_no_other_node(
        beginning in beginning(),
        events in vec(event(), 0..10),
        index in 0..6_usize,
        what in on_node(),
    ) {
        let (mut sim, mut oracle) = after(&[&beginning, &events]);
        settle(&mut sim, &mut oracle);
        let Some(name) = nth(&sim, index) else { return Ok(()) };
        let was_moving = sim.is_moving(&name);
        let before = sim.nodes.clone();
        apply_to_node(&mut sim, &name, &what);
        let plan = sim.plan();
        // A test is bound to its node by affinity.
        let is_on = |pod: &Pod| serde_json::to_string(pod).expect("JSON").contains(&format!("[\"{name}\"]"));
        let is_of_another = |write: &&Write| match (write.target.kind, &write.body) {
            (Kind::Node | Kind::GpuNode, _) => name.as_str() != write.target.name,
            (Kind::Pod, Body::Pod(pod)) => !is_on(pod),
            (Kind::Pod, _) => sim.pods[&write.target.name].node != name,
            _ => false,
        };
        let mut others: Vec<_> = plan.writes.iter().filter(is_of_another).map(|write| &write.target).collect();
        if was_moving {
            // The update of one other node may start.
            let first = others.iter().map(|target| target.name.clone()).min();
            others.retain(|target| matches!(target.kind, Kind::Node | Kind::GpuNode) && Some(&target.name) != first.as_ref());
        }
        prop_assert!(others.is_empty(), "{what:?} on {name} changes {others:?}: {plan:#?}");
        prop_assert!(plan.deleted(Kind::RuntimeClass).is_empty(), "{what:?} on {name}: {plan:#?}");
        for set in plan.daemon_sets().keys() {
            prop_assert!(!sim.sets.contains_key(set), "{what:?} on {name} changes {set}");
        }
        for set in &plan.deleted(Kind::DaemonSet) {
            let named = |node: &&gpu_operator_plan::world::NodeFacts| Stage::ALL.into_iter().any(|stage| {
                node.labels.get(stage.key()).is_some_and(|revision| *set == format!("{}-{revision}", stage.as_str()))
            });
            prop_assert!(before.values().filter(|node| node.name != name).find(named).is_none(), "{what:?} on {name} prunes {set}");
        }
    }

    #[test]
    fn an_operator_that_is_killed_reaches_the_same_end_state(
        machines in vec(fleet::machine().prop_map(|machine| Event::Joins(machine.bare())), 1..5),
        mut policies in policies(),
        mut events in vec(event(), 1..15),
        kills in vec(0..10_usize, 1..8),
    ) {
        agree_on_mig(&mut policies, &mut events);
        let ends = [&[][..], &kills].map(|kills| {
            let (mut sim, mut oracle) = (Sim::new(), Oracle::with_kills(kills));
            let all = machines.iter().chain(&policies).chain(&events);
            for event in all.filter(|event| is_independent_of_time(event)) {
                apply_event(&mut sim, &mut oracle, event);
            }
            heal(&mut sim);
            settle(&mut sim, &mut oracle);
            end(&sim)
        });
        let lines = ends.each_ref().map(|end| end.lines());
        let [undisturbed, killed] = lines;
        let differences: Vec<_> = undisturbed.zip(killed).filter(|(one, other)| one != other).take(10).collect();
        prop_assert!(differences.is_empty() && ends[0].len() == ends[1].len(), "{differences:#?}");
    }

    #[test]
    fn an_install_costs_few_writes(
        machines in vec(fleet::machine().prop_map(|machine| Event::Joins(machine.bare().reporting())), 1..8),
        policies in policies(),
    ) {
        let (mut sim, mut oracle) = after(&[&machines]);
        // Every GPU is detected and reported before the first policy.
        sim.settle();
        sim.writes.clear();
        for policy in &policies {
            apply_event(&mut sim, &mut oracle, policy);
        }
        sim.settle_with(&mut LoopState::default());
        // With validation: the start of a test, its result, and the creation and deletion of its pod.
        let tested = sim.plans.iter().any(|plan| !plan.tests().is_empty());
        let (tests, pod) = if tested { (2, 2) } else { (0, 0) };
        // With runtimes that are restarted one by one: the pending restart, and the toolkit label with its record.
        let turn = |node: &NodeName| if sim.restarts_runtime(node) { 3 } else { 0 };
        // With labels of GPU feature discovery: the labels, and their record in the status.
        let discovered = |node: &NodeName| {
            let policy = truth::governing(&sim, node);
            if policy.is_some_and(|policy| policy.spec.compatibility.wants_gfd()) { 2 } else { 0 }
        };
        let most = |object: &str| match object.split_once('/') {
            Some(("node", name)) => {
                let name = name.into();
                4 + tests + turn(&name) + discovered(&name)
            }
            Some(("pod", _)) => pod,
            _ => 1,
        };
        for kind in ["node", "daemonset", "pod"] {
            let mut above = sim.writes_to(kind);
            above.retain(|object, writes| *writes > most(object));
            prop_assert!(above.is_empty(), "{above:?}");
        }
        let rest: u32 = sim.writes_to("policy").values().sum();
        prop_assert!(rest <= 20, "{rest} writes of policies");
    }
}

/// Returns a policy's spec with non-disruptive changes: resources, priority, readiness, pull policy and the taint for
/// unhealthy GPUs.
fn cosmetic(mut spec: ClusterGpuPolicySpec, least: i32) -> ClusterGpuPolicySpec {
    let limits = BTreeMap::from([("memory".to_owned(), Quantity(format!("{}Gi", least + 2)))]);
    let limited = Some(ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() });
    let Defaults { driver, toolkit, device_plugin, tolerations, priority_class_name, .. } = &mut spec.defaults;
    for operand in [&mut driver.operand, &mut toolkit.operand, &mut device_plugin.operand] {
        operand.resources.clone_from(&limited);
    }
    // The default, but written out.
    tolerations.get_or_insert_with(|| vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }]);
    *priority_class_name = Some(format!("priority-{least}"));
    spec.readiness.min_ready_nodes = Some(IntOrString::Int(least));
    spec.readiness.progress_deadline = Some("45m".parse().expect("a duration"));
    spec.images.pull_policy = Some(PullPolicy::Always);
    spec.health.on_unhealthy = OnUnhealthy { taint: Some(UnhealthyTaint::default()) };
    spec
}

/// Returns whether an event has the same effect if it happens earlier or later. A GPU that is lost before it was
/// recorded was never expected, and a node that is being deleted stays as far as it has come. An installer leaves its driver
/// on the host, where the next policy may use it.
fn is_independent_of_time(event: &Event) -> bool {
    let leaves_driver =
        |driver: &Driver| matches!(driver.source, Some(DriverSource::CloudInstaller | DriverSource::RunFile));
    if let Event::Policy(_, RandomSpec(spec)) = event {
        let drivers = spec.pools.iter().filter_map(|pool| pool.driver.as_ref()).chain([&spec.defaults.driver]);
        return !drivers.into_iter().any(leaves_driver);
    }
    let of_node = |what: &OnNode| match what {
        OnNode::GetsHostDriver
        | OnNode::UpgradesPackages
        | OnNode::PassesThrough(_)
        | OnNode::GetsForeignPod
        | OnNode::GetsStartupTaint(..)
        | OnNode::LosesGpu
        | OnNode::IsBeingDeleted => true,
        OnNode::Reboots(lost) | OnNode::RebootsWith(_, lost) => *lost > 0,
        _ => false,
    };
    // A node that fails for good uses up maxUnavailable, from the time at which its failure is known.
    !matches!(event, Event::Joins(machine) if machine.may_fail())
        && !matches!(event, Event::PolicyDeleted(_) | Event::Killed(..))
        && !matches!(event, Event::Node(_, what) if of_node(what))
}

/// Makes all policies repartition GPUs, or none: a layout stays on the GPUs, where the next policy may not manage it.
fn agree_on_mig(policies: &mut [Event], events: &mut [Event]) {
    let manages = |event: &Event| matches!(event, Event::Policy(_, spec) if spec.manages_mig());
    let all = policies.first().is_some_and(manages);
    for event in policies.iter_mut().chain(events) {
        if let Event::Policy(_, spec) = event {
            spec.manage_mig(all);
        }
    }
}

/// Removes all faults, and everything that uses a driver.
fn heal(sim: &mut Sim) {
    sim.faults.clear();
    sim.refusals.clear();
    sim.gpu_pods.clear();
    sim.programs.clear();
    for node in sim.nodes.values_mut() {
        (node.ready, node.cordoned) = (true, false);
    }
}

/// The status of every node describes the last generation of its spec, which kstatus requires.
fn every_generation_is_observed(sim: &Sim) {
    for (name, gpu_node) in &sim.gpu_nodes {
        let Some(status) = gpu_node.status.as_ref().filter(|status| status.reason.is_some()) else { continue };
        assert_eq!(status.observed_generation, gpu_node.metadata.generation, "{name}: {status:#?}");
    }
}

/// Returns the end state as text, without times and what depends on them, such as which of several nodes is named
/// first.
fn end(sim: &Sim) -> String {
    let mut text = String::new();
    let mut add = |what: &dyn std::fmt::Debug| {
        use std::fmt::Write;
        writeln!(text, "{what:#?}").expect("a string takes everything");
    };
    // What is known of a node that left its policy, or is offered there, depends on how far it had come.
    let has_policy = |name: &NodeName| sim.gpu_nodes.get(name).is_some_and(|gpu_node| gpu_node.spec.policy.is_some());
    for mut node in sim.nodes.values().cloned() {
        node.own_conditions.values_mut().for_each(|condition| condition.since = None);
        node.labelled_present = None;
        // Kubelet lists what a device plugin has offered earlier, with amount zero.
        for amounts in [&mut node.allocatable, &mut node.withheld] {
            *amounts = amounts.without(&Resources::default());
        }
        if has_policy(&node.name) {
            add(&node);
        } else {
            add(&(&node.name, &node.labels, &node.taints, &node.own_taint, &node.own_conditions));
        }
    }
    for mut gpu_node in sim.gpu_nodes.values().cloned() {
        let status = gpu_node.status.get_or_insert_default();
        (status.since, status.deadline, status.progressing_since) = (None, None, None);
        if gpu_node.spec.policy.is_none() {
            *status = GpuNodeStatus::default();
            gpu_node.metadata.owner_references = None;
        }
        let epoch = || Time(Timestamp::UNIX_EPOCH);
        gpu_node.spec.rollout.iter_mut().for_each(|rollout| (rollout.since, rollout.deadline) = (epoch(), None));
        // A node that fails and offers no GPU is updated without a turn, and when it does depends on the time.
        (gpu_node.spec.updates_begun, gpu_node.spec.last_update) = (0, None);
        // A healthy state is only written together with the next change.
        status.health = status.health.filter(|health| *health != HealthState::Healthy);
        status.conditions.retain(|condition| condition.type_ != "Healthy" || condition.status == "False");
        status.conditions.iter_mut().for_each(|condition| condition.last_transition_time = epoch());
        // The number of writes of the spec depends on time; that the last one is observed is checked elsewhere.
        gpu_node.metadata.generation = None;
        (gpu_node.metadata.managed_fields, gpu_node.metadata.creation_timestamp, gpu_node.metadata.uid) =
            (None, None, None);
        status.observed_generation = None;
        status.conditions.iter_mut().for_each(|condition| condition.observed_generation = None);
        // Whether a node was ready before its test also depends on time.
        status.validation = None;
        add(&gpu_node);
    }
    sim.sets.values().for_each(|set| add(&set.spec));
    for policy in sim.policies.values() {
        let mut status = policy.status.clone().unwrap_or_default();
        status.conditions.iter().for_each(|condition| add(&(&condition.type_, &condition.status)));
        status.conditions.clear();
        status.summary.message.clear();
        status.attention.iter_mut().for_each(|attention| attention.since = None);
        status
            .rollout
            .pools
            .iter_mut()
            .for_each(|pool| pool.since = pool.since.take().map(|_| Time(Timestamp::UNIX_EPOCH)));
        status.attention.sort_by(|one, other| one.node.cmp(&other.node));
        add(&status);
    }
    text
}
