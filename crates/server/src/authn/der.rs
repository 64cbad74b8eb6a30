//! DER encoding that rcgen does not support: a subject with several organizations.

use super::certs::CertError;
use base64::Engine;
use rcgen::SigningKey;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
/// 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// Position of the subject in a certificate: version, serial number, algorithm, issuer, validity, subject.
const SUBJECT_AT: usize = 5;

/// A subject name with the groups as organizations and the user as common name.
pub fn subject(user: &str, groups: &[String]) -> Vec<u8> {
    let organizations = groups.iter().map(|group| attribute(ORGANIZATION, group));
    let attributes: Vec<u8> = organizations.chain(std::iter::once(attribute(COMMON_NAME, user))).flatten().collect();
    tagged(SEQUENCE, &attributes)
}

/// The same certificate with another subject, signed again.
pub fn with_subject(certificate: &[u8], subject: &[u8], key: &impl SigningKey) -> Result<Vec<u8>, CertError> {
    let odd = || CertError::Unreadable("a fresh certificate has an unexpected shape".to_owned());
    let outer = content(certificate).ok_or_else(odd)?;
    let [body, algorithm, _signature] = <[&[u8]; 3]>::try_from(elements(outer).ok_or_else(odd)?).map_err(|_| odd())?;
    let mut fields = elements(content(body).ok_or_else(odd)?).ok_or_else(odd)?;
    *fields.get_mut(SUBJECT_AT).ok_or_else(odd)? = subject;
    let body = tagged(SEQUENCE, &fields.concat());
    let signature = [&[0][..], &key.sign(&body)?].concat();
    Ok(tagged(SEQUENCE, &[&body, algorithm, &tagged(BIT_STRING, &signature)].concat()))
}

/// `der` as a PEM block.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for (at, letter) in text.chars().enumerate() {
        if at > 0 && at % 64 == 0 {
            out.push('\n');
        }
        out.push(letter);
    }
    out.push_str(&format!("\n-----END {label}-----\n"));
    out
}

fn attribute(oid: [u8; 3], value: &str) -> Vec<u8> {
    let pair = [tagged(OBJECT_IDENTIFIER, &oid), tagged(UTF8_STRING, value.as_bytes())].concat();
    tagged(SET, &tagged(SEQUENCE, &pair))
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short @ 0..=0x7f) => out.push(short),
        _ => {
            let bytes = content.len().to_be_bytes();
            let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
            // A usize has at most eight bytes.
            out.push(0x80 | u8::try_from(digits.len()).unwrap_or(8));
            out.extend_from_slice(digits);
        }
    }
    out.extend_from_slice(content);
    out
}

/// The length of the first element's header, and its total length.
fn measure(input: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*input.get(1)?);
    if first < 0x80 {
        return Some((2, 2 + first));
    }
    let digits = input.get(2..2 + (first & 0x7f))?;
    let length = digits.iter().try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))?;
    let header = 2 + digits.len();
    Some((header, header.checked_add(length)?))
}

fn content(element: &[u8]) -> Option<&[u8]> {
    let (header, whole) = measure(element)?;
    element.get(header..whole)
}

fn elements(mut input: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !input.is_empty() {
        let (_, whole) = measure(input)?;
        found.push(input.get(..whole)?);
        input = input.get(whole..)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_they_are_read() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let element = tagged(SEQUENCE, &vec![7; length]);
            assert_eq!(content(&element).map(<[u8]>::len), Some(length));
            assert_eq!(elements(&element), Some(vec![element.as_slice()]));
            assert_eq!(elements(&element[..element.len() - 1]), None);
        }
    }
}
