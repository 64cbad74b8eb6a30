use super::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

fn opened(path: &Path) -> Dir {
    Dir::open(path).unwrap()
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn only_names_below_the_directory_are_resolved() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("a/b")).unwrap();
    symlink("a", place.path().join("link")).unwrap();
    fs::write(place.path().join("file"), "x").unwrap();
    let root = opened(place.path());
    for path in ["a", "a/b", "a//b/"] {
        root.open_beneath(Path::new(path)).unwrap();
        root.open_each_component(&names(Path::new(path)).unwrap()).unwrap();
    }
    for path in ["", ".", "..", "a/..", "a/../a", "/", "/etc", "link", "link/b", "file", "file/x", "missing"] {
        assert!(root.open_beneath(Path::new(path)).is_err(), "{path}");
        let each = names(Path::new(path)).and_then(|names| root.open_each_component(&names));
        assert!(each.is_err(), "{path}");
    }
    for bad in ["", ".", "..", "a/b", "/a", "a/", "a/."] {
        assert!(root.child(name(bad)).is_err(), "{bad}");
        assert!(root.remove(name(bad)).is_err(), "{bad}");
        assert!(root.make_dir(name(bad), 0o700).is_err(), "{bad}");
        assert!(root.create_file(name(bad), 0o600).is_err(), "{bad}");
        assert!(root.link(Path::new("x"), name(bad)).is_err(), "{bad}");
    }
    assert!(place.path().join("a/b").is_dir());
}

#[test]
fn making_a_path_follows_no_link() {
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = opened(place.path());
    for _ in 0..2 {
        root.make_beneath(Path::new("a/b/c"), 0o750).unwrap();
    }
    assert!(place.path().join("a/b/c").is_dir());
    symlink(outside.path(), place.path().join("out")).unwrap();
    assert!(root.make_beneath(Path::new("out/x"), 0o750).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn only_regular_files_are_opened_and_only_new_ones_made() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), "text").unwrap();
    symlink("file", place.path().join("link")).unwrap();
    let root = opened(place.path());
    rustix::fs::mknodat(&root, "fifo", rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(fs::symlink_metadata(place.path().join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(io::read_to_string(root.open_file(name("file")).unwrap()).unwrap(), "text");
    for other in ["link", "fifo", ".", "missing"] {
        assert!(root.open_file(name(other)).is_err(), "{other}");
    }
    for taken in ["file", "link", "fifo"] {
        assert!(root.create_file(name(taken), 0o600).is_err(), "{taken}");
    }
    let kinds: Vec<(String, Kind)> = {
        let mut entries: Vec<Entry> = root.entries().unwrap().map(Result::unwrap).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.into_iter().map(|entry| (entry.name.into_string().unwrap(), entry.kind)).collect()
    };
    let expected = [("fifo", Kind::Fifo), ("file", Kind::File), ("link", Kind::Link)];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn a_tree_is_removed_and_links_in_it_are_not_followed() {
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("precious"), "x").unwrap();
    let tree = place.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::write(tree.join("a/.hidden"), "x").unwrap();
    symlink(outside.path(), tree.join("a/b/out")).unwrap();
    symlink(outside.path(), tree.join("out")).unwrap();
    // Programs can leave directories behind that their own user cannot write to.
    for locked in ["a/b", "a"] {
        fs::set_permissions(tree.join(locked), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let root = opened(place.path());
    for _ in 0..2 {
        root.remove(name("tree")).unwrap();
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert!(outside.path().join("precious").exists());

    symlink(outside.path(), place.path().join("tree")).unwrap();
    root.remove(name("tree")).unwrap();
    assert!(outside.path().join("precious").exists());
    assert!(fs::symlink_metadata(place.path().join("tree")).is_err());
}

/// The tree is deeper than the longest path and than the usual limit on open files.
#[test]
fn a_tree_of_any_depth_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let root = opened(place.path());
    let mut at = root.make_beneath(Path::new("tree"), 0o700).unwrap();
    for level in 0..2_000 {
        if level % 1000 == 0 {
            drop(at.create_file(name("file"), 0o600).unwrap());
        }
        at = at.make_beneath(Path::new("down"), 0o700).unwrap();
    }
    drop(at);
    root.remove(name("tree")).unwrap();
    assert_eq!(root.entries().unwrap().count(), 0);
}

#[test]
fn a_directory_contains_itself_and_everything_below_it() {
    let place = tempfile::tempdir().unwrap();
    let root = opened(place.path());
    let below = root.make_beneath(Path::new("a/b"), 0o700).unwrap();
    let beside = root.make_beneath(Path::new("c"), 0o700).unwrap();
    assert!(root.contains(&below).unwrap() && root.contains(&root).unwrap());
    assert!(!beside.contains(&below).unwrap() && !below.contains(&root).unwrap());
    assert!(opened(Path::new("/")).contains(&below).unwrap());
}

/// Another process repeatedly replaces a directory with a symbolic link to a directory outside, while the directory is
/// removed.
#[test]
fn a_link_swapped_in_during_removal_is_not_followed() {
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(outside.path().join("b/c")).unwrap();
    fs::write(outside.path().join("b/c/precious"), "x").unwrap();
    let root = opened(place.path());
    let (ended, at, to) = (AtomicBool::new(false), place.path().to_owned(), outside.path().to_owned());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Errors are ignored: the removal may have deleted any of these entries already.
            while !ended.load(Ordering::Relaxed) {
                let _ = fs::create_dir_all(at.join("tree/a/b/c"));
                let _ = fs::rename(at.join("tree/a"), at.join("aside"));
                let _ = symlink(&to, at.join("tree/a"));
                let _ = fs::remove_file(at.join("tree/a"));
                let _ = fs::rename(at.join("aside"), at.join("tree/a"));
            }
        });
        for _ in 0..2000 {
            // The result depends on the timing of both threads. Only the data outside matters.
            let _ = root.remove(name("tree"));
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(outside.path().join("b/c/precious").exists());
}
