//! Private files, which are replaced atomically.

use super::certs::{CertError, Identity};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const FILE: &str = "identity.pem";

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {verb} {path}: {source}", path = path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{path}: {source}; put a copy of it back, or remove it to go on with new certificates and keys, \
             to which kubeconfigs and tokens of before mean nothing", path = path.display())]
    Identity { path: PathBuf, source: CertError },
}

/// Reads the identity from `directory`, where older versions stored it.
pub fn read(directory: &Path) -> Result<Option<Identity>, FileError> {
    let path = directory.join(FILE);
    match store::regular_file::read(&path) {
        // Invalid UTF-8 damages a section; the parser's error names it.
        Ok(bytes) => Identity::from_pem(&String::from_utf8_lossy(&bytes))
            .map(Some)
            .map_err(|source| FileError::Identity { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Io { verb: "read", path, source }),
    }
}

/// Like [`write_private`], but does nothing if the file is private and has this content. So it works on a full or
/// read-only disk.
pub fn write_private_if_changed(path: &Path, content: &[u8]) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt;
    let is_private = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 == 0);
    // An unreadable file is replaced.
    if is_private && store::regular_file::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    write_private(path, content)
}

/// Writes a file that only its owner may read. Readers see the old or the new content, never a part.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let failed = |verb| move |source| FileError::Io { verb, path: path.to_owned(), source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    // The name contains the process id, so that two servers do not write the same temporary file.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = directory.join(format!(".{name}.{}", std::process::id()));
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("replace")(error)),
        _ => {}
    }
    let mut file = private_options().open(&draft).map_err(failed("write"))?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&draft, path)) {
        // Report the first error. A remaining temporary file does no harm.
        let _ = fs::remove_file(&draft);
        return Err(failed("write")(error));
    }
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("write"))
}

fn private_options() -> fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
}

pub fn create_private_directory(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| FileError::Io {
        verb: "create",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_private_and_replaced_as_a_whole() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("data");
        create_private_directory(&directory).unwrap();
        let file = directory.join("kubeconfig");
        write_private(&file, b"one").unwrap();
        write_private(&file, b"two").unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&file);
        write_private_if_changed(&file, b"two").unwrap();
        assert_eq!(inode(&file), before, "unchanged, so not replaced");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        write_private_if_changed(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no draft is left");
    }
}
