//! The protobuf wire format: fields with a number and one of four encodings. No allocation depends on a length in the
//! input.

/// One field's value in its wire encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// No Kubernetes type uses it.
    Fixed32,
}

/// Iterator over the fields of a message, in wire order. It ends after an error.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Wire<'a>), String> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number != 0);
    let number = number.ok_or_else(|| format!("proto: illegal tag {}", key >> 3))?;
    let wire = match key & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => {
            let mut eight = [0; 8];
            eight.copy_from_slice(take(rest, 8)?);
            Wire::Fixed64(u64::from_le_bytes(eight))
        }
        2 => {
            let length = varint(rest)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Wire::Fixed32)?,
        other => return Err(format!("proto: illegal wireType {other}")),
    };
    Ok((number, wire))
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], String> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (taken, after) = rest.split_at_checked(length).ok_or("unexpected EOF")?;
    *rest = after;
    Ok(taken)
}

pub(super) fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("unexpected EOF")?;
        *rest = after;
        // Only one bit of the tenth byte fits; Go drops the others too.
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Ok(value);
        }
    }
    Err("proto: integer overflow".to_owned())
}

impl<'a> Wire<'a> {
    pub fn varint(self, field: &str) -> Result<u64, String> {
        match self {
            Wire::Varint(value) => Ok(value),
            other => Err(other.wrong(field)),
        }
    }
    /// Signed numbers are two's complement.
    pub fn int64(self, field: &str) -> Result<i64, String> {
        self.varint(field).map(u64::cast_signed)
    }
    /// Truncates an int64, as Go does: a negative int32 is sign-extended on the wire.
    pub fn int32(self, field: &str) -> Result<i32, String> {
        self.varint(field).map(|value| value as i32)
    }
    pub fn double(self, field: &str) -> Result<f64, String> {
        match self {
            Wire::Fixed64(bits) => Ok(f64::from_bits(bits)),
            other => Err(other.wrong(field)),
        }
    }
    pub fn bytes(self, field: &str) -> Result<&'a [u8], String> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            other => Err(other.wrong(field)),
        }
    }
    pub fn text(self, field: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| format!("field {field} is not valid UTF-8"))
    }
    fn wrong(self, field: &str) -> String {
        let wire_type = match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32 => 5,
        };
        format!("proto: wrong wireType = {wire_type} for field {field}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<(u32, Wire<'_>), String>> {
        Fields(bytes).collect()
    }

    #[test]
    fn reads_each_shape() {
        assert_eq!(read(&[0x08, 0x96, 0x01]), [Ok((1, Wire::Varint(150)))]);
        assert_eq!(read(&[0x12, 2, b'h', b'i']), [Ok((2, Wire::Bytes(b"hi")))]);
        assert_eq!(read(&[0x19, 1, 0, 0, 0, 0, 0, 0, 0]), [Ok((3, Wire::Fixed64(1)))]);
        assert_eq!(read(&[0x25, 1, 0, 0, 0, 0x08, 0]), [Ok((4, Wire::Fixed32)), Ok((1, Wire::Varint(0)))]);
        let minus_one = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read(&minus_one), [Ok((1, Wire::Varint(u64::MAX)))]);
    }

    #[test]
    fn invalid_bytes_give_one_error_and_end_the_iteration() {
        let cases: [(&[u8], &str); 7] = [
            (&[0x08], "unexpected EOF"),
            (&[0x80], "unexpected EOF"),
            (&[0x12, 5, b'a'], "unexpected EOF"),
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "unexpected EOF"),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "proto: integer overflow"),
            (&[0x00, 0x00], "proto: illegal tag 0"),
            (&[0x0b, 0x0c], "proto: illegal wireType 3"),
        ];
        for (bytes, sentence) in cases {
            assert_eq!(read(bytes), [Err(sentence.to_owned())], "{bytes:?}");
        }
        assert_eq!(Wire::Varint(1).text("name").unwrap_err(), "proto: wrong wireType = 0 for field name");
    }
}
