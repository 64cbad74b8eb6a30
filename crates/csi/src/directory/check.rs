//! Validates requests. Errors are gRPC statuses with the codes of the CSI specification and a sentence for users.

use super::record::Texts;
use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::{CapacityRange, VolumeCapability};
use std::path::{Component, Path, PathBuf};
use tonic::Status;

/// The limit of the CSI specification for names and ids.
const TEXT_BYTES_MAX: usize = 128;

/// The limit of Linux.
const PATH_BYTES_MAX: usize = 4095;

/// Validates an id. An id is only looked up, never made into a path, so nothing else is checked.
pub fn id<'a>(value: &'a str, field: &str) -> Result<&'a str, Status> {
    text(value, field)
}

pub fn name<'a>(value: &'a str, field: &str) -> Result<&'a str, Status> {
    text(value, field)
}

fn text<'a>(value: &'a str, field: &str) -> Result<&'a str, Status> {
    if value.is_empty() {
        return Err(missing(field));
    }
    if value.len() > TEXT_BYTES_MAX {
        return Err(Status::invalid_argument(format!("{field} is longer than {TEXT_BYTES_MAX} bytes")));
    }
    if value.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        return Err(Status::invalid_argument(format!("{field} contains a control character")));
    }
    Ok(value)
}

pub fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

/// Whether a field is set. This is checked first, then whether the named object exists, then the value itself.
pub fn given(value: &str, field: &str) -> Result<(), Status> {
    if value.is_empty() { Err(missing(field)) } else { Ok(()) }
}

/// Validates a path: absolute, and not inside the driver's own directory.
pub fn path(value: &str, field: &str, own: &Path) -> Result<PathBuf, Status> {
    if value.is_empty() {
        return Err(missing(field));
    }
    let invalid = |why: &str| Err(Status::invalid_argument(format!("{field} {why}")));
    let path = Path::new(value);
    if value.len() > PATH_BYTES_MAX || value.contains('\0') {
        return invalid("is not a valid path");
    }
    if !path.is_absolute() || path.components().any(|part| matches!(part, Component::ParentDir)) {
        return invalid("is not an absolute path without \"..\"");
    }
    if path.starts_with(own) {
        return invalid("is in the driver's own directory");
    }
    // Without doubled and trailing slashes, each place has one path.
    Ok(path.components().collect())
}

pub fn capabilities(values: &[VolumeCapability], field: &str) -> Result<(), Status> {
    if values.is_empty() {
        return Err(missing(field));
    }
    values.iter().try_for_each(|value| supported(value).map_err(Status::invalid_argument))
}

pub fn capability(value: &VolumeCapability) -> Result<Mode, Status> {
    supported(value).map_err(Status::invalid_argument)?;
    Ok(mode(value))
}

pub fn mode(value: &VolumeCapability) -> Mode {
    value.access_mode.map_or(Mode::Unknown, |access| access.mode())
}

/// Checks a capability; the error says what is not supported.
pub fn supported(value: &VolumeCapability) -> Result<(), String> {
    match &value.access_type {
        None => return Err("a volume capability has no access type".to_owned()),
        Some(AccessType::Block(_)) => {
            return Err("volumes of this driver are directories: block access is not supported".to_owned());
        }
        Some(AccessType::Mount(_)) => {}
    }
    if mode(value) == Mode::Unknown {
        return Err("a volume capability has no access mode, or one that this driver does not know".to_owned());
    }
    Ok(())
}

/// Chooses the size of a volume: at least `smallest_bytes`, and `usual_bytes` if the range sets nothing.
pub fn size(range: Option<&CapacityRange>, smallest_bytes: i64, usual_bytes: i64) -> Result<i64, Status> {
    let CapacityRange { required_bytes, limit_bytes } = range.copied().unwrap_or_default();
    if required_bytes < 0 || limit_bytes < 0 {
        return Err(Status::invalid_argument("capacity_range has a negative size"));
    }
    if limit_bytes != 0 && limit_bytes < required_bytes {
        return Err(Status::invalid_argument("capacity_range has a limit below what it requires"));
    }
    let wanted = if required_bytes != 0 {
        required_bytes
    } else if limit_bytes != 0 {
        usual_bytes.min(limit_bytes)
    } else {
        usual_bytes
    };
    let size = wanted.max(smallest_bytes);
    if limit_bytes != 0 && size > limit_bytes {
        return Err(Status::out_of_range(format!(
            "the volume needs {size} bytes, but capacity_range allows {limit_bytes}"
        )));
    }
    Ok(size)
}

/// Whether a volume of this size is in the range.
pub fn fits(range: Option<&CapacityRange>, size_bytes: i64) -> bool {
    range.is_none_or(|range| {
        size_bytes >= range.required_bytes && (range.limit_bytes == 0 || size_bytes <= range.limit_bytes)
    })
}

/// The mutable parameters of a request without those that callers add about themselves; unknown ones are refused.
pub fn mutable(parameters: &Texts, known: &[String]) -> Result<Texts, Status> {
    let mut kept = Texts::new();
    for (key, value) in parameters {
        if key.starts_with(super::record::CALLERS_PREFIX) {
            continue;
        }
        if !known.contains(key) {
            return Err(Status::invalid_argument(format!(
                "the mutable parameter {key:?} is unknown; supported parameters: {}",
                known.join(", ")
            )));
        }
        kept.insert(key.clone(), value.clone());
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn unusual_ids_are_refused_or_harmless() {
        for good in ["a", "pvc-é", "../../etc/passwd", "a b", &"x".repeat(128)] {
            assert!(id(good, "volume_id").is_ok(), "{good}");
        }
        for bad in ["", "a\0b", "\u{1b}[31m", "\u{85}", &"x".repeat(129)] {
            assert_eq!(id(bad, "volume_id").unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn paths_must_be_absolute_and_outside_the_drivers_directory() {
        let own = Path::new("/srv/volumes");
        let good = path("/var//lib/x/", "target_path", own).unwrap();
        assert_eq!(good, Path::new("/var/lib/x"));
        let nul = "/a\0b";
        for bad in ["", "relative", "/a/../b", "..", "/srv/volumes", "/srv/volumes/vol-1", nul, &"/x".repeat(3000)] {
            assert_eq!(path(bad, "target_path", own).unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn sizes_follow_the_range() {
        let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
        let cases = [
            (None, 0, Ok(100)),
            (range(0, 0), 0, Ok(100)),
            (range(7, 0), 0, Ok(7)),
            (range(500, 0), 0, Ok(500)),
            (range(0, 50), 0, Ok(50)),
            (range(0, 500), 0, Ok(100)),
            (range(7, 7), 0, Ok(7)),
            (range(7, 0), 30, Ok(30)),
            (range(7, 20), 30, Err(Code::OutOfRange)),
            (range(8, 7), 0, Err(Code::InvalidArgument)),
            (range(-1, 0), 0, Err(Code::InvalidArgument)),
            (range(0, -1), 0, Err(Code::InvalidArgument)),
            (range(i64::MAX, i64::MAX), 0, Ok(i64::MAX)),
        ];
        for (range, smallest, expected) in cases {
            let size = size(range.as_ref(), smallest, 100);
            assert_eq!(size.as_ref().map_err(Status::code).copied(), expected, "{range:?} {smallest}");
            if let Ok(size) = size {
                assert!(fits(range.as_ref(), size), "{range:?}");
            }
        }
    }
}
