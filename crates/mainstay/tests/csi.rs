//! `mainstay csi` as a program of its own.

mod support;

use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability,
};
use csi::{Code, Driver, Failure, Settings};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use support::program::run;
use support::{Running, Said, mainstay};

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { root: tempfile::tempdir().expect("a directory for the test") }
    }

    fn socket(&self) -> PathBuf {
        self.root.path().join("csi.sock")
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("volumes")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = mainstay(self.root.path());
        command.arg("csi").arg("--socket").arg(self.socket()).arg("--dir").arg(self.dir()).args(more);
        command
    }

    fn start(&self, more: &[&str]) -> Running {
        let mut running = Running::start(self.command(more));
        running.line_with(&["The driver is ready"]);
        running
    }

    fn driver(&self) -> Driver {
        Driver::connect(&format!("unix://{}", self.socket().display()), Settings::default()).expect("it is an endpoint")
    }
}

fn create(name: &str, bytes: i64) -> CreateVolumeRequest {
    let capability = VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

async fn sizes(driver: &Driver) -> BTreeMap<String, i64> {
    let entries = driver.all_volumes().await.expect("volumes are listed");
    let volumes = entries.into_iter().filter_map(|entry| entry.volume);
    volumes.map(|volume| (volume.volume_id, volume.capacity_bytes)).collect()
}

#[tokio::test]
async fn volumes_survive_a_clean_stop() {
    let place = Place::new();
    let running = place.start(&["--name", "other.example.com", "--capacity", "1Ti", "--topology", "zone=a"]);
    let driver = place.driver();
    let about = driver.about().await.unwrap();
    assert_eq!((about.name.as_str(), about.has_topology()), ("other.example.com", true));
    let id = driver.create_volume(create("a", 1000)).await.unwrap().volume.unwrap().volume_id;
    assert_eq!(driver.create_volume(create("b", 1 << 41)).await.unwrap_err().code, Code::OutOfRange);
    running.terminate();
    let (status, lines) = running.finish();
    assert!(status.success() && lines.iter().any(|line| line == "Stopping."), "{status} {lines:?}");
    assert!(!place.socket().exists(), "the socket is removed");
    let mut again = Running::start(place.command(&[]));
    again.line_with(&["volumes", "1 in"]);
    driver.wait_until_ready().await;
    assert_eq!(sizes(&driver).await, [(id, 1000)].into());
}

#[test]
fn a_socket_and_a_directory_have_one_driver_and_a_killed_one_blocks_neither() {
    let place = Place::new();
    let first = place.start(&[]);
    let refused = |said: Said, expected: &str| {
        let (code, error) = (said.code(), said.failed());
        assert_eq!((code, error.lines().count()), (2, 1), "{error}");
        assert!(error.starts_with("mainstay: ") && error.contains(expected), "{error}");
    };
    refused(run(place.command(&[]), ""), "another driver serves the directory");
    let mut elsewhere = mainstay(place.root.path());
    elsewhere.args(["csi", "--dir"]).arg(place.root.path().join("other")).arg("--socket").arg(place.socket());
    refused(run(elsewhere, ""), "another process serves the socket");
    first.kill();
    first.finish();
    assert!(place.socket().exists(), "a killed program leaves its socket file");
    drop(place.start(&[]));
}

#[test]
fn bad_input_gets_one_line_and_code_2() {
    let place = Place::new();
    let file = place.root.path().join("file");
    std::fs::write(&file, "[{\"call\": \"Nothing\"}]").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["--capacity", "much"], "--capacity \"much\" is not a size"),
        (&["--capacity", "0"], "capacity must be greater than 0"),
        (&["--topology", "zone"], "--topology \"zone\" must have the form"),
        (&["--name", "under_score"], "driver name \"under_score\""),
        (&["--expansion", "sometimes"], "is not one of controller, both, node, never"),
        (&["--faults", file], "fault order for \"Nothing\""),
        (&["--faults", "/no/such/file"], "cannot read the fault orders in /no/such/file"),
        (&["--node", ""], "node is missing"),
    ];
    for (arguments, expected) in cases {
        let said = run(place.command(arguments), "");
        let (code, error) = (said.code(), said.failed());
        assert_eq!((code, error.lines().count()), (2, 1), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let mut command = mainstay(place.root.path());
    command.args(["csi", "--dir"]).arg(file).arg("--socket").arg(place.socket());
    assert_eq!(run(command, "").code(), 2);
    let mut command = mainstay(place.root.path());
    command.args(["csi", "--socket", "/no/such/directory/csi.sock", "--dir"]).arg(place.dir());
    assert!(run(command, "").failed().contains("cannot serve the socket /no/such/directory/csi.sock"));
    let help = run(place.command(&["--help"]), "").succeeded();
    assert!(help.contains("--faults") && help.contains("MAINSTAY_CSI_SOCKET"), "{help}");
}

#[tokio::test]
async fn faults_come_from_a_file_that_may_change() {
    let place = Place::new();
    let file = place.root.path().join("faults.json");
    let orders = |text: &str| std::fs::write(&file, text).expect("orders are written");
    orders(r#"[{"call": "CreateVolume", "after": true, "drop_connection": true, "times": 1}]"#);
    let _running = place.start(&["--faults", file.to_str().unwrap()]);
    let driver = place.driver();
    assert_eq!(driver.create_volume(create("a", 1)).await.unwrap_err().code, Code::Unavailable);
    assert_eq!(sizes(&driver).await.len(), 1);
    driver.create_volume(create("a", 1)).await.unwrap();
    orders(r#"[{"call": "DeleteVolume", "code": "FAILED_PRECONDITION", "message": "no"}]"#);
    let delete = DeleteVolumeRequest { volume_id: "x".to_owned(), ..Default::default() };
    let failure = driver.delete_volume(delete).await.unwrap_err();
    assert_eq!(failure.to_string(), "rpc error: code = FailedPrecondition desc = no");
}

/// The state of a volume, as far as known from the responses to its caller.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Bytes(i64),
    /// A call for it has no response yet: it may exist or not.
    Open,
    Gone,
}

/// `kill -9` during many calls: acknowledged volumes exist, deleted ones do not, and no record is damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_volumes_survive_a_kill_at_any_moment() {
    let place = Place::new();
    let mut fates: BTreeMap<String, Fate> = BTreeMap::new();
    for (round, answers) in [0, 1, 2, 5, 12, 30, 60, 0].into_iter().enumerate() {
        let running = Running::start(place.command(&[]));
        let driver = place.driver();
        driver.wait_until_ready().await;
        let found = sizes(&driver).await;
        for (id, fate) in &fates {
            let expected = match fate {
                Fate::Bytes(bytes) => Some(bytes),
                Fate::Gone => None,
                Fate::Open => continue,
            };
            assert_eq!(found.get(id), expected, "{id} is as it was acknowledged");
        }
        fates.extend(work_until(&driver, round, answers, || running.kill()).await);
        let (_, lines) = running.finish();
        assert!(!lines.iter().any(|line| line.contains("damaged") || line.contains("does not belong")), "{lines:?}");
    }
    assert!(fates.values().filter(|fate| **fate == Fate::Bytes(1000)).count() > 20, "{fates:?}");
    assert!(fates.values().any(|fate| *fate == Fate::Gone), "{fates:?}");
}

type Answers = tokio::sync::mpsc::UnboundedSender<(String, Fate)>;

/// Four concurrent callers; the program is killed after this many responses.
async fn work_until(driver: &Driver, round: usize, answers: usize, kill: impl FnOnce()) -> Vec<(String, Fate)> {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..4 {
        let (driver, sender) = (driver.clone(), sender.clone());
        callers.spawn(async move {
            for number in 0.. {
                let name = format!("{round}-{caller}-{number}");
                if let Err(failure) = create_and_change(&driver, &name, number % 3, &sender).await {
                    return failure;
                }
            }
            unreachable!("the numbers do not end before the program");
        });
    }
    drop(sender);
    let (mut fates, mut kill) = (Vec::new(), Some(kill));
    loop {
        if fates.len() >= answers
            && let Some(kill) = kill.take()
        {
            kill();
        }
        match receiver.recv().await {
            Some(fate) => fates.push(fate),
            None => break,
        }
    }
    for failure in callers.join_all().await {
        assert_eq!(failure.code, Code::Unavailable, "{failure}");
    }
    fates
}

async fn create_and_change(driver: &Driver, name: &str, kind: i64, answers: &Answers) -> Result<(), Failure> {
    let say = |id: &str, fate| answers.send((id.to_owned(), fate)).expect("the test listens");
    let id = driver.create_volume(create(name, 1000)).await?.volume.expect("there is a volume").volume_id;
    say(&id, Fate::Bytes(1000));
    if kind == 1 {
        say(&id, Fate::Open);
        let capacity_range = Some(CapacityRange { required_bytes: 2000, limit_bytes: 0 });
        let request = ControllerExpandVolumeRequest { volume_id: id.clone(), capacity_range, ..Default::default() };
        driver.controller_expand_volume(request).await?;
        say(&id, Fate::Bytes(2000));
    } else if kind == 2 {
        say(&id, Fate::Open);
        driver.delete_volume(DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() }).await?;
        say(&id, Fate::Gone);
    }
    Ok(())
}
