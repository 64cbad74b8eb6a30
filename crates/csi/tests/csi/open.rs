//! Opening directories and sockets, and the problems found in them.

use crate::world::*;
use csi::Code;
use csi::directory::{DirectoryDriver, Faults, Finding, ListenError, OpenError, Options, Serving};
use csi::v1::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn open(directory: &Path) -> Result<Arc<DirectoryDriver>, OpenError> {
    DirectoryDriver::open(directory, Options { durable: false, ..Options::default() }, Faults::default())
}

#[test]
fn a_directory_has_one_driver() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path()).unwrap();
    let sentence = open(root.path()).unwrap_err().to_string();
    assert_eq!(sentence, format!("another driver serves the directory {}", root.path().display()));
    drop(first);
    open(root.path()).unwrap();
}

#[test]
fn a_directory_that_cannot_be_used_is_refused_with_a_reason() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let sentence = open(&file).unwrap_err().to_string();
    assert!(sentence.starts_with(&format!("cannot use the directory {}: ", file.display())), "{sentence}");
    for name in ["", "a", "-x-", "1st.example.com", "under_score.x", &"x".repeat(64)] {
        let options = Options { name: name.to_owned(), ..Options::default() };
        let sentence = DirectoryDriver::open(root.path(), options, Faults::default()).unwrap_err().to_string();
        assert!(sentence.starts_with(&format!("the driver name {name:?} is not ")), "{sentence}");
    }
}

#[tokio::test]
async fn the_state_survives_a_restart() {
    let world = World::full().await;
    let request = CreateVolumeRequest {
        parameters: [("class".into(), "gold".into())].into(),
        mutable_parameters: [("iops".into(), "1".into())].into(),
        ..create("a")
    };
    let volume = world.driver.create_volume(request.clone()).await.unwrap().volume.unwrap();
    let snapshot = CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: volume.volume_id.clone(),
        ..Default::default()
    };
    let taken = world.driver.create_snapshot(snapshot.clone()).await.unwrap();
    let attach = ControllerPublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    world.driver.controller_publish_volume(attach).await.unwrap();
    let before = world.driver.all_volumes().await.unwrap();
    let World { root, server, serving, driver } = world;
    serving.stop().await;
    let options = server.options().clone();
    drop(server);
    let server = DirectoryDriver::open(&root.path().join("volumes"), options, Faults::default()).unwrap();
    assert_eq!(server.findings(), []);
    let _serving = Serving::start(server, &root.path().join("csi.sock")).await.unwrap();
    driver.wait_until_ready().await;
    assert_eq!(driver.all_volumes().await.unwrap(), before);
    assert_eq!(driver.create_volume(request).await.unwrap().volume.unwrap(), volume);
    assert_eq!(driver.create_snapshot(snapshot).await.unwrap(), taken);
}

#[tokio::test]
async fn damaged_and_unknown_files_are_reported_and_not_changed() {
    let world = World::new().await;
    let [good, torn, foreign_record, twin] = [
        world.create("good").await.volume_id,
        world.create("torn").await.volume_id,
        world.create("foreign").await.volume_id,
        world.create("twin").await.volume_id,
    ];
    let World { root, server, serving, driver } = world;
    serving.stop().await;
    drop(server);
    let volumes = root.path().join("volumes/volumes");
    let record = |id: &str| volumes.join(id).join("volume.json");
    let text = std::fs::read_to_string(record(&torn)).unwrap();
    std::fs::write(record(&torn), &text[..text.len() / 2]).unwrap();
    std::fs::copy(record(&good), record(&foreign_record)).unwrap();
    let twins = std::fs::read_to_string(record(&twin)).unwrap().replace("\"twin\"", "\"good\"");
    std::fs::write(record(&twin), twins).unwrap();
    std::fs::write(volumes.join("notes.txt"), "mine").unwrap();
    std::fs::create_dir(volumes.join("backup")).unwrap();
    std::fs::create_dir(volumes.join(format!("new-{good}"))).unwrap();
    std::fs::create_dir(volumes.join(format!("gone-{good}"))).unwrap();
    std::fs::write(volumes.join(&good).join("use.json"), "{").unwrap();

    let server = open(&root.path().join("volumes")).unwrap();
    let findings: Vec<String> = server.findings().iter().map(Finding::to_string).collect();
    let expect =
        |part: String| assert!(findings.iter().any(|finding| finding.contains(&part)), "{part}: {findings:#?}");
    // Of two volumes with one name, the first by id is served.
    let (first, second) = if good < twin { (&good, &twin) } else { (&twin, &good) };
    expect(format!("{torn} cannot be served: "));
    expect(format!("is damaged: it is about \"{good}\""));
    expect(format!("is damaged: its name \"good\" is the name of {first} too"));
    expect("notes.txt does not belong to this driver and is ignored".to_owned());
    expect("backup does not belong to this driver".to_owned());
    expect(format!("so {good} counts as used nowhere"));
    assert_eq!(findings.len(), 6, "{findings:#?}");

    let _serving = Serving::start(server, &root.path().join("csi.sock")).await.unwrap();
    driver.wait_until_ready().await;
    for id in [&torn, &foreign_record, second] {
        let failure = driver.delete_volume(delete(id)).await.unwrap_err();
        assert_eq!(failure.code, Code::Internal, "{failure}");
        assert!(failure.message.starts_with(&format!("{id} cannot be served: its record ")), "{failure}");
        assert!(volumes.join(id).join("data").exists());
    }
    driver.delete_volume(delete(first)).await.unwrap();
    assert!(volumes.join("notes.txt").exists() && volumes.join("backup").exists());
    assert!(!volumes.join(format!("new-{good}")).exists() && !volumes.join(format!("gone-{good}")).exists());
}

#[tokio::test]
async fn a_socket_has_one_server_and_a_dead_servers_file_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("csi.sock");
    // Dropped like a process that dies: the socket file stays.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let serving = Serving::start(open(&root.path().join("one")).unwrap(), &socket).await.unwrap();
    let second = Serving::start(open(&root.path().join("two")).unwrap(), &socket).await;
    let sentence = second.unwrap_err().to_string();
    assert_eq!(
        sentence,
        format!("another process serves the socket {}; stop it or choose another socket", socket.display())
    );
    assert!(socket.exists());
    serving.stop().await;
    assert!(!socket.exists());
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = root.path().join("x".repeat(120));
    let nowhere = root.path().join("no/such/csi.sock");
    let fails =
        async |path: PathBuf| Serving::start(open(&root.path().join("three")).unwrap(), &path).await.unwrap_err();
    assert!(matches!(fails(file.clone()).await, ListenError::NotASocket(_)));
    assert!(matches!(fails(long).await, ListenError::TooLong(..)));
    assert!(matches!(fails(nowhere).await, ListenError::Failed(..)));
    assert!(file.exists());
}

#[tokio::test]
async fn stopping_waits_for_calls_and_does_not_remove_another_servers_socket() {
    use csi::directory::{Gate, Order};
    let world = World::new().await;
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("CreateVolume", &gate));
    let creating = tokio::spawn({
        let driver = world.driver.clone();
        async move { driver.create_volume(create("a")).await }
    });
    gate.reached(1).await;
    let socket = world.root.path().join("csi.sock");
    std::fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let stopping = tokio::spawn(world.serving.stop());
    gate.open();
    creating.await.unwrap().unwrap();
    stopping.await.unwrap();
    assert!(socket.exists(), "the socket belongs to another server");
}

#[tokio::test]
async fn a_volume_removed_by_hand_can_be_unpublished() {
    let world = World::new().await;
    let (id, target) = (world.create("a").await.volume_id, world.path("target"));
    let publish = NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target.clone(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    world.driver.node_publish_volume(publish).await.unwrap();
    let World { root, server, serving, driver } = world;
    serving.stop().await;
    drop(server);
    std::fs::remove_dir_all(root.path().join("volumes/volumes").join(&id)).unwrap();
    let serving = Serving::start(open(&root.path().join("volumes")).unwrap(), &root.path().join("csi.sock")).await;
    let _serving = serving.unwrap();
    driver.wait_until_ready().await;
    let unpublish = NodeUnpublishVolumeRequest { volume_id: id, target_path: target.clone() };
    for _ in 0..2 {
        driver.node_unpublish_volume(unpublish.clone()).await.unwrap();
        assert!(Path::new(&target).symlink_metadata().is_err());
    }
}
