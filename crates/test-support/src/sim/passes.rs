//! Passes of the operator's loop over the model, and how it settles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    Plan,
    loop_memory::LoopState,
    output::write::Write,
    pass::{Answer, Pass, PassContext, Planning, Request},
    time::Uptime,
    world::{GpuPod, GpuPods, GpuRequests, PodFacts, PodOwner, World, serves_gpus, uses_gpu},
};
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
    jiff::SignedDuration,
};

use super::{Sim, constant::is_constant};

/// One in so many plans is made again for later times.
const SAMPLE: usize = 7;

impl Sim {
    /// Returns the plan for the current world, with all questions answered.
    pub fn plan(&self) -> Plan {
        self.plan_for(self.world())
    }

    /// Returns how many nodes were settled in the last plan.
    pub fn remembered(&self) -> usize {
        self.memo.borrow().remembered()
    }

    fn is_found(&self, pod: &str, requests: &GpuRequests) -> bool {
        let resource = self.requests.get(pod).map_or(gpu_operator_crd::keys::GPU_RESOURCE, String::as_str);
        let limits = BTreeMap::from([(resource.to_owned(), Quantity("1".into()))]);
        let resources = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
        let container = Container { resources: Some(resources), ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        uses_gpu(&Pod { spec: Some(spec), ..Pod::default() }, requests)
    }

    /// Returns the plan for a world, with questions answered as the operator's loop does.
    pub fn plan_for(&self, world: World) -> Plan {
        self.plan_asking(world, |_| ())
    }

    /// Like [`Self::plan_for`], with a function that is called with the nodes whose pods each round lists.
    pub fn plan_asking(&self, world: World, mut lists: impl FnMut(&BTreeSet<NodeName>)) -> Plan {
        let mut carry = LoopState::default();
        carry.memo.0 = self.memo.take();
        let mut around = self.around(&mut carry, Uptime::ZERO);
        let mut planning = Planning::begin(world, self.now, &mut around);
        while let Some(question) = planning.next(&mut around) {
            if let Request::ListPods(nodes, _) = &question {
                lists(nodes);
            }
            planning.answer(self.read(&question), &mut around);
        }
        let (plan, world) = planning.take();
        self.memo.replace(carry.memo.0);
        self.assert_constant(&world);
        plan
    }

    /// Only some plans: each is made three times.
    fn assert_constant(&self, world: &World) {
        if self.plans.len().is_multiple_of(SAMPLE) {
            assert_eq!(is_constant(&self.settings, &self.catalogue, world, self.now), Ok(()));
        }
    }

    /// Returns what a pass uses of the loop around it.
    pub fn around<'a>(&'a self, carry: &'a mut LoopState, uptime: Uptime) -> PassContext<'a> {
        PassContext { settings: &self.settings, catalogue: &self.catalogue, carry, uptime }
    }

    /// Answers a question of a pass.
    pub fn read(&self, question: &Request) -> Answer {
        match question {
            Request::ReadLogs(pods) => {
                Answer::Logs(pods.iter().map(|pod| (pod.clone(), self.test_log.clone())).collect())
            }
            Request::ListPods(nodes, requests) => {
                Answer::Pods(nodes.iter().map(|node| (node.clone(), self.gpu_pods_on(node, requests))).collect())
            }
            Request::Write(write) => panic!("{write} is no question"),
        }
    }

    /// Returns the pods on a node that use or offer GPUs, as the API server lists them.
    pub fn gpu_pods_on(&self, node: &NodeName, requests: &GpuRequests) -> GpuPods {
        let tests = self.tests_on(node).into_iter().filter(|pod| pod.end.is_none());
        let test = |pod: &PodFacts| GpuPod {
            owner: PodOwner::Operator,
            ..self.gpu_pod(&format!("gpu-operator/{}", pod.name))
        };
        let users = self.gpu_pods.get(node).into_iter().flatten().filter(|pod| self.is_found(pod, requests));
        let users = users.map(|pod| self.gpu_pod(pod)).chain(tests.map(test)).collect();
        let plugins = self.pods.values().filter(|pod| pod.node == *node && serves_gpus(pod)).cloned().collect();
        let pods =
            self.programs_on(node).filter_map(|program| Some((program.holder.pod_uid.clone()?, program.pod.clone()?)));
        GpuPods { users, plugins, bystanders: pods.collect() }
    }

    /// Returns the facts of a GPU pod.
    pub fn gpu_pod(&self, name: &str) -> GpuPod {
        let known = self.pod_facts.get(name).cloned().unwrap_or_default();
        GpuPod { name: name.into(), uid: format!("uid of {name}"), runs: true, ..known }
    }

    /// Runs one pass of the operator and of the cluster, and returns whether anything changed.
    pub fn step(&mut self) -> bool {
        let plan = self.plan();
        self.step_with(plan)
    }

    /// Runs one pass as the operator's loop does, and one of the cluster. Returns the writes that were made.
    pub fn pass(&mut self, carry: &mut LoopState, now: Uptime) -> Vec<String> {
        let world = self.world();
        self.assert_constant(&world);
        let (pass, requests) = Pass::begin(world, self.now, &mut self.around(carry, now));
        let mut made = Vec::new();
        let pass = self.drive(pass, requests, carry, now, |sim, write| {
            assert!(sim.write(write).is_ok(), "{write}");
            made.push(write.clone());
            true
        });
        let names = made.iter().map(ToString::to_string).collect();
        self.plans.push(Plan { writes: made, ..pass.plan().cloned().unwrap_or_default() });
        self.surroundings();
        names
    }

    /// Runs passes as the operator's loop does until none has made a write for two minutes.
    pub fn settle_with(&mut self, carry: &mut LoopState) {
        let (mut up, mut quiet) = (0, 0);
        while quiet < 120 {
            assert!(up < 3600, "not settled after an hour: {:#?}", self.plans.last());
            let pause = if self.pass(carry, Uptime::from_secs(up)).is_empty() { 3 } else { 1 };
            quiet = if pause == 1 { 0 } else { quiet + pause };
            up += pause;
            self.sleep(pause.cast_signed());
        }
    }

    /// Carries out a pass, of which these are the first requests, until `write` returns false. Returns the pass.
    pub fn drive(
        &mut self,
        mut pass: Pass,
        requests: Vec<Request>,
        carry: &mut LoopState,
        now: Uptime,
        mut write: impl FnMut(&mut Self, &Write) -> bool,
    ) -> Pass {
        let mut requests = VecDeque::from(requests);
        while let Some(request) = requests.pop_front() {
            let answer = match request {
                Request::Write(planned) if !write(self, &planned) => break,
                Request::Write(planned) => Answer::Written(planned, Ok(())),
                question => self.read(&question),
            };
            requests.extend(pass.step(answer, &mut self.around(carry, now)));
        }
        pass
    }

    /// Runs a pass with a plan that has just been made.
    pub fn step_with(&mut self, plan: Plan) -> bool {
        let wrote = !plan.is_empty();
        self.carry_out(&plan);
        self.plans.push(plan);
        let moved = self.surroundings();
        wrote || moved
    }

    /// Runs until nothing changes any more, with one second per step.
    pub fn settle(&mut self) {
        self.run(200);
        assert!(!self.step(), "not settled after 200 steps: {:#?}", self.plans.last());
    }

    /// Runs at most this number of steps of a second, and ends early if the next change is not due within a minute.
    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            let happened = self.step();
            self.sleep(1);
            if !happened && !self.due() {
                break;
            }
        }
    }

    /// Runs this number of steps of a second, whether or not anything changes.
    pub fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
            self.sleep(1);
        }
    }

    /// Returns whether the last plan requests another pass within a minute.
    pub fn due(&self) -> bool {
        let check = self.plans.last().and_then(|plan| plan.check_again);
        check.is_some_and(|at| at.duration_since(self.now) < SignedDuration::from_secs(60))
    }
}
