//! Frames: the pieces of an archive.

use super::{ArchiveError, DATA_BYTES_MAX, FRAME_BYTES_MAX, MAGIC, Summary, VERSION};
use crate::directory::state::Kind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A file name or another byte string, which need not be UTF-8. In JSON each byte is the character with that number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.iter().map(|byte| char::from(*byte)).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(|c| u8::try_from(u32::from(c))).collect();
        bytes.map(Bytes).map_err(|_| serde::de::Error::custom("a character is not a byte"))
    }
}

impl From<&OsStr> for Bytes {
    fn from(text: &OsStr) -> Bytes {
        Bytes(text.as_bytes().to_vec())
    }
}

impl Bytes {
    pub fn text(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }

    /// Whether it can be the name of a directory entry.
    fn is_name(&self) -> bool {
        !matches!(&self.0[..], b"" | b"." | b"..") && !self.0.iter().any(|byte| matches!(byte, 0 | b'/'))
    }
}

/// The attributes of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Empty for the data directory of a volume.
    pub name: Bytes,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(String, Bytes)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The beginning of a volume or snapshot: its record file, and the attributes of its data directory.
    Begin(Begin),
    End,
    Enter(Meta),
    Leave,
    File(Meta),
    Data {
        offset: u64,
        bytes: Vec<u8>,
    },
    FileEnd {
        size_bytes: u64,
    },
    Link(Meta, Bytes),
    Fifo(Meta),
    /// Another name (hard link) of a file of the same volume, by its path from the volume's directory.
    Hard {
        name: Bytes,
        path: Vec<Bytes>,
    },
    /// The end of the archive.
    Last(Summary),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    pub snapshot: bool,
    pub id: String,
    pub record: String,
    pub data: Meta,
}

impl Begin {
    pub fn kind(&self) -> Kind {
        if self.snapshot { Kind::Snapshot } else { Kind::Volume }
    }
}

impl Frame {
    fn encode(&self) -> (u8, Vec<u8>) {
        fn text<T: Serialize>(content: &T) -> Vec<u8> {
            serde_json::to_vec(content).expect("frames are plain data")
        }
        match self {
            Frame::Begin(begin) => (1, text(begin)),
            Frame::End => (2, Vec::new()),
            Frame::Enter(meta) => (3, text(meta)),
            Frame::Leave => (4, Vec::new()),
            Frame::File(meta) => (5, text(meta)),
            Frame::Data { offset, bytes } => (6, [&offset.to_le_bytes()[..], bytes].concat()),
            Frame::FileEnd { size_bytes } => (7, size_bytes.to_le_bytes().to_vec()),
            Frame::Link(meta, target) => (8, text(&(meta, target))),
            Frame::Fifo(meta) => (9, text(meta)),
            Frame::Hard { name, path } => (10, text(&(name, path))),
            Frame::Last(summary) => (11, text(summary)),
        }
    }

    fn decode(kind: u8, content: &[u8]) -> Result<Frame, ArchiveError> {
        fn read<T: DeserializeOwned>(content: &[u8]) -> Result<T, ArchiveError> {
            serde_json::from_slice(content).map_err(|error| ArchiveError::damaged(error.to_string()))
        }
        let empty = |frame| match content.is_empty() {
            true => Ok(frame),
            false => Err(ArchiveError::damaged("a frame has invalid content")),
        };
        let number = |bytes: &[u8]| {
            let bytes: Result<[u8; 8], _> = bytes.try_into();
            bytes.map(u64::from_le_bytes).map_err(|_| ArchiveError::damaged("a frame lacks its number"))
        };
        let frame = match kind {
            1 => Frame::Begin(read(content)?),
            2 => empty(Frame::End)?,
            3 => Frame::Enter(read(content)?),
            4 => empty(Frame::Leave)?,
            5 => Frame::File(read(content)?),
            6 if content.len() > 8 && content.len() <= 8 + DATA_BYTES_MAX => {
                Frame::Data { offset: number(&content[..8])?, bytes: content[8..].to_vec() }
            }
            7 => Frame::FileEnd { size_bytes: number(content)? },
            8 => read(content).map(|(meta, target)| Frame::Link(meta, target))?,
            9 => Frame::Fifo(read(content)?),
            10 => read(content).map(|(name, path)| Frame::Hard { name, path })?,
            11 => Frame::Last(read(content)?),
            _ => return Err(ArchiveError::damaged(format!("unknown frame kind {kind}"))),
        };
        frame.check_names()?;
        Ok(frame)
    }

    fn check_names(&self) -> Result<(), ArchiveError> {
        let are_names = match self {
            Frame::Begin(begin) => begin.data.name.0.is_empty(),
            Frame::Enter(meta) | Frame::File(meta) | Frame::Fifo(meta) => meta.name.is_name(),
            Frame::Link(meta, target) => meta.name.is_name() && !target.0.is_empty() && !target.0.contains(&0),
            Frame::Hard { name, path } => {
                name.is_name()
                    && !path.is_empty()
                    && path.len() <= super::DEPTH_MAX + 1
                    && path.iter().all(Bytes::is_name)
            }
            _ => true,
        };
        if are_names { Ok(()) } else { Err(ArchiveError::damaged("a name in it is not a valid file name")) }
    }
}

/// Writes frames.
pub struct Writer<W> {
    to: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Writer<W> {
    pub fn begin(mut to: W) -> io::Result<Writer<W>> {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&VERSION.to_le_bytes());
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        Ok(Writer { to, sum })
    }

    pub fn add(&mut self, frame: &Frame) -> io::Result<()> {
        let (kind, content) = frame.encode();
        let length = u32::try_from(content.len()).ok().filter(|length| *length <= FRAME_BYTES_MAX);
        let Some(length) = length else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "names, attributes or a record are too long"));
        };
        let head = [&[kind][..], &length.to_le_bytes()].concat();
        for piece in [&head, &content] {
            self.sum.update(piece);
            self.to.write_all(piece)?;
        }
        self.to.write_all(&self.sum.clone().finalize().to_le_bytes())
    }
}

/// Reads frames, and checks each one.
pub struct Reader<R> {
    from: R,
    sum: crc32fast::Hasher,
}

impl<R: Read> Reader<R> {
    /// Starts after the magic.
    pub fn open(from: R) -> Result<Reader<R>, ArchiveError> {
        let mut reader = Reader { from, sum: crc32fast::Hasher::new() };
        let version = u32::from_le_bytes(reader.exact()?);
        reader.sum.update(&version.to_le_bytes());
        match version {
            VERSION => Ok(reader),
            0 => Err(ArchiveError::damaged("it has no version")),
            newer => Err(ArchiveError::Newer(newer)),
        }
    }

    pub fn next(&mut self) -> Result<Frame, ArchiveError> {
        let [kind] = self.exact()?;
        let length_bytes: [u8; 4] = self.exact()?;
        let length = u32::from_le_bytes(length_bytes);
        if length > FRAME_BYTES_MAX {
            return Err(ArchiveError::damaged("a frame is longer than the limit"));
        }
        // Read incrementally: a damaged length must not allocate memory that the file cannot fill.
        let mut content = Vec::new();
        let got = self.from.by_ref().take(length.into()).read_to_end(&mut content);
        if got.map_err(ArchiveError::io("cannot read the volumes' data"))? < length as usize {
            return Err(ArchiveError::Torn);
        }
        for piece in [&[kind][..], &length_bytes, &content] {
            self.sum.update(piece);
        }
        if u32::from_le_bytes(self.exact()?) != self.sum.clone().finalize() {
            return Err(ArchiveError::damaged("a checksum is wrong"));
        }
        Frame::decode(kind, &content)
    }

    /// Whether the input ends here.
    pub fn is_at_end(&mut self) -> Result<bool, ArchiveError> {
        let mut rest = Vec::new();
        let got = self.from.by_ref().take(1).read_to_end(&mut rest);
        Ok(got.map_err(ArchiveError::io("cannot read the volumes' data"))? == 0)
    }

    fn exact<const N: usize>(&mut self) -> Result<[u8; N], ArchiveError> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Torn,
            _ => ArchiveError::Io("cannot read the volumes' data".to_owned(), error),
        })?;
        Ok(bytes)
    }
}
