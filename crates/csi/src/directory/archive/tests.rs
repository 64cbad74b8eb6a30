use super::frame::{Begin, Bytes, Frame, Meta, Writer};
use super::*;
use crate::directory::{DirectoryDriver, Faults, Options};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const ID: &str = "vol-0123456789abcdef0123456789abcdef";
const OTHER: &str = "vol-fedcba9876543210fedcba9876543210";

fn record(id: &str, name: &str) -> String {
    format!(
        r#"{{"format": 1, "record": {{"id": "{id}", "name": "{name}", "size_bytes": 1, "created": "2026-01-02T03:04:05Z"}}}}"#
    )
}

/// Creates a driver's directory with one volume; returns the path of the volume's data.
fn volume(root: &Path, id: &str) -> PathBuf {
    let home = root.join("volumes").join(id);
    fs::create_dir_all(home.join("data")).unwrap();
    fs::write(home.join("volume.json"), record(id, id)).unwrap();
    home.join("data")
}

fn archive(root: &Path) -> (Vec<u8>, Summary) {
    let mut bytes = Vec::new();
    let summary = write(root, &mut bytes).unwrap();
    (bytes, summary)
}

fn body(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(&MAGIC[..]).unwrap()
}

#[test]
fn restored_data_equals_the_original() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = volume(from.path(), ID);
    fs::write(from.path().join("volumes").join(ID).join("use.json"), "{}").unwrap();
    fs::create_dir_all(from.path().join(format!("volumes/new-{OTHER}/data"))).unwrap();
    let odd = OsStr::from_bytes(b"not \xff text\n");
    fs::create_dir_all(data.join("a/empty")).unwrap();
    fs::write(data.join("a").join(odd), "odd").unwrap();
    fs::write(data.join("a/big"), vec![7; 3 << 20]).unwrap();
    fs::set_permissions(data.join("a/big"), Permissions::from_mode(0o640)).unwrap();
    let sparse = fs::File::create(data.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 100 << 20).unwrap();
    sparse.set_len(300 << 20).unwrap();
    fs::File::options().write(true).open(data.join("a/big")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    symlink("/etc/passwd", data.join("link")).unwrap();
    fs::hard_link(data.join("a/big"), data.join("a/second")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, data.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).unwrap();
    let open = fs::File::open(data.join("a/big")).unwrap();
    let knows_attributes = rustix::fs::fsetxattr(&open, "user.kind", b"test", rustix::fs::XattrFlags::empty()).is_ok();
    fs::set_permissions(data.join("a"), Permissions::from_mode(0o2550)).unwrap();

    assert_eq!(ids(from.path()).unwrap(), [ID]);
    let (bytes, written) = archive(from.path());
    assert!(bytes.len() < 4 << 20, "holes take no space: {} bytes", bytes.len());
    assert_eq!((&written.volumes[..], written.files, written.changed), (&[ID.to_owned()][..], 3, 0));
    assert_eq!((written.left_out, &written.examples[..]), (1, &[format!("{ID}/socket: a socket")][..]));
    assert_eq!(check(body(&bytes)).unwrap(), written);
    let restored = restore(body(&bytes), to.path()).unwrap();
    assert_eq!((&restored.volumes, restored.files, restored.bytes), (&written.volumes, written.files, written.bytes));
    assert_eq!((restored.left_out, &restored.examples[..]), (0, &[][..]));

    let back = to.path().join("volumes").join(ID).join("data");
    let names = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&back), ["a", "fifo", "link", "sparse"].map(OsStr::new));
    assert_eq!(names(&to.path().join("volumes").join(ID)), ["data", "volume.json"].map(OsStr::new));
    assert_eq!(names(&to.path().join("volumes")), [OsStr::new(ID)]);
    assert_eq!(fs::read(back.join("a").join(odd)).unwrap(), b"odd");
    assert_eq!(fs::read(back.join("a/big")).unwrap(), vec![7; 3 << 20]);
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert!(fs::symlink_metadata(back.join("fifo")).unwrap().file_type().is_fifo() && back.join("a/empty").is_dir());
    let meta = |name: &str| fs::metadata(back.join(name)).unwrap();
    assert_eq!(meta("a/big").ino(), meta("a/second").ino());
    assert_eq!(meta("a/big").modified().unwrap(), std::time::UNIX_EPOCH);
    assert_eq!((meta("a/big").mode() & 0o7777, meta("a").mode() & 0o7777), (0o640, 0o2550));
    assert_eq!(meta("sparse").len(), 300 << 20);
    assert!(meta("sparse").blocks() * 512 < 1 << 20, "holes stay holes");
    let mut middle = [0; 6];
    fs::File::open(back.join("sparse")).unwrap().read_exact_at(&mut middle, 100 << 20).unwrap();
    assert_eq!(&middle, b"middle");
    if knows_attributes {
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(back.join("a/big"), "user.kind", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"test");
    }
    // A driver serves the restored volumes.
    let driver = DirectoryDriver::open(to.path(), Options::default(), Faults::default()).unwrap();
    assert_eq!((driver.volumes().len(), driver.findings()), (1, &[][..]));
}

#[test]
fn existing_volumes_are_not_overwritten() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(volume(from.path(), ID).join("file"), "new").unwrap();
    let (bytes, _) = archive(from.path());
    fs::write(volume(to.path(), OTHER).join("file"), "old").unwrap();
    assert!(matches!(restore(body(&bytes), to.path()), Err(ArchiveError::NotEmpty(_))));
    let _serving = DirectoryDriver::open(from.path(), Options::default(), Faults::default()).unwrap();
    assert!(
        matches!(restore(body(&bytes), from.path()), Err(ArchiveError::Directory(_))),
        "a driver serves the directory"
    );
    assert!(!to.path().join("volumes").join(ID).exists());
    assert_eq!(fs::read(to.path().join("volumes").join(OTHER).join("data/file")).unwrap(), b"old");
}

#[test]
fn a_missing_directory_gives_an_archive_without_volumes() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (bytes, summary) = archive(&from.path().join("missing"));
    assert_eq!((summary, ids(&from.path().join("missing")).unwrap()), (Summary::default(), Vec::new()));
    assert_eq!(restore(body(&bytes), to.path()).unwrap(), Summary::default());
}

#[test]
fn a_truncated_or_changed_archive_is_detected_at_every_position() {
    let from = tempfile::tempdir().unwrap();
    let data = volume(from.path(), ID);
    fs::create_dir(data.join("a")).unwrap();
    fs::write(data.join("a/file"), "content").unwrap();
    let (bytes, _) = archive(from.path());
    let whole = body(&bytes);
    check(whole).unwrap();
    for length in 0..whole.len() {
        assert!(matches!(check(&whole[..length]), Err(ArchiveError::Torn)), "{length}");
    }
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&flipped[..]).is_err(), "bit {bit}");
    }
    assert!(check(&[whole, b"x"].concat()[..]).is_err(), "nothing follows the end");
}

fn meta(name: &str) -> Meta {
    let name = Bytes(name.as_bytes().to_vec());
    Meta { name, mode: 0o6755, uid: 0, gid: 0, modified: (0, 0), attributes: Vec::new() }
}

fn begin(id: &str) -> Frame {
    Frame::Begin(Begin { snapshot: false, id: id.to_owned(), record: record(id, id), data: meta("") })
}

fn forged(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&mut bytes).unwrap();
    for frame in frames.iter().chain([&Frame::End, &Frame::Last(Summary::default())]) {
        writer.add(frame).unwrap();
    }
    bytes
}

/// All of these archives have valid checksums.
#[test]
fn a_forged_archive_writes_nothing_outside_its_volumes() {
    let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
    let (file, end) = (Frame::File(meta("x")), Frame::FileEnd { size_bytes: 1 });
    let data = |offset| Frame::Data { offset, bytes: b"x".to_vec() };
    let names = ["", ".", "..", "a/b", "/a", "a\0b"];
    let mut never = Vec::new();
    for name in names {
        never.push(vec![begin(ID), Frame::Enter(meta(name)), Frame::Leave]);
        never.push(vec![begin(ID), Frame::File(meta(name)), end.clone()]);
        never.push(vec![begin(ID), Frame::Link(meta(name), bytes("/etc"))]);
        never.push(vec![begin(ID), Frame::Hard { name: bytes("x"), path: vec![bytes(name)] }]);
    }
    never.extend([
        vec![begin("../../../etc")],
        vec![begin(ID), Frame::End, begin(ID)],
        vec![begin(ID), begin(OTHER)],
        vec![Frame::Begin(Begin { snapshot: false, id: ID.to_owned(), record: record(OTHER, "a"), data: meta("") })],
        vec![Frame::Begin(Begin { snapshot: false, id: ID.to_owned(), record: "{}".to_owned(), data: meta("") })],
        vec![file.clone(), end.clone()],
        vec![begin(ID), Frame::Leave],
        vec![begin(ID), Frame::Enter(meta("a"))],
        vec![begin(ID), data(0)],
        vec![begin(ID), file.clone(), file.clone(), end.clone()],
        vec![begin(ID), file.clone(), data(7), data(3), end.clone()],
        vec![begin(ID), file.clone(), data(7), end.clone()],
        vec![begin(ID), file.clone(), data(u64::MAX - 1), Frame::FileEnd { size_bytes: u64::MAX }],
        [vec![begin(ID)], vec![Frame::Enter(meta("a")); 300]].concat(),
    ]);
    // Problems that only show on disk.
    let late = [
        vec![
            begin(ID),
            Frame::Link(meta("out"), bytes("OUTSIDE")),
            Frame::Enter(meta("out")),
            file.clone(),
            end.clone(),
            Frame::Leave,
        ],
        vec![begin(ID), Frame::Link(meta("x"), bytes("OUTSIDE/precious")), file.clone(), data(0), end.clone()],
        vec![
            begin(ID),
            Frame::Link(meta("out"), bytes("OUTSIDE")),
            Frame::Hard { name: bytes("x"), path: vec![bytes("out"), bytes("precious")] },
        ],
        vec![begin(ID), Frame::Hard { name: bytes("x"), path: vec![bytes("missing")] }],
        vec![begin(ID), file.clone(), end.clone(), file, end],
    ];
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "precious").unwrap();
    let at = |frame: &Frame| match frame {
        Frame::Link(meta, target) => {
            let target = String::from_utf8_lossy(&target.0).replace("OUTSIDE", &outside.path().to_string_lossy());
            Frame::Link(meta.clone(), bytes(&target))
        }
        frame => frame.clone(),
    };
    let judge = |frames: &[Frame], is_checked: bool| {
        let to = tempfile::tempdir().unwrap();
        let bytes = forged(&frames.iter().map(at).collect::<Vec<_>>());
        assert_eq!(check(body(&bytes)).is_err(), is_checked, "{frames:?}");
        assert!(restore(body(&bytes), to.path()).is_err(), "{frames:?}");
        let left: Vec<_> =
            fs::read_dir(to.path().join("volumes")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?} is left of {frames:?}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "{frames:?}");
        let precious = fs::metadata(outside.path().join("precious")).unwrap();
        assert_eq!((precious.len(), precious.nlink()), (8, 1), "{frames:?}");
    };
    never.iter().for_each(|frames| judge(frames, true));
    late.iter().for_each(|frames| judge(frames, false));
}

#[test]
fn an_archive_grants_no_rights() {
    let to = tempfile::tempdir().unwrap();
    let attributes = vec![("security.capability".to_owned(), Bytes(vec![1])), ("trusted.x".to_owned(), Bytes(vec![1]))];
    let file = Meta { attributes, ..meta("program") };
    let bytes = forged(&[begin(ID), Frame::File(file), Frame::FileEnd { size_bytes: 0 }]);
    let summary = restore(body(&bytes), to.path()).unwrap();
    assert_eq!(summary.left_out, 2, "{summary:?}");
    let program = fs::metadata(to.path().join("volumes").join(ID).join("data/program")).unwrap();
    assert_eq!(program.mode() & 0o7777, 0o755, "no setuid, no setgid");
}
