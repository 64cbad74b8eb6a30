//! Opens files that must be regular files.
//!
//! Opening a named pipe blocks until another process opens its other end, so a pipe in place of a file would block the
//! program without a message. Reading a device may never end.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens `path` with `options`. Anything but a regular file (or a symbolic link to one) is an error that names the file
/// and its type.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let opened = options.custom_flags(i32::try_from(flags).unwrap_or(0)).open(path);
    let file_type = match &opened {
        Ok(file) => file.metadata()?.file_type(),
        // Sockets cannot be opened, nor can pipes without a reader.
        Err(_) => match std::fs::metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(_) => return opened,
        },
    };
    if file_type.is_file() {
        return opened;
    }
    let why = format!("{} is {}, not a regular file", path.display(), kind(file_type));
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Reads a whole regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(OpenOptions::new().read(true), path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole regular file as UTF-8 text.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(OpenOptions::new().read(true), path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn kind(file_type: FileType) -> &'static str {
    if file_type.is_fifo() {
        "a named pipe"
    } else if file_type.is_dir() {
        "a directory"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_to_string(&at(name)).unwrap(), "text");
            open(OpenOptions::new().write(true), &at(name)).unwrap();
        }
        let device = Path::new("/dev/zero").to_owned();
        let cases = [
            (at("pipe"), "a named pipe"),
            (at("directory"), "a directory"),
            (at("socket"), "a socket"),
            (device, "a device"),
        ];
        for (path, what) in cases {
            for mut options in [OpenOptions::new().read(true).clone(), OpenOptions::new().write(true).clone()] {
                let error = open(&mut options, &path).unwrap_err().to_string();
                assert_eq!(error, format!("{} is {what}, not a regular file", path.display()));
            }
        }
        assert_eq!(read(&at("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
