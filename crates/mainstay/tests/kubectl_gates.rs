//! Feature gates are switched off and on, for the server and for one of its controllers separately, as users restart
//! their processes: in the middle of a scale-down, a rollout, a reclaim and a deletion. A pod that does not terminate,
//! or a partition, keeps each of these in progress until the gate has changed.

mod support;

use std::sync::Arc;
use support::{Cluster, Controllers, Kubectl, Place, backend_volumes, kubectl_on};
use tempfile::TempDir;

const RETENTION: &str = "StatefulSetAutoDeletePVC";
const ORDINALS: &str = "StatefulSetStartOrdinal";
const TEMPLATES: &str = "StatefulSetUpdateVolumeClaimTemplate";
const RECLAIM: &str = "HonorPVReclaimPolicy";

const OF_SETS: &str = "statefulset-controller";
const PROVISIONER: &str = "csi-provisioner-controller";

/// A server with persistent state and all controllers but one, which is a process of its own: both are restarted
/// separately, each with its own gates.
struct Pair {
    data: TempDir,
    gate: &'static str,
    /// The controller that is a process of its own.
    apart: &'static str,
    /// Whether the gate is on, for the server and for the controller.
    on: (bool, bool),
    server: Arc<Cluster>,
    controller: Option<Controllers>,
    kubectl: Kubectl,
}

impl Pair {
    /// With the gate on for both; `None` if kubectl is not installed.
    fn start(gate: &'static str, apart: &'static str) -> Option<Pair> {
        let data = TempDir::new().expect("a temporary directory can be made");
        let server = serve(&data, apart, gate, true);
        let kubectl = kubectl_on(&server)?;
        let mut pair = Pair { data, gate, apart, on: (true, true), server, controller: None, kubectl };
        pair.control();
        Some(pair)
    }

    fn control(&mut self) {
        let gates = format!("{}={}", self.gate, self.on.1);
        // The server runs the driver, which serves any caller.
        let driver = format!("unix://{}", self.data.path().join("csi.sock").display());
        let mut arguments = vec!["--controllers", self.apart, "--lease-name", "apart", "--feature-gates", &gates];
        if self.apart == PROVISIONER {
            arguments.extend(["--csi", &driver]);
        }
        self.controller = Some(Controllers::start(&self.server, &self.server.kubeconfig, &arguments));
    }

    /// Kills the controller in the middle of its work, and restarts it with this gate.
    fn controller_with(&mut self, on: bool) {
        if let Some(controller) = self.controller.take() {
            controller.program.kill();
            controller.program.finish();
        }
        // A killed process does not release its lease; delete it instead of waiting.
        self.kubectl.ok("delete lease apart -n kube-system --ignore-not-found");
        self.on.1 = on;
        self.control();
    }

    /// Kills the server with the controllers in its process, and restarts it with this gate.
    fn server_with(&mut self, on: bool) {
        let controller = self.controller.take();
        self.server.kill();
        drop(controller);
        self.on.0 = on;
        self.server = serve(&self.data, self.apart, self.gate, on);
        self.kubectl = kubectl_on(&self.server).expect("it was there before");
        self.controller_with(self.on.1);
    }

    fn create(&self, replicas: usize, more: &str) {
        self.kubectl.ok_with("create -f -", &set("web", replicas, more));
    }

    /// Waits until the set has these pods, all ready.
    fn until_pods(&self, wanted: &str) {
        let ready = r#"{range .items[?(@.status.containerStatuses[0].ready==true)]}{.metadata.name} {end}"#;
        self.kubectl.until(&format!("get pods -l app=web -o 'jsonpath={ready}'"), |pods| pods.trim() == wanted);
    }

    /// From now on the pod does not terminate when it is deleted.
    fn hold(&self, pod: &str) {
        self.kubectl.ok(&format!("annotate pod {pod} sim.mainstay.dev/terminate-after=never"));
    }

    fn let_go(&self, pod: &str) {
        self.kubectl.ok(&format!("annotate pod {pod} sim.mainstay.dev/terminate-after-"));
    }

    /// Deletes an object, waits until it is terminating, and checks that it still exists.
    fn until_going(&self, what: &str) {
        let told = format!("get {what} -o jsonpath={{.metadata.deletionTimestamp}}");
        self.kubectl.until(&told, |time| !time.is_empty());
    }

    fn claims(&self) -> String {
        self.kubectl.ok("get pvc -o jsonpath={.items[*].metadata.name}")
    }
}

fn serve(data: &TempDir, apart: &str, gate: &str, on: bool) -> Arc<Cluster> {
    let (gates, controllers) = (format!("{gate}={on}"), format!("*,-{apart}"));
    let arguments = ["--controllers", &controllers, "--feature-gates", &gates];
    Arc::new(Cluster::start_with(Place::Directory(data.path()), &arguments))
}

fn set(name: &str, replicas: usize, more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: {name}}}\nspec:\n  serviceName: x\n  replicas: {replicas}\n  {more}\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
         spec: {{containers: [{{name: main, image: x, volumeMounts: [{{name: data, mountPath: /data}}]}}]}}\n  \
         volumeClaimTemplates:\n  - metadata: {{name: data}}\n    \
         spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

/// R14
#[test]
fn r14_the_retention_policy_goes_off_and_on() {
    let Some(mut pair) = Pair::start(RETENTION, OF_SETS) else { return };
    pair.create(3, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}");
    pair.until_pods("web-0 web-1 web-2");
    let first = pair.kubectl.ok("get pvc data-web-0 -o jsonpath={.metadata.uid}");
    // Switched off in the middle of a scale-down: web-2 is terminating and owns its claim, web-1 is not deleted yet.
    // From then on claims have no owner, even when the pod ends.
    pair.hold("web-2");
    pair.kubectl.ok("scale sts web --replicas=1");
    pair.until_going("pod web-2");
    pair.kubectl.prints("get pvc data-web-2 -o jsonpath={.metadata.ownerReferences[0].kind}", "Pod");
    pair.kubectl.prints("get pod web-1 -o jsonpath={.metadata.deletionTimestamp}", "");
    pair.controller_with(false);
    let owned = "get pvc -o jsonpath={.items[*].metadata.ownerReferences[0].kind}";
    pair.kubectl.until(owned, |kinds| kinds.is_empty());
    pair.until_going("pod web-2");
    pair.let_go("web-2");
    pair.until_pods("web-0");
    assert_eq!(pair.claims(), "data-web-0 data-web-1 data-web-2");
    // A whole scale-down deletes no claim.
    pair.kubectl.ok("scale sts web --replicas=2");
    pair.until_pods("web-0 web-1");
    pair.kubectl.ok("scale sts web --replicas=1");
    pair.until_pods("web-0");
    assert!(pair.claims().contains("data-web-1"), "{}", pair.claims());
    // A server without the gate keeps stored fields, and drops new ones.
    pair.server_with(false);
    let policy = "-o jsonpath={.spec.persistentVolumeClaimRetentionPolicy.whenDeleted}";
    pair.kubectl.ok("label sts web touched=yes");
    pair.kubectl.prints(&format!("get sts web {policy}"), "Delete");
    pair.kubectl.ok_with(
        "create -f -",
        &set("other", 0, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}"),
    );
    pair.kubectl.prints(&format!("get sts other {policy}"), "");
    // Switched on in the middle of a deletion: the claims are deleted with the set, as its policy says.
    pair.server_with(true);
    pair.until_pods("web-0");
    pair.kubectl.prints("get pvc data-web-0 -o jsonpath={.metadata.uid}", &first);
    pair.controller_with(true);
    let owners = "get pvc -o jsonpath={.items[*].metadata.ownerReferences[0].kind}";
    let all = vec!["StatefulSet"; pair.claims().split(' ').count()].join(" ");
    pair.kubectl.until(owners, |owners| owners == all);
    pair.hold("web-0");
    pair.kubectl.ok("delete sts web --wait=false --cascade=foreground");
    pair.until_going("pod web-0");
    pair.controller_with(false);
    pair.until_going("sts web");
    pair.let_go("web-0");
    pair.kubectl.until("get pvc -o name", |claims| claims.trim().is_empty());
    pair.kubectl.until("get pv -o name", |volumes| volumes.trim().is_empty());
}

/// O5
#[test]
fn o5_ordinals_restart_at_zero_and_return() {
    let Some(mut pair) = Pair::start(ORDINALS, OF_SETS) else { return };
    pair.create(2, "ordinals: {start: 5}");
    pair.until_pods("web-5 web-6");
    pair.controller_with(false);
    pair.until_pods("web-0 web-1");
    pair.server_with(false);
    pair.kubectl.ok("label sts web touched=yes");
    pair.kubectl.prints("get sts web -o jsonpath={.spec.ordinals.start}", "5");
    pair.server_with(true);
    pair.until_pods("web-0 web-1");
    pair.controller_with(true);
    pair.until_pods("web-5 web-6");
    assert_eq!(
        pair.claims(),
        "data-web-0 data-web-1 data-web-5 data-web-6",
        "no claim is deleted when ordinals change"
    );
}

/// T16
#[test]
fn t16_claim_templates_are_ignored_and_followed_again() {
    let Some(mut pair) = Pair::start(TEMPLATES, OF_SETS) else { return };
    let sizes = "get pvc -o jsonpath={.items[*].status.capacity.storage}";
    let grow = |size: &str| {
        let path = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
        format!(r#"patch sts web --type=json -p '[{{"op":"replace","path":"{path}","value":"{size}"}}]'"#)
    };
    pair.create(3, "volumeClaimUpdatePolicy: InPlace\n  updateStrategy: {rollingUpdate: {partition: 2}}");
    pair.until_pods("web-0 web-1 web-2");
    // Switched off in the middle of a rollout: it ends with the claims that are expanded by then, and no other claim is
    // changed.
    // The partition holds the rollout: web-2 is updated, web-1 and web-0 are not.
    let asked = "get pvc -o jsonpath={.items[*].spec.resources.requests.storage}";
    pair.kubectl.ok(&grow("2Gi"));
    pair.kubectl.until(asked, |sizes| sizes == "1Gi 1Gi 2Gi");
    pair.controller_with(false);
    pair.kubectl.ok(r#"patch sts web -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}'"#);
    pair.kubectl.until("get sts web -o 'jsonpath={.metadata.generation} {.status.observedGeneration}'", |seen| {
        seen.split_once(' ').is_some_and(|(generation, observed)| generation == observed)
    });
    pair.until_pods("web-0 web-1 web-2");
    let reached = pair.kubectl.ok(asked);
    assert_eq!(reached, "1Gi 1Gi 2Gi");
    pair.server_with(false);
    let refusal = pair.kubectl.fails(&grow("3Gi"));
    assert!(refusal.contains("field is immutable"), "{refusal}");
    pair.kubectl.prints("get sts web -o jsonpath={.spec.volumeClaimUpdatePolicy}", "InPlace");
    pair.kubectl.prints(asked, &reached);
    pair.server_with(true);
    // What the controller rolls out while it does not know the feature is never applied to claims.
    pair.controller_with(true);
    pair.kubectl.prints(asked, &reached);
    pair.kubectl.ok(&grow("3Gi"));
    pair.kubectl.until(sizes, |sizes| sizes == "3Gi 3Gi 3Gi");
}

/// H8: here the provisioner is in the server's process; in the test below it is a process of its own.
#[test]
fn h8_the_reclaim_policy_is_honoured_off_and_on() {
    let Some(mut pair) = Pair::start(RECLAIM, OF_SETS) else { return };
    pair.create(2, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}");
    pair.until_pods("web-0 web-1");
    let held = "get pv -o jsonpath={.items[*].metadata.finalizers}";
    let is_held = |finalizers: &str| finalizers.contains("external-provisioner.volume.kubernetes.io/finalizer");
    pair.kubectl.until(held, is_held);
    // Switched off in the middle of a reclaim: the claim's volume is still deleted, and the others lose their
    // finalizers.
    pair.hold("web-1");
    pair.kubectl.ok("scale sts web --replicas=1");
    pair.until_going("pod web-1");
    pair.kubectl.ok("delete pvc data-web-1 --wait=false");
    pair.server_with(false);
    pair.until_going("pvc data-web-1");
    pair.let_go("web-1");
    pair.kubectl.until("get pv -o name", |volumes| volumes.lines().count() == 1);
    pair.kubectl.until(held, |finalizers| !is_held(finalizers));
    pair.server_with(true);
    pair.kubectl.until(held, is_held);
    // In the order that leaks the volume without the gate.
    pair.kubectl.ok("delete pv --all --wait=false");
    pair.kubectl.ok("delete sts web");
    pair.kubectl.until("get pv -o name", |volumes| volumes.trim().is_empty());
    pair.kubectl.until("get pvc -o name", |claims| claims.trim().is_empty());
    assert_eq!(backend_volumes(pair.data.path()), [] as [std::path::PathBuf; 0]);
}

/// KEP-2644, "Version Skew Strategy": the provisioner manages the finalizer of a driver's volumes, whatever the gate of
/// the binder. Volumes are deleted before their claims, the order that leaks volumes.
#[test]
fn h8_the_provisioner_honours_the_policy_and_the_binder_does_not_or_the_other_way_round() {
    let Some(mut pair) = Pair::start(RECLAIM, PROVISIONER) else { return };
    let held = "get pv -o jsonpath={.items[*].metadata.finalizers}";
    let is_held = |finalizers: &str| finalizers.contains("external-provisioner.volume.kubernetes.io/finalizer");
    let all_gone = |pair: &Pair| {
        pair.kubectl.until("get pv -o name", |volumes| volumes.trim().is_empty());
        pair.kubectl.until("get pvc -o name", |claims| claims.trim().is_empty());
    };
    pair.create(1, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}");
    pair.until_pods("web-0");
    pair.kubectl.until(held, is_held);

    // The binder without the gate, in the middle of a reclaim: the PV is deleted while its claim is used. It is still
    // protected.
    pair.hold("web-0");
    pair.kubectl.ok("delete pv --all --wait=false");
    pair.kubectl.ok("delete sts web --wait=false --cascade=foreground");
    pair.until_going("pod web-0");
    pair.server_with(false);
    pair.until_going("pod web-0");
    assert!(is_held(&pair.kubectl.ok(held)));
    assert_eq!(backend_volumes(pair.data.path()).len(), 1);
    pair.let_go("web-0");
    all_gone(&pair);
    assert_eq!(backend_volumes(pair.data.path()), [] as [std::path::PathBuf; 0]);

    // The provisioner without the gate, the binder with it: as before the KEP. The finalizer is removed, and a PV that
    // is deleted before its claim leaks its volume.
    pair.create(1, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}");
    pair.until_pods("web-0");
    pair.kubectl.until(held, is_held);
    pair.server_with(true);
    pair.controller_with(false);
    pair.kubectl.until(held, |finalizers| !is_held(finalizers));
    pair.kubectl.ok("delete pv --all --wait=false");
    pair.kubectl.ok("delete sts web");
    all_gone(&pair);
    let left = backend_volumes(pair.data.path());
    assert_eq!(left.len(), 1);

    // On again for both: leaked volumes stay, and new volumes are protected.
    pair.controller_with(true);
    pair.create(1, "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}");
    pair.until_pods("web-0");
    pair.kubectl.until(held, is_held);
    pair.kubectl.ok("delete pv --all --wait=false");
    pair.kubectl.ok("delete sts web");
    all_gone(&pair);
    assert_eq!(backend_volumes(pair.data.path()), left);
}
