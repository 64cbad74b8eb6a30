//! A disk that can be full.

use crate::support::{Running, mainstay};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;

/// The size of a mounted disk.
const DISK_MB: usize = 16;
const MB: usize = 1 << 20;
/// The free space when little is left, or the limit for the size of files.
const LITTLE_MB: usize = 6;

#[derive(Clone, Copy, PartialEq)]
pub enum Room {
    /// Not a single byte is free.
    None,
    Little,
    Enough,
}

pub enum Disk {
    /// A file system in memory: the kernel reports that it is full.
    Real(Mounted),
    /// A limit on the size of files, which needs no privileges.
    Limited(TempDir),
}

/// A small file system in a mount namespace of its own. It is removed when its processes have ended.
pub struct Mounted {
    holder: Child,
    /// While this is open, the process stays.
    _stdin: ChildStdin,
    /// How others enter the namespace.
    join: Vec<String>,
    /// Its path for them, and for us.
    mountpoint: TempDir,
    place: PathBuf,
}

impl Disk {
    pub fn limited() -> Disk {
        Disk::Limited(TempDir::new().expect("a temporary directory can be made"))
    }

    /// A mounted file system if possible. Otherwise this is printed, and file sizes are limited instead: no test is
    /// skipped.
    pub fn real() -> Disk {
        let as_root = || Mounted::new(&["--mount"], &["--mount"]);
        let as_user = |_| {
            Mounted::new(&["--user", "--map-root-user", "--mount"], &["--user", "--preserve-credentials", "--mount"])
        };
        match as_root().or_else(as_user) {
            Ok(mounted) => Disk::Real(mounted),
            Err(why) => {
                println!("no disk of our own can be mounted ({}): files are limited instead", why.trim());
                Disk::limited()
            }
        }
    }

    /// The directory for the data of programs, as the test sees it.
    pub fn path(&self) -> &Path {
        match self {
            Disk::Real(mounted) => &mounted.place,
            Disk::Limited(place) => place.path(),
        }
    }

    /// The kernel's error when no space is left.
    pub fn says(&self) -> &'static str {
        match self {
            Disk::Real(_) => "No space left on device",
            Disk::Limited(_) => "File too large",
        }
    }

    /// Frees space for a running program.
    pub fn free(&self, program: &Running) {
        match self {
            Disk::Real(mounted) => mounted.leave(Room::Enough),
            Disk::Limited(_) => {
                let mut freed = Command::new("prlimit");
                freed.args(["--fsize=unlimited:unlimited", "--pid", &program.id().to_string()]);
                assert!(freed.status().expect("prlimit is there").success());
            }
        }
    }

    /// `mainstay NAME` with its data here.
    pub fn program(&self, name: &str, room: Room) -> Running {
        let (mut command, place) = match self {
            Disk::Real(mounted) => {
                mounted.leave(room);
                let mut command = Command::new("nsenter");
                command.arg("--target").arg(mounted.holder.id().to_string()).args(&mounted.join).arg("sh");
                (command, mounted.mountpoint.path())
            }
            Disk::Limited(place) => (Command::new("sh"), place.path()),
        };
        // In blocks of 512 bytes. A write beyond the limit is an error for the program and does not kill it.
        let limited = |blocks: usize| format!("trap '' XFSZ; ulimit -S -f {blocks}; ");
        let limit = match (self, room) {
            (Disk::Real(_), _) | (_, Room::Enough) => String::new(),
            (_, Room::Little) => limited(LITTLE_MB * MB / 512),
            (_, Room::None) => limited(0),
        };
        let program = mainstay(place);
        command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", &format!("{limit}exec \"$0\" \"$@\"")]).arg(program.get_program());
        command.args([name, "--listen", "127.0.0.1:0", "--data-dir"]).arg(place.join("data"));
        Running::start(command)
    }
}

impl Mounted {
    fn new(unshare: &[&str], join: &[&str]) -> Result<Mounted, String> {
        let mountpoint = TempDir::new().map_err(|error| error.to_string())?;
        let script = format!("mount -t tmpfs -o size={DISK_MB}m mainstay \"$0\" && echo mounted && exec cat");
        let mut holder = Command::new("unshare")
            .args(unshare)
            .args(["sh", "-c", &script])
            .arg(mountpoint.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let (stdin, out) = (holder.stdin.take().expect("it is piped"), holder.stdout.take().expect("it is piped"));
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
        if line != "mounted\n" {
            let ended = holder.wait_with_output().map_err(|error| error.to_string())?;
            return Err(String::from_utf8_lossy(&ended.stderr).into_owned());
        }
        let inside = mountpoint.path().strip_prefix("/").expect("an absolute path");
        let place = Path::new("/proc").join(holder.id().to_string()).join("root").join(inside);
        let join = join.iter().map(ToString::to_string).collect();
        Ok(Mounted { holder, _stdin: stdin, join, mountpoint, place })
    }
}

impl Mounted {
    /// Fills space, or frees it.
    fn leave(&self, room: Room) {
        let ballast = self.place.join("ballast");
        match room {
            Room::Enough if ballast.exists() => std::fs::remove_file(ballast).expect("it can be removed"),
            Room::Enough => {}
            Room::Little => std::fs::write(ballast, vec![1; (DISK_MB - LITTLE_MB) * MB]).expect("there is room for it"),
            Room::None => {
                let ballast = std::fs::OpenOptions::new().create(true).append(true).open(ballast).expect("a file");
                while (&ballast).write_all(&[1; 4096]).is_ok() {}
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}
