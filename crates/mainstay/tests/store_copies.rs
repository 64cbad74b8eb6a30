//! `mainstay store`: copies, backups of a running server, and restores that delete nothing.

mod support;

use object::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::backup::{Reader, encode};
use store::suite::Members;
use store::{Export, Row, Rows};
use support::program::run;
use support::{Cluster, Kubectl, PATIENCE, Place, Running, Said, backend_volumes, kubectl_on, mainstay};
use tempfile::TempDir;

fn store(home: &Path, words: &[&str]) -> Said {
    let mut command = mainstay(home);
    command.arg("store").args(words);
    run(command, "")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// The output of `kubectl get` for all objects of the test, without fields that differ between servers.
fn everything(kubectl: &support::Kubectl) -> String {
    kubectl.ok("get configmaps,secrets,services,serviceaccounts,statefulsets,roles,clusterroles,namespaces -A -o name")
}

/// A running server is backed up without a stop; a file is complete or refused; a restore needs an empty directory; the
/// restored server serves the same objects to the same clients.
#[test]
fn a_backup_of_a_running_server_restores_elsewhere() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, file) = (at("data"), at("backup"));
    let cluster = Arc::new(Cluster::start_with(Place::Directory(&data), &["--nodes", "0"]));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    for n in 0..30 {
        kubectl.ok(&format!("create configmap cm{n} --from-literal=a={n}"));
    }
    let kubeconfig = text(&cluster.kubeconfig).to_owned();
    let said = store(root.path(), &["backup", text(&data), text(&file), "--kubeconfig", &kubeconfig]).succeeded();
    assert!(said.contains("keys, checksum") && said.contains("at revision"), "{said}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "it holds secrets");
    let before = everything(&kubectl);
    let uid = kubectl.ok("get configmap cm7 -o jsonpath={.metadata.uid}");
    let version: u64 = kubectl.ok("get configmap cm7 -o jsonpath={.metadata.resourceVersion}").parse().unwrap();
    kubectl.ok("delete configmap cm7");

    let again = store(root.path(), &["backup", text(&data), text(&file), "--kubeconfig", &kubeconfig]);
    assert!(again.failed().contains("already exists: choose another file"));
    let copied = store(root.path(), &["copy", text(&data), text(&at("copied"))]);
    assert!(copied.failed().contains("a server uses the store"));
    let taken = store(root.path(), &["restore", text(&file), text(&data)]);
    let said = taken.failed();
    assert!(said.contains(&format!("another process ({}) uses the store in", cluster.pid())), "{said}");
    drop(kubectl);
    let admin = std::fs::read_to_string(&cluster.kubeconfig).unwrap();
    Arc::into_inner(cluster).unwrap().stop();
    let taken = store(root.path(), &["restore", text(&file), text(&data)]);
    assert!(taken.failed().contains("a store already exists in"), "an existing store is not overwritten");
    bad_files_are_refused(root.path(), &file);

    let back = at("back");
    store(root.path(), &["restore", text(&file), text(&back)]).succeeded();
    let restored = Arc::new(Cluster::start_with(Place::Directory(&back), &["--nodes", "0"]));
    let kubectl = kubectl_on(&restored).unwrap();
    assert_eq!(everything(&kubectl), before);
    assert_eq!(kubectl.ok("get configmap cm7 -o jsonpath={.metadata.uid}"), uid);
    // Revisions that clients saw after the backup are never used again.
    let now: u64 = kubectl.ok("create configmap new -o jsonpath={.metadata.resourceVersion}").parse().unwrap();
    assert!(now > version + 1_000_000_000, "{now}");
    // The administrator of the old server is the administrator of the new one.
    let line = |text: &str, word: &str| text.lines().find(|line| line.contains(word)).map(str::to_owned);
    let admin_now = std::fs::read_to_string(&restored.kubeconfig).unwrap();
    for word in ["certificate-authority-data", "client-certificate-data"] {
        assert_eq!(line(&admin_now, word), line(&admin, word), "{word}");
    }
}

/// A backup contains all secrets: no other user can read it or redirect it by creating a file at its temporary path
/// first.
#[test]
fn a_backup_is_private_whatever_is_at_its_temporary_path() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = at("data");
    Cluster::start_server(Place::Directory(&data)).stop();
    let elsewhere = at("elsewhere");
    std::fs::write(&elsewhere, "not ours").unwrap();
    symlink(&elsewhere, at("linked.part")).unwrap();
    symlink(at("made"), at("dangling.part")).unwrap();
    std::fs::write(at("open.part"), "half a backup").unwrap();
    std::fs::set_permissions(at("open.part"), std::fs::Permissions::from_mode(0o644)).unwrap();
    for name in ["linked", "dangling", "open"] {
        store(root.path(), &["backup", text(&data), text(&at(name))]).succeeded();
        let found = std::fs::symlink_metadata(at(name)).unwrap();
        assert!(found.is_file(), "{name}");
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        assert!(!at(&format!("{name}.part")).exists(), "no draft is left");
    }
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "not ours");
    assert!(!at("made").exists());
    std::fs::create_dir(at("taken.part")).unwrap();
    let said = store(root.path(), &["backup", text(&data), text(&at("taken"))]).failed();
    assert!(said.contains("cannot write") && said.contains("taken.part"), "{said}");
}

/// A file size limit simulates a full disk: both fail the write in the middle.
#[test]
fn a_backup_that_fails_or_is_stopped_leaves_no_file() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = at("data");
    Cluster::start_server(Place::Directory(&data)).stop();
    let mut limited = Command::new("sh");
    let program = mainstay(root.path());
    limited.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.args(["-c", "trap '' XFSZ; ulimit -S -f 8; exec \"$0\" \"$@\""]).arg(program.get_program());
    limited.args(["store", "backup", text(&data), text(&at("backup"))]);
    let said = run(limited, "").failed();
    assert!(said.contains("cannot write") && said.contains("backup.part") && said.lines().count() == 1, "{said}");
    let left = || {
        let names = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("backup")).collect::<Vec<_>>()
    };
    assert!(left().is_empty(), "{:?}", left());
    store(root.path(), &["backup", text(&data), text(&at("backup"))]).succeeded();

    // A server that accepts the connection and never responds keeps the backup waiting until Ctrl-C.
    let _lock = lock_store(&data);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = at("silent");
    std::fs::write(&kubeconfig, unencrypted_kubeconfig(silent.local_addr().unwrap())).unwrap();
    let mut command = mainstay(root.path());
    command.args(["store", "backup", text(&data), text(&at("backup2")), "--kubeconfig", text(&kubeconfig)]);
    let waiting = Running::start(command);
    let (mut stream, _) = silent.accept().unwrap();
    let mut request = [0; 4096];
    assert!(stream.read(&mut request).unwrap() > 0);
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n4\r\nmain\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !at("backup2.part").exists() {
        assert!(Instant::now() < deadline, "the backup does not begin");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    waiting.interrupt();
    let (status, lines) = waiting.finish();
    assert_eq!(status.code(), Some(1), "{lines:?}");
    assert_eq!(lines, ["mainstay: stopped by a signal before it was finished"]);
    assert_eq!(left(), ["backup"], "{:?}", left());
}

/// Holds the lock of a store, as a running server does.
fn lock_store(data: &Path) -> File {
    let lock = File::options().write(true).open(data.join("store/lock")).unwrap();
    lock.try_lock().unwrap();
    lock
}

fn unencrypted_kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    )
}

fn bad_files_are_refused(home: &Path, file: &Path) {
    let whole = std::fs::read(file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    for (name, bytes, why) in [
        ("torn", &whole[..whole.len() - 9], "its end is missing"),
        ("flipped", &flipped[..], "it is damaged"),
        ("foreign", b"kind: List\n", "it is not a backup of a store"),
    ] {
        let path = home.join(name);
        std::fs::write(&path, bytes).unwrap();
        let target = home.join(format!("{name}-target"));
        let said = store(home, &["restore", text(&path), text(&target)]);
        assert_eq!(said.code(), 2);
        let said = said.failed();
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        assert!(!target.join("store/store.redb").exists(), "no store is created from it");
    }
    let absent = store(home, &["restore", "nowhere", "anywhere"]);
    assert!(absent.failed().contains("cannot use the backup nowhere"));
    let empty = store(home, &["copy", "nowhere", "anywhere"]);
    assert!(empty.failed().contains("there is no store in nowhere"));
    for bad in ["http://h:1", "etcd://", "etcd://h:1/x"] {
        assert!(store(home, &["copy", bad, "anywhere"]).failed().contains("write etcd://"), "{bad}");
    }
}

/// From a directory into etcd and back, by the program itself.
#[test]
fn stores_are_copied_into_etcd_and_back() {
    let Some(members) = Members::start(1) else { return };
    let root = TempDir::new().unwrap();
    let (data, back, url) = (root.path().join("data"), root.path().join("back"), members.url());
    let cluster = Arc::new(Cluster::start_with(Place::Directory(&data), &["--nodes", "0"]));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok("create configmap cm --from-literal=a=b");
    let token = kubectl.ok("create token default").trim().to_owned();
    let before = everything(&kubectl);
    drop(kubectl);
    Arc::into_inner(cluster).unwrap().stop();
    let said = store(root.path(), &["copy", text(&data), &url]).succeeded();
    assert!(said.contains("keys, checksum"), "{said}");
    assert!(store(root.path(), &["copy", text(&data), &url]).failed().contains("a store already exists in etcd://"));

    let shared = Arc::new(Cluster::start_with(Place::Etcd(&url), &["--nodes", "0"]));
    let kubectl = kubectl_on(&shared).unwrap();
    assert_eq!(everything(&kubectl), before);
    assert!(
        kubectl.with_token(Some(&token)).ok("auth whoami").contains("system:serviceaccount:default:default"),
        "old tokens are good"
    );
    kubectl.ok("create configmap later --from-literal=a=b");
    let file = root.path().join("backup");
    store(root.path(), &["backup", &url, text(&file)]).succeeded();
    drop(kubectl);
    Arc::into_inner(shared).unwrap().stop();

    store(root.path(), &["copy", &url, text(&back)]).succeeded();
    let returned = Arc::new(Cluster::start_with(Place::Directory(&back), &["--nodes", "0"]));
    let kubectl = kubectl_on(&returned).unwrap();
    kubectl.ok("get configmap cm later");
    let there = store(root.path(), &["restore", text(&file), &url, "--etcd-prefix", "/elsewhere"]).succeeded();
    assert!(there.contains("etcd://") && there.contains("/elsewhere"), "{there}");
}

/// A volume without a claim in the backup, which would be deleted at once by the backup's state, is kept in the
/// restored cluster.
#[test]
fn a_restore_deletes_no_volume() {
    let root = TempDir::new().unwrap();
    let (data, file) = (root.path().join("data"), root.path().join("backup"));
    let cluster = Arc::new(Cluster::start(Place::Directory(&data)));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok_with(
        "apply -f -",
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers: [{name: main, image: x, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"#,
    );
    kubectl.ok("wait --for=condition=Ready pod/app --timeout=60s");
    let volume = kubectl.ok("get pvc data -o jsonpath={.spec.volumeName}");
    assert_eq!(backend_volumes(&data).len(), 1, "the claim's volume");
    drop(kubectl);
    Arc::into_inner(cluster).unwrap().stop();

    // While no controller runs, the claim is deleted: the volume is released, and its policy is Delete.
    let alone = Arc::new(Cluster::start_server(Place::Directory(&data)));
    let kubectl = kubectl_on(&alone).unwrap();
    kubectl.ok("delete pod app --force --grace-period=0");
    kubectl.ok("delete pvc data --wait=false");
    kubectl.ok("patch pvc data --type=merge -p {\"metadata\":{\"finalizers\":null}}");
    // A user has confirmed the deletion, and two directories are about to be removed; all of this may be outdated.
    let handle = kubectl.ok(&format!("get pv {volume} -o jsonpath={{.spec.csi.volumeHandle}}"));
    kubectl.ok(&format!("annotate pv {volume} mainstay.dev/confirm-delete={handle}"));
    let directories = ["Delete", "Recycle"].map(|policy| released_directory(&kubectl, root.path(), policy));
    let kubeconfig = text(&alone.kubeconfig).to_owned();
    store(root.path(), &["backup", text(&data), text(&file), "--kubeconfig", &kubeconfig]).succeeded();
    drop(kubectl);
    Arc::into_inner(alone).unwrap().stop();

    let back = root.path().join("back");
    let said = store(root.path(), &["restore", text(&file), text(&back)]).succeeded();
    assert!(said.contains("Of its 3 volumes"), "{said}");
    // The driver's directory is shared: the restored server uses it.
    std::fs::rename(data.join("volumes"), back.join("volumes")).unwrap();
    let there = backend_volumes(&back);
    assert_eq!(there.len(), 1, "stopping and restoring did not change it");
    let restored = Arc::new(Cluster::start(Place::Directory(&back)));
    let kubectl = kubectl_on(&restored).unwrap();
    kubectl.ok(&format!("wait --for=jsonpath={{.status.reason}}=DeletionUnconfirmed pv/{volume} --timeout=60s"));
    assert_eq!(backend_volumes(&back), there, "the data exists");
    // When the binder has bound the pair that was created last, it has reconciled everything.
    kubectl.ok_with("apply -f -", LAST_PAIR);
    kubectl.ok("wait --for=jsonpath={.status.phase}=Bound pvc/last --timeout=60s");
    for directory in &directories {
        assert!(directory.join("file").exists(), "{} is as it was", directory.display());
    }
    let reasons = kubectl.ok("get pv delete recycle -o jsonpath={.items[*].status.reason}");
    assert_eq!(reasons, "DeletionUnconfirmed DeletionUnconfirmed");
    kubectl.ok(&format!("annotate pv {volume} mainstay.dev/confirm-delete={handle}"));
    kubectl.ok(&format!("wait --for=delete pv/{volume} --timeout=60s"));
    // The finalizer keeps the PV until the volume is deleted.
    assert_eq!(backend_volumes(&back), Vec::<PathBuf>::new(), "confirmed, it goes");
}

const POD_WITH_DATA: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers: [{name: main, image: x, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"#;

/// The data of volumes is in a backup on request, also of a running server; each backup and restore prints which data
/// it lacks.
#[test]
fn the_data_of_volumes_is_backed_up_and_restored_on_request() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = at("data");
    let cluster = Arc::new(Cluster::start(Place::Directory(&data)));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok_with("apply -f -", POD_WITH_DATA);
    kubectl.ok("wait --for=condition=Ready pod/app --timeout=60s");
    let [volume] = &backend_volumes(&data)[..] else { panic!("one volume") };
    std::fs::write(volume.join("data/rows"), "precious").unwrap();
    let kubeconfig = text(&cluster.kubeconfig).to_owned();
    let backup = |name: &str, more: &[&str]| {
        let (data, file) = (text(&data).to_owned(), at(name));
        store(root.path(), &[&["backup", &data, text(&file), "--kubeconfig", &kubeconfig], more].concat()).succeeded()
    };
    let said = backup("without", &[]);
    assert!(said.contains("does not have the data of 1 volumes of directory.csi.mainstay.dev"), "{said}");
    let said = backup("with", &["--with-volumes"]);
    assert!(said.contains("1 volumes, 0 snapshots, 1 files, 8 bytes") && !said.contains("does not have"), "{said}");
    drop(kubectl);
    Arc::into_inner(cluster).unwrap().stop();

    let restore = |from: &str, to: &str, more: &[&str]| {
        store(root.path(), &[&["restore", text(&at(from)), text(&at(to))], more].concat())
    };
    let refused = restore("without", "never", &["--with-volumes"]).failed();
    assert!(refused.contains("it was created without --with-volumes") && !at("never").exists(), "{refused}");
    let refused = restore("with", "never", &[&format!("--with-volumes={}", text(&data.join("volumes")))]).failed();
    assert!(refused.contains("already contains volumes") && !at("never").exists(), "{refused}");
    for from in ["without", "with"] {
        let said = restore(from, &format!("{from}-data"), &[]).succeeded();
        assert!(said.contains("have no data in") && said.contains("pods that use them do not start"), "{said}");
        assert_eq!(said.contains("restore into another place with --with-volumes"), from == "with", "{said}");
    }
    let said = restore("with", "back", &["--with-volumes"]).succeeded();
    assert!(said.contains("Restored the data of volumes") && !said.contains("have no data"), "{said}");
    let name = volume.file_name().unwrap();
    assert_eq!(std::fs::read_to_string(at("back/volumes/volumes").join(name).join("data/rows")).unwrap(), "precious");

    let mut torn = std::fs::read(at("with")).unwrap();
    torn.truncate(torn.len() - 1);
    std::fs::write(at("torn"), torn).unwrap();
    assert!(restore("torn", "never", &["--with-volumes"]).failed().contains("its end is missing"));
    assert!(!at("never").exists());

    let restored = Arc::new(Cluster::start(Place::Directory(&at("back"))));
    let kubectl = kubectl_on(&restored).unwrap();
    kubectl.ok("delete pod app --force --grace-period=0");
    kubectl.ok_with("apply -f -", POD_WITH_DATA);
    kubectl.ok("wait --for=condition=Ready pod/app --timeout=60s");
    assert_eq!(std::fs::read_to_string(at("back/volumes/volumes").join(name).join("data/rows")).unwrap(), "precious");
}

/// Objects that are restored without the data of their volumes: no pod starts on an empty volume, and each object
/// reports the missing data.
#[test]
fn pods_restored_without_their_data_wait_until_it_is_restored() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, back) = (at("data"), at("back"));
    let cluster = Arc::new(Cluster::start(Place::Directory(&data)));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok_with("apply -f -", POD_WITH_DATA);
    kubectl.ok("wait --for=condition=Ready pod/app --timeout=60s");
    let kubeconfig = text(&cluster.kubeconfig).to_owned();
    store(root.path(), &["backup", text(&data), text(&at("backup")), "--kubeconfig", &kubeconfig]).succeeded();
    drop(kubectl);
    Arc::into_inner(cluster).unwrap().stop();
    store(root.path(), &["restore", text(&at("backup")), text(&back)]).succeeded();

    let restored = Arc::new(Cluster::start(Place::Directory(&back)));
    let kubectl = kubectl_on(&restored).unwrap();
    // Also the pod that ran at the time of the backup.
    kubectl.ok("wait --for=condition=Ready=false pod/app --timeout=60s");
    let missing = |said: &str| said.contains("VolumeDataMissing");
    kubectl.ok("wait --for=condition=VolumeDataMissing pvc/data --timeout=60s");
    kubectl.until("get pv -o jsonpath={.items[*].status.reason}", missing);
    kubectl.until("get events -o jsonpath={.items[?(@.involvedObject.kind==\"PersistentVolume\")].reason}", missing);
    kubectl
        .until("get events -o jsonpath={.items[?(@.involvedObject.kind==\"PersistentVolumeClaim\")].reason}", missing);
    let failed = |said: &str| said.contains("FailedMount");
    kubectl.until("get events -o jsonpath={.items[?(@.involvedObject.name==\"app\")].reason}", failed);
    let metric = "csi_volumes_data_missing{driver_name=\"directory.csi.mainstay.dev\"} 1\n";
    kubectl.until("get --raw /metrics", |said| said.contains(metric));
    restored.line_with(&["VolumeDataMissing: PersistentVolume pvc-"]);
    let state = "get pod app -o jsonpath={.status.phase}/{.status.containerStatuses[0].state.waiting.reason}";
    assert_eq!(kubectl.ok(state), "Pending/ContainerCreating");
    assert_eq!(backend_volumes(&back), Vec::<PathBuf>::new(), "nothing was created in its place");

    let [volume] = &backend_volumes(&data)[..] else { panic!("one volume") };
    std::fs::rename(volume, back.join("volumes/volumes").join(volume.file_name().unwrap())).unwrap();
    kubectl.ok("wait --for=condition=Ready pod/app --timeout=60s");
    kubectl.until("get pvc data -o jsonpath={.status.conditions[*].type}", |said| !missing(said));
    kubectl.until("get pv -o jsonpath={.items[*].status.reason}", |said| !missing(said));
    kubectl.until("get --raw /metrics", |said| said.contains(&metric.replace("} 1\n", "} 0\n")));
}

/// A directory with a file, and a volume of this directory without a claim.
fn released_directory(kubectl: &Kubectl, root: &Path, policy: &str) -> PathBuf {
    let name = policy.to_lowercase();
    let directory = root.join(&name);
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("file"), "data").unwrap();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": policy,
            "hostPath": {"path": directory},
            "claimRef": {"namespace": "default", "name": "gone", "uid": "7f5d9c1e-0000-4000-8000-000000000000"},
        },
    });
    kubectl.ok_with("create -f -", &volume.to_string());
    kubectl
        .ok(&format!("patch pv {name} --subresource=status --type=merge -p {{\"status\":{{\"phase\":\"Released\"}}}}"));
    directory
}

const LAST_PAIR: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: last}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  hostPath: {path: /tmp/nowhere}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: last}
spec:
  storageClassName: ""
  volumeName: last
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
"#;

/// A forged backup: these rows in addition to those of a real backup, with valid checksums.
fn forged(real: &Path, rows: &[(&str, bytes::Bytes)], to: &Path) {
    use futures::StreamExt;
    let mut reader = Reader::open(std::fs::File::open(real).unwrap()).unwrap();
    let mut all: Rows = reader.page().unwrap();
    for (key, value) in rows {
        all.push((Arc::from(*key), Row { created: 2, modified: 3, expires_at_s: None, value: value.clone() }));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let export = Export { revision: reader.revision, pages: Box::pin(futures::stream::iter([Ok(all)])) };
    let pieces: Vec<_> = futures::executor::block_on(encode(export).map(Result::unwrap).collect());
    std::fs::write(to, pieces.concat()).unwrap();
}

fn object(value: Value) -> bytes::Bytes {
    server::codec::encode(&value)
}

/// Keys and values that no server wrote are refused in one sentence before anything is restored, whatever their
/// checksums.
#[test]
fn a_backup_with_invalid_objects_is_refused() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, real, file, target) = (at("data"), at("real"), at("forged"), at("deep/target"));
    Cluster::start_server(Place::Directory(&data)).stop();
    store(root.path(), &["backup", text(&data), text(&real)]).succeeded();
    let map = |name: &str, namespace: &str| object(json!({"metadata": {"name": name, "namespace": namespace}}));
    let raw = |text: &'static str| bytes::Bytes::from_static(text.as_bytes());
    for (key, value) in [
        ("", map("", "")),
        ("/", map("", "")),
        ("../../etc/passwd", map("passwd", "etc")),
        ("/etc/passwd", map("passwd", "etc")),
        ("/core/configmaps/../../x", map("x", "..")),
        ("/core/configmaps/default/", map("", "default")),
        ("/core/configmaps/default/..", map("..", "default")),
        ("/core/configmaps/default/a\0b", map("a\0b", "default")),
        ("/core/configmaps/default/a/b", map("b", "a")),
        ("/core/configmaps/default/other", map("one", "default")),
        ("/core/configmaps/default/one", map("one", "kube-system")),
        ("/core/configmaps/default/one", raw("")),
        ("/core/configmaps/default/one", raw("\0\0\0\0{\"metadata\": {\"name\": ")),
        ("/core/configmaps/default/one", raw("\0\0\0\0[7]")),
        ("/core/configmaps/default/one", raw("\u{7f}\u{7f}\u{7f}\u{7f}\"one\"")),
        ("/core/persistentvolumes/one", raw("\0\0\0\0null")),
        ("/mainstay/identity2", raw("\0\0\0\0\"text\"")),
    ] {
        forged(&real, &[(key, value)], &file);
        let said = store(root.path(), &["restore", text(&file), text(&target)]);
        assert_eq!(said.code(), 2, "{key:?}");
        let said = said.failed();
        let why = format!("it has an invalid object at {key:?}");
        assert!(said.trim_end().ends_with(&why) && said.lines().count() == 1, "{key:?}: {said}");
        assert!(!at("deep").exists(), "{key:?}: nothing is made of it");
    }
    let map = map("one", "default");
    forged(&real, &[("/core/configmaps/default/one", map.clone()), ("/core/configmaps/default/one", map)], &file);
    let twice = store(root.path(), &["restore", text(&file), text(&target)]).failed();
    assert!(twice.contains("it is damaged: the key of row") && !at("deep").exists(), "{twice}");
}

/// Nonsensical objects, and a volume whose handle is a path elsewhere, are served without harm.
#[test]
fn a_backup_with_nonsensical_objects_is_served_without_harm() {
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, real, file, back) = (at("data"), at("real"), at("forged"), at("back"));
    Cluster::start_server(Place::Directory(&data)).stop();
    store(root.path(), &["backup", text(&data), text(&real)]).succeeded();
    let odd = |kind: &str, version: &str| {
        let metadata = json!({"name": "odd", "namespace": "default", "uid": 7, "labels": "x", "ownerReferences": "y"});
        object(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": 7, "status": []}))
    };
    let volume = object(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "away", "uid": "u"},
        "spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "directory.csi.mainstay.dev", "volumeHandle": "../x"},
            "claimRef": {"namespace": "default", "name": "gone", "uid": "v"},
        },
        "status": {"phase": "Released"},
    }));
    let rows = [
        ("/core/configmaps/default/odd", object(json!({"metadata": {"name": "odd", "namespace": "default"}}))),
        ("/core/pods/default/odd", odd("Pod", "v1")),
        ("/core/persistentvolumeclaims/default/odd", odd("PersistentVolumeClaim", "v1")),
        ("/apps/statefulsets/default/odd", odd("StatefulSet", "apps/v1")),
        ("/nowhere.example.com/things/default/odd", odd("Thing", "nowhere.example.com/v1")),
        ("/core/persistentvolumes/away", volume),
    ];
    forged(&real, &rows, &file);
    store(root.path(), &["restore", text(&file), text(&back)]).succeeded();
    // The paths to which the handle would lead, from the directory of volumes and from its parent.
    let kept = [back.join("x"), at("x"), back.join("volumes/x")];
    for place in &kept {
        std::fs::create_dir_all(place).unwrap();
        std::fs::write(place.join("file"), "not ours").unwrap();
    }
    let cluster = Arc::new(Cluster::start(Place::Directory(&back)));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    for kind in ["configmaps", "pods", "persistentvolumeclaims", "statefulsets"] {
        let names = kubectl.ok(&format!("get {kind} -o jsonpath={{.items[*].metadata.name}}"));
        assert!(names.split(' ').any(|name| name == "odd"), "{kind}: {names}");
    }
    kubectl.ok("wait --for=jsonpath={.status.reason}=DeletionUnconfirmed pv/away --timeout=60s");
    kubectl.ok("annotate pv away mainstay.dev/confirm-delete=../x");
    // The other objects are served meanwhile.
    kubectl.ok_with("apply -f -", SET);
    kubectl.ok("rollout status statefulset/web --timeout=60s");
    // The driver is called to delete the handle, and does not know such a volume.
    kubectl.ok("wait --for=delete pv/away --timeout=60s");
    for place in &kept {
        assert_eq!(std::fs::read_to_string(place.join("file")).unwrap(), "not ours", "{}", place.display());
    }
    drop(kubectl);
    let (code, said) = Arc::into_inner(cluster).unwrap().stop();
    assert!(code == Some(0) && !said.iter().any(|line| line.contains("panicked")), "{code:?} {said:?}");
}

const SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 1
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: x, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"#;

/// Symbolic links at the paths that are written are not followed.
#[test]
fn backups_and_restores_do_not_follow_links() {
    use std::os::unix::fs::symlink;
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = at("data");
    Cluster::start_server(Place::Directory(&data)).stop();
    std::fs::write(at("elsewhere"), "not ours").unwrap();
    let untouched = || assert_eq!(std::fs::read_to_string(at("elsewhere")).unwrap(), "not ours");

    symlink(at("elsewhere"), at("linked")).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    for name in ["elsewhere", "linked", "directory"] {
        let said = store(root.path(), &["backup", text(&data), text(&at(name))]).failed();
        assert!(said.contains("already exists: choose another file") && said.lines().count() == 1, "{said}");
    }
    assert_eq!(std::fs::read_dir(at("directory")).unwrap().count(), 0);
    symlink(at("made"), at("backup")).unwrap();
    store(root.path(), &["backup", text(&data), text(&at("backup"))]).succeeded();
    assert!(std::fs::symlink_metadata(at("backup")).unwrap().is_file() && !at("made").exists(), "the link is replaced");
    untouched();

    // A data directory may be a link to one; links inside it are replaced.
    std::fs::create_dir_all(at("real/store")).unwrap();
    symlink(at("real"), at("link")).unwrap();
    symlink(at("elsewhere"), at("real/store/store.redb.new")).unwrap();
    symlink(at("elsewhere"), at("real/store/store.mark")).unwrap();
    store(root.path(), &["restore", text(&at("backup")), text(&at("link"))]).succeeded();
    assert!(std::fs::symlink_metadata(at("real/store/store.redb")).unwrap().is_file());
    untouched();
    symlink(at("made"), at("dangling")).unwrap();
    let said = store(root.path(), &["restore", text(&at("backup")), text(&at("dangling"))]).failed();
    assert!(said.contains("dangling") && said.lines().count() == 1 && !at("made").exists(), "{said}");
    let said = store(root.path(), &["restore", text(&at("backup")), text(&at("elsewhere"))]).failed();
    assert!(said.contains("elsewhere") && said.lines().count() == 1, "{said}");
    untouched();
}
