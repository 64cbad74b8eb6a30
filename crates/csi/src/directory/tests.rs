//! Crashes between any two steps, and random histories against a model.

use super::record::Source;
use super::state::Kind;
use super::{DirectoryDriver, Faults, Options};
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::v1::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Builder;
use tonic::{Code, Status};

/// A volume or snapshot as users see it, without its id.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    source: Option<Source>,
    size_bytes: i64,
    iops: Option<String>,
    file: Option<String>,
}

/// Volumes and snapshots by name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    volumes: BTreeMap<String, Seen>,
    snapshots: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug)]
enum Operation {
    Create {
        name: String,
        size_bytes: i64,
    },
    Clone {
        name: String,
        of: String,
    },
    Restore {
        name: String,
        of: String,
    },
    Delete {
        name: String,
    },
    Expand {
        name: String,
        size_bytes: i64,
    },
    Modify {
        name: String,
        iops: String,
    },
    Snapshot {
        name: String,
        of: String,
    },
    DeleteSnapshot {
        name: String,
    },
    /// A user writes into a volume.
    Write {
        name: String,
        text: String,
    },
}

/// The ids of volumes and snapshots by name. An unknown name gets an unknown id.
struct Ids(BTreeMap<String, String>, BTreeMap<String, String>);

impl Ids {
    fn of(driver: &DirectoryDriver) -> Ids {
        let state = driver.state();
        let sorted = |names: &std::collections::HashMap<String, String>| names.clone().into_iter().collect();
        Ids(sorted(&state.volume_names), sorted(&state.snapshot_names))
    }

    fn volume(&self, name: &str) -> String {
        self.0.get(name).cloned().unwrap_or_else(|| "vol-none".to_owned())
    }

    fn snapshot(&self, name: &str) -> String {
        self.1.get(name).cloned().unwrap_or_else(|| "snap-none".to_owned())
    }
}

/// The code that the driver must return, and the state afterwards.
fn expect(model: &mut Model, ids: &Ids, operation: &Operation) -> Code {
    let made_from =
        |model: &mut Model, name: &String, from: Option<Seen>, source: Source| match (model.volumes.get(name), from) {
            (Some(there), _) if there.source.as_ref() == Some(&source) && there.iops.is_none() => Code::Ok,
            (Some(_), _) => Code::AlreadyExists,
            (None, None) => Code::NotFound,
            (None, Some(from)) => {
                model.volumes.insert(name.clone(), Seen { source: Some(source), iops: None, ..from });
                Code::Ok
            }
        };
    match operation {
        Operation::Create { name, size_bytes } => match model.volumes.get(name) {
            Some(there) if there.size_bytes == *size_bytes && there.iops.is_none() && there.source.is_none() => {
                Code::Ok
            }
            Some(_) => Code::AlreadyExists,
            None => {
                model.volumes.insert(name.clone(), Seen { size_bytes: *size_bytes, ..Seen::default() });
                Code::Ok
            }
        },
        Operation::Clone { name, of } => {
            let from = model.volumes.get(of).cloned();
            made_from(model, name, from, Source::Volume(ids.volume(of)))
        }
        Operation::Restore { name, of } => {
            let from = model.snapshots.get(of).cloned();
            made_from(model, name, from, Source::Snapshot(ids.snapshot(of)))
        }
        Operation::Delete { name } => {
            model.volumes.remove(name);
            Code::Ok
        }
        Operation::Expand { name, size_bytes } => match model.volumes.get_mut(name) {
            Some(volume) => {
                volume.size_bytes = volume.size_bytes.max(*size_bytes);
                Code::Ok
            }
            None => Code::NotFound,
        },
        Operation::Modify { name, iops } => match model.volumes.get_mut(name) {
            Some(volume) => {
                volume.iops = Some(iops.clone());
                Code::Ok
            }
            None => Code::NotFound,
        },
        Operation::Snapshot { name, of } => match (model.snapshots.get(name), model.volumes.get(of)) {
            (Some(there), _) if there.source == Some(Source::Volume(ids.volume(of))) => Code::Ok,
            (Some(_), _) => Code::AlreadyExists,
            (None, None) => Code::NotFound,
            (None, Some(volume)) => {
                let source = Some(Source::Volume(ids.volume(of)));
                model.snapshots.insert(name.clone(), Seen { source, iops: None, ..volume.clone() });
                Code::Ok
            }
        },
        Operation::DeleteSnapshot { name } => {
            model.snapshots.remove(name);
            Code::Ok
        }
        Operation::Write { name, text } => {
            if let Some(volume) = model.volumes.get_mut(name) {
                volume.file = Some(text.clone());
            }
            Code::Ok
        }
    }
}

/// Executes an operation on the driver; names become ids.
async fn perform(driver: &Arc<DirectoryDriver>, operation: &Operation) -> Result<(), Status> {
    let (driver, ids) = (Arc::clone(driver), Ids::of(driver));
    match operation {
        Operation::Create { name, size_bytes } => {
            let range = CapacityRange { required_bytes: *size_bytes, limit_bytes: *size_bytes };
            driver.create_volume(create(name, Some(range), None)).await.map(drop)
        }
        Operation::Clone { name, of } => {
            let source = Source::Volume(ids.volume(of));
            driver.create_volume(create(name, None, Some(source))).await.map(drop)
        }
        Operation::Restore { name, of } => {
            let source = Source::Snapshot(ids.snapshot(of));
            driver.create_volume(create(name, None, Some(source))).await.map(drop)
        }
        Operation::Delete { name } => {
            let volume_id = ids.volume(name);
            driver.delete_volume(DeleteVolumeRequest { volume_id, ..Default::default() }).await.map(drop)
        }
        Operation::Expand { name, size_bytes } => {
            let capacity_range = Some(CapacityRange { required_bytes: *size_bytes, limit_bytes: 0 });
            let volume_id = ids.volume(name);
            let request = ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
            driver.controller_expand_volume(request).await.map(drop)
        }
        Operation::Modify { name, iops } => {
            let volume_id = ids.volume(name);
            let mutable_parameters = [("iops".to_owned(), iops.clone())].into();
            let request = ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
            driver.controller_modify_volume(request).await.map(drop)
        }
        Operation::Snapshot { name, of } => {
            let source_volume_id = ids.volume(of);
            let name = name.clone();
            let request = CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
            driver.create_snapshot(request).await.map(drop)
        }
        Operation::DeleteSnapshot { name } => {
            let snapshot_id = ids.snapshot(name);
            driver.delete_snapshot(DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await.map(drop)
        }
        Operation::Write { name, text } => {
            if let Some(id) = ids.0.get(name) {
                std::fs::write(driver.files.data(Kind::Volume, id).join("file"), text).unwrap();
            }
            Ok(())
        }
    }
}

fn create(name: &str, capacity_range: Option<CapacityRange>, source: Option<Source>) -> CreateVolumeRequest {
    let capability = VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range,
        volume_capabilities: vec![capability],
        volume_content_source: source.map(|source| source.message()),
        ..Default::default()
    }
}

/// The driver's state, from memory and disk.
fn seen(driver: &DirectoryDriver) -> Model {
    let state = driver.state();
    let file = |kind, id: &str| {
        let data = driver.files.data(kind, id);
        assert!(data.is_dir(), "{} exists", data.display());
        std::fs::read_to_string(data.join("file")).ok()
    };
    let volume = |volume: &super::Volume| {
        let record = &volume.record;
        let iops = record.mutable_parameters.get("iops").cloned();
        let file = file(Kind::Volume, &record.id);
        (record.name.clone(), Seen { source: record.source.clone(), size_bytes: record.size_bytes, iops, file })
    };
    let snapshot = |record: &Arc<super::record::SnapshotRecord>| {
        let source = Some(Source::Volume(record.source_volume_id.clone()));
        let file = file(Kind::Snapshot, &record.id);
        let seen = Seen { source, size_bytes: record.size_bytes, iops: None, file };
        (record.name.clone(), seen)
    };
    let model = Model {
        volumes: state.volumes.values().map(volume).collect(),
        snapshots: state.snapshots.values().map(snapshot).collect(),
    };
    let sum: i64 = model.volumes.values().map(|seen| seen.size_bytes).sum();
    assert_eq!(state.allocated_bytes, sum, "the allocated bytes are the sum of the sizes");
    assert_eq!(state.volume_names.len(), state.volumes.len());
    assert!(state.damaged.is_empty());
    model
}

/// Opens the directory as a new process would, and checks that nothing is left over.
fn open(directory: &Path) -> Arc<DirectoryDriver> {
    let options = Options { durable: false, ..Options::default() };
    let driver = DirectoryDriver::open(directory, options, Faults::default()).unwrap();
    assert_eq!(driver.findings(), [], "no record is damaged");
    let kept = |kind: &str| directory.join(kind).read_dir().unwrap().count();
    let state = driver.state();
    assert_eq!(kept("volumes"), state.volumes.len(), "nothing is left over");
    assert_eq!(kept("snapshots"), state.snapshots.len());
    drop(state);
    driver
}

#[test]
fn a_crash_between_any_two_steps_leaves_all_or_nothing() {
    let text = |text: &str| text.to_owned();
    let before = [
        Operation::Create { name: text("a"), size_bytes: 10 },
        Operation::Write { name: text("a"), text: text("content") },
        Operation::Snapshot { name: text("s"), of: text("a") },
    ];
    let operations = [
        Operation::Create { name: text("b"), size_bytes: 20 },
        Operation::Clone { name: text("b"), of: text("a") },
        Operation::Restore { name: text("b"), of: text("s") },
        Operation::Delete { name: text("a") },
        Operation::Expand { name: text("a"), size_bytes: 30 },
        Operation::Modify { name: text("a"), iops: text("7") },
        Operation::Snapshot { name: text("t"), of: text("a") },
        Operation::DeleteSnapshot { name: text("s") },
    ];
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for operation in operations {
        let mut crashes = 0;
        for steps in 0.. {
            let root = tempfile::tempdir().unwrap();
            let driver = open(root.path());
            for earlier in &before {
                runtime.block_on(perform(&driver, earlier)).unwrap();
            }
            let old = seen(&driver);
            let mut new = old.clone();
            assert_eq!(expect(&mut new, &Ids::of(&driver), &operation), Code::Ok);
            driver.files.disk.die_after(steps);
            let answered = runtime.block_on(perform(&driver, &operation));
            let died = driver.files.disk.is_dead();
            drop(driver);
            let driver = open(root.path());
            let found = seen(&driver);
            match &answered {
                Ok(()) => {
                    assert_eq!(found, new, "{operation:?} was acknowledged, and the end came after {steps} steps")
                }
                Err(_) => assert!(found == old || found == new, "{operation:?} {steps}: {found:#?}"),
            }
            // Asked again, it is done.
            if found == old {
                runtime.block_on(perform(&driver, &operation)).unwrap();
            }
            assert_eq!(seen(&driver), new);
            crashes += 1;
            if !died {
                break;
            }
        }
        assert!(crashes > 3, "{operation:?} has steps to die between");
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    let name = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let size = 1..20i64;
    prop_oneof![
        4 => (name(), size.clone()).prop_map(|(name, size_bytes)| Operation::Create { name, size_bytes }),
        2 => (name(), name()).prop_map(|(name, of)| Operation::Clone { name, of }),
        1 => (name(), name()).prop_map(|(name, of)| Operation::Restore { name, of }),
        2 => name().prop_map(|name| Operation::Delete { name }),
        2 => (name(), size).prop_map(|(name, size_bytes)| Operation::Expand { name, size_bytes }),
        1 => (name(), "[1-9]").prop_map(|(name, iops)| Operation::Modify { name, iops }),
        1 => (name(), name()).prop_map(|(name, of)| Operation::Snapshot { name, of }),
        1 => name().prop_map(|name| Operation::DeleteSnapshot { name }),
        2 => (name(), "[a-z]{0,4}").prop_map(|(name, text)| Operation::Write { name, text }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each operation comes with how many steps the process has left to live; most live through it.
    #[test]
    fn random_histories_with_crashes_keep_the_driver_as_the_model(
        history in prop::collection::vec((operations(), prop::option::weighted(0.3, 0..12u32)), 1..40),
    ) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let root = tempfile::tempdir().unwrap();
        let (mut driver, mut model) = (open(root.path()), Model::default());
        for (operation, steps) in history {
            let mut after = model.clone();
            let expected = expect(&mut after, &Ids::of(&driver), &operation);
            if let Some(steps) = steps {
                driver.files.disk.die_after(steps);
            }
            let answered = runtime.block_on(perform(&driver, &operation));
            let died = driver.files.disk.is_dead();
            if steps.is_some() {
                drop(driver);
                driver = open(root.path());
            }
            let found = seen(&driver);
            if died {
                prop_assert!(found == model || found == after, "{operation:?}\n{found:#?}");
                prop_assert!(answered.is_err() || found == after, "{operation:?} was acknowledged\n{found:#?}");
            } else {
                let code = answered.map_or_else(|status| status.code(), |()| Code::Ok);
                prop_assert_eq!(code, expected, "{:?}", operation);
                prop_assert_eq!(&found, &after, "{:?}", operation);
            }
            model = found;
        }
    }
}
