//! A driver with a directory of its own, served at a socket, and a client.

use csi::directory::{DirectoryDriver, Expansion, Faults, Options, Serving};
use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi::v1::*;
use csi::{Code, Driver, Failure, Settings};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const GIB: i64 = 1 << 30;

pub struct World {
    pub root: tempfile::TempDir,
    pub server: Arc<DirectoryDriver>,
    pub serving: Serving,
    pub driver: Driver,
}

impl World {
    pub async fn new() -> World {
        World::with(Options::default()).await
    }

    /// A driver with all capabilities.
    pub async fn full() -> World {
        let place = |zone: &str| [("example.com/zone".to_owned(), zone.to_owned())].into();
        World::with(Options {
            attach: true,
            stage: true,
            expansion: Expansion::Both,
            nodes: vec!["node-a".to_owned(), "node-b".to_owned()],
            places: vec![place("a"), place("b")],
            ..Options::default()
        })
        .await
    }

    /// Without fsync, and with a log of all calls.
    pub async fn with(options: Options) -> World {
        let root = tempfile::tempdir().unwrap();
        let options = Options { durable: false, calls_kept: 100_000, ..options };
        let server = DirectoryDriver::open(&root.path().join("volumes"), options, Faults::default()).unwrap();
        let serving = Serving::start(Arc::clone(&server), &root.path().join("csi.sock")).await.unwrap();
        let driver = Driver::connect(&serving.endpoint(), Settings::default()).unwrap();
        World { root, server, serving, driver }
    }

    /// A path that users of volumes may use.
    pub fn path(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    pub async fn create(&self, name: &str) -> Volume {
        self.driver.create_volume(create(name)).await.unwrap().volume.unwrap()
    }

    pub async fn delete(&self, id: &str) {
        self.driver.delete_volume(delete(id)).await.unwrap();
    }

    pub async fn ids(&self) -> Vec<String> {
        let entries = self.driver.all_volumes().await.unwrap();
        entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
    }

    pub fn data(&self, id: &str) -> PathBuf {
        self.directory().join("volumes").join(id).join("data")
    }

    pub fn directory(&self) -> PathBuf {
        self.root.path().join("volumes")
    }
}

pub fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub fn writer() -> VolumeCapability {
    capability(Mode::SingleNodeWriter)
}

pub fn at_least(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

pub fn create(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(10 * GIB),
        volume_capabilities: vec![writer()],
        ..CreateVolumeRequest::default()
    }
}

pub fn delete(id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() }
}

pub fn write(directory: &Path, name: &str, text: &str) {
    std::fs::write(directory.join(name), text).unwrap();
}

/// The code of a call that must fail.
pub fn code<T: std::fmt::Debug>(result: Result<T, Failure>) -> Code {
    result.expect_err("the call fails").code
}

/// An id that no driver creates.
pub const UNKNOWN: &str = "reallyfakevolumeid";
