//! Volumes: kubectl, the real program, its built-in storage or an external CSI driver.

mod support;

use std::path::Path;
use std::sync::Arc;
use support::{Cluster, Kubectl, Place, Running, kubectl_on, mainstay};
use tempfile::TempDir;

const BOUND: &str = "wait --for=jsonpath={.status.phase}=Bound pvc/data --timeout=60s";

fn claim(class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec: {{accessModes: [ReadWriteOnce], {class} \
         resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: user}\nspec:\n  containers: [{name: main, image: 'x:1', \
                   volumeMounts: [{name: data, mountPath: /data}]}]\n  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n";

fn volume_of(kubectl: &Kubectl) -> String {
    kubectl.ok("get pvc data -o jsonpath={.spec.volumeName}")
}

/// How many volumes a directory driver has in this directory.
fn directories(data: &Path) -> usize {
    let volumes = data.join("volumes");
    let entries = walk(&volumes);
    entries.iter().filter(|path| path.file_name().is_some_and(|name| name == "data") && path.is_dir()).count()
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

/// C5, C7, I1, V5
#[test]
fn a_claim_is_bound_for_its_pod_expanded_and_deleted() {
    let Some(kubectl) = support::kubectl() else { return };
    let classes = kubectl.ok("get sc");
    assert!(classes.contains("standard (default)") && classes.contains("WaitForFirstConsumer"), "{classes}");
    kubectl.create(&claim(""));
    kubectl.ok("wait --for=jsonpath={.spec.storageClassName}=standard pvc/data --timeout=60s");
    kubectl.create(POD);
    kubectl.ok(BOUND);
    kubectl.ok("wait --for=condition=Ready pod/user --timeout=60s");
    // The node has registered the driver, and measures the volume that its pod has mounted.
    let drivers = "get csinode simulated-0 -o jsonpath={.spec.drivers[*].name}={.spec.drivers[*].nodeID}";
    kubectl.prints(drivers, "directory.csi.mainstay.dev=simulated-0");
    let claim_labels = format!("{{namespace=\"{}\",persistentvolumeclaim=\"data\"}}", kubectl.namespace());
    let capacity = format!("kubelet_volume_stats_capacity_bytes{claim_labels} 1073741824");
    kubectl.until("get --raw /metrics", |page| page.lines().any(|line| line == capacity));
    let volume = volume_of(&kubectl);
    let listed = kubectl.ok(&format!("get pv {volume} --no-headers"));
    for word in ["1Gi", "RWO", "Delete", "Bound", "standard", &format!("{}/data", kubectl.namespace())] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    kubectl.ok(r#"patch pvc data -p '{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}'"#);
    kubectl.ok("wait --for=jsonpath={.status.capacity.storage}=3Gi pvc/data --timeout=60s");
    kubectl.prints(&format!("get pv {volume} -o jsonpath={{.spec.capacity.storage}}"), "3Gi");
    let described = kubectl.ok("describe pvc data");
    for word in ["Successfully provisioned volume", "Resize volume succeeded", "Used By:", "user"] {
        assert!(described.contains(word), "{word}: {described}");
    }
    // The pod keeps the claim, the claim keeps the volume.
    kubectl.ok(&format!("delete pv {volume} --wait=false"));
    kubectl.ok("delete pvc data --wait=false");
    assert!(kubectl.ok("get pvc data --no-headers").contains("Terminating"));
    assert!(kubectl.ok(&format!("get pv {volume} --no-headers")).contains("Terminating"));
    kubectl.ok("delete pod user --timeout=60s");
    kubectl.ok("wait --for=delete pvc/data --timeout=60s");
    kubectl.ok(&format!("wait --for=delete pv/{volume} --timeout=60s"));
}

#[test]
fn volumes_and_their_objects_survive_stops_and_crashes() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let start = || Arc::new(Cluster::start(Place::Directory(data.path())));
    let end = |cluster: Arc<Cluster>| Arc::into_inner(cluster).expect("nobody else holds it");
    let cluster = start();
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.create(&claim(""));
    kubectl.create(POD);
    kubectl.ok(BOUND);
    // A user's change of the class is kept.
    kubectl.ok("annotate sc standard storageclass.kubernetes.io/is-default-class=false --overwrite");
    let volume = volume_of(&kubectl);
    assert_eq!(directories(data.path()), 1);
    drop(kubectl);
    end(cluster).crash();

    let cluster = start();
    let kubectl = kubectl_on(&cluster).expect("it was there before");
    assert_eq!(volume_of(&kubectl), volume);
    assert!(!kubectl.ok("get sc").contains("(default)"));
    kubectl.ok(r#"patch pvc data -p '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'"#);
    kubectl.ok("wait --for=jsonpath={.status.capacity.storage}=2Gi pvc/data --timeout=60s");
    drop(kubectl);
    end(cluster).stop();

    let cluster = start();
    let kubectl = kubectl_on(&cluster).expect("it was there before");
    kubectl.ok("delete pod user --timeout=60s");
    kubectl.ok("delete pvc data --timeout=60s");
    kubectl.ok(&format!("wait --for=delete pv/{volume} --timeout=60s"));
    assert_eq!(directories(data.path()), 0);
}

#[test]
fn an_external_driver_is_served_at_its_socket() {
    let place = TempDir::new().expect("a temporary directory can be made");
    let socket = place.path().join("csi.sock");
    let start = || {
        let mut command = mainstay(place.path());
        command.args(["csi", "--name", "other.example.com", "--socket"]).arg(&socket);
        command.arg("--dir").arg(place.path().join("volumes"));
        let mut driver = Running::start(command);
        driver.line_with(&["The driver is ready"]);
        driver
    };
    let endpoint = format!("unix://{}?timeout=20", socket.display());
    let cluster = Arc::new(Cluster::start_with(Place::InMemory, &["--no-builtin-storage", "--csi", &endpoint]));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    assert!(kubectl.run("get sc").err.contains("No resources found"));
    kubectl.create(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: other.example.com\n\
         allowVolumeExpansion: true\n",
    );
    // The driver starts late.
    kubectl.create(&claim("storageClassName: fast,"));
    let driver = start();
    kubectl.ok(BOUND);
    let volume = volume_of(&kubectl);
    kubectl.prints(&format!("get pv {volume} -o jsonpath={{.spec.csi.driver}}"), "other.example.com");
    // It stops for a while.
    driver.terminate();
    driver.finish();
    kubectl.ok("delete pvc data --timeout=60s");
    kubectl.ok(&format!("wait --for=jsonpath={{.status.phase}}=Released pv/{volume} --timeout=60s"));
    let driver = start();
    kubectl.ok(&format!("wait --for=delete pv/{volume} --timeout=60s"));
    driver.terminate();
    driver.finish();
}

#[test]
fn bad_endpoints_get_one_line() {
    let home = TempDir::new().expect("a temporary directory can be made");
    for (endpoint, want) in [("tcp://host:1", "absolute path"), ("unix:///x?nonsense=1", "unknown CSI option")] {
        for command in ["up", "controllers"] {
            let mut program = mainstay(home.path());
            program.args([command, "--csi", endpoint]);
            let (status, lines) = Running::start(program).finish();
            assert_eq!(status.code(), Some(2), "{lines:?}");
            assert!(lines.len() == 1 && lines[0].contains(want), "{lines:?}");
        }
    }
}
