//! What a look at a settled set costs: every event of its pods and claims asks for one.

use criterion::{Criterion, criterion_group, criterion_main};
use object::access::{Access, name};
use object::{Gates, Value, json};
use plan::statefulset::{Action, Plan, Seen, SeenPod, Stage, plan};
use std::hint::black_box;

struct World {
    set: Value,
    pods: Vec<SeenPod>,
    claims: Vec<Value>,
    revisions: Vec<Value>,
}

impl World {
    /// All replicas running and ready.
    fn settled(replicas: i64, policy: &str) -> World {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"},
            "spec": {
                "replicas": replicas, "podManagementPolicy": policy, "serviceName": "web",
                "selector": {"matchLabels": {"app": "web"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "main", "image": "nginx:1.27"}]},
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            },
        });
        let mut world = World { set, pods: Vec::new(), claims: Vec::new(), revisions: Vec::new() };
        loop {
            let plan = world.plan();
            if plan.stages.is_empty() && plan.status.is_none() {
                return world;
            }
            world.take(plan);
        }
    }

    fn plan(&self) -> Plan {
        let (pods, claims, revisions): (Vec<_>, Vec<_>, Vec<_>) =
            (self.pods.iter().collect(), self.claims.iter().collect(), self.revisions.iter().collect());
        let seen = Seen { set: &self.set, pods: &pods, claims: &claims, revisions: &revisions };
        plan(&seen, &Gates::default(), jiff::Timestamp::UNIX_EPOCH)
    }

    fn take(&mut self, plan: Plan) {
        for action in plan.prepare.iter().chain(plan.stages.iter().flat_map(Stage::actions)) {
            match action {
                Action::CreateRevision(revision) => self.revisions.push(running(revision)),
                Action::CreateClaim { claim, .. } => self.claims.push(running(claim)),
                Action::CreatePod(pod) => self.pods.push(SeenPod::read(running(pod).into())),
                other => panic!("{other:?} in a world where nothing goes wrong"),
            }
        }
        if let Some(set) = plan.status {
            self.set = set;
        }
    }
}

fn running(object: &Value) -> Value {
    let mut object = object.clone();
    object.put(&["metadata", "uid"], name(&object).to_owned());
    object.put(&["status"], json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
    object
}

fn benches(criterion: &mut Criterion) {
    for (label, replicas, policy) in
        [("5 replicas in order", 5, "OrderedReady"), ("1,000 replicas in parallel", 1_000, "Parallel")]
    {
        let world = World::settled(replicas, policy);
        criterion.bench_function(&format!("settled, {label}"), |bencher| bencher.iter(|| black_box(world.plan())));
    }
    let mut rolled = World::settled(1_000, "Parallel");
    rolled.set.put(&["spec", "template", "metadata", "annotations"], json!({"restartedAt": "now"}));
    criterion.bench_function("a new template, 1,000 replicas in parallel", |bencher| {
        bencher.iter(|| black_box(rolled.plan()))
    });
}

criterion_group!(all, benches);
criterion_main!(all);
