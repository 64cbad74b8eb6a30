//! Certificates and keys of the server's identity: generation, parsing and renewal. An [`Identity`] is one text; the
//! caller stores it.

use super::der;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const CA_LIFETIME: Duration = DAY.saturating_mul(3650);
const LEAF_LIFETIME: Duration = DAY.saturating_mul(365);
/// A leaf certificate is renewed when its remaining time is less than this.
const RENEW_BEFORE: Duration = DAY.saturating_mul(90);
/// Backdating of certificates, for clients whose clocks are behind. Upstream uses the same for self-signed
/// certificates.
const BACKDATED: Duration = Duration::from_secs(60 * 60);

const ADMIN_USER: &str = "kubernetes-admin";
const ADMIN_GROUP: &str = "system:masters";

#[derive(Debug, thiserror::Error)]
pub enum CertError {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("{0:?} is neither a DNS name nor an IP address, so the serving certificate cannot carry it")]
    Name(String),
    #[error("the stored identity is unreadable: {0}")]
    Unreadable(String),
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

/// A certificate and its private key, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// Everything that a server needs to have the same identity after a restart.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub ca: Pair,
    pub serving: Pair,
    pub admin: Pair,
    /// Signs ServiceAccount tokens: ECDSA P-256, PKCS#8.
    pub service_account_key_pem: String,
}

/// The names of the serving certificate when the server listens on `host`.
pub fn serving_names(host: &str, extra: &[String]) -> Vec<String> {
    const ALWAYS: [&str; 8] = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "10.96.0.1",
    ];
    let mut names: Vec<String> = ALWAYS.map(str::to_owned).to_vec();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // Clients cannot connect to an unspecified address such as 0.0.0.0.
    let everywhere = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let asked = std::iter::once(host).filter(|host| !host.is_empty() && !everywhere);
    for name in asked.chain(extra.iter().map(String::as_str)) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

impl Identity {
    /// Generates a new CA and everything that it signs.
    pub fn make(names: &[String], now: Timestamp) -> Result<Identity, CertError> {
        let ca = make_ca(now)?;
        Ok(Identity {
            serving: make_serving(&ca, names, now)?,
            admin: make_client(&ca, ADMIN_USER, &[ADMIN_GROUP.to_owned()], now)?,
            service_account_key_pem: KeyPair::generate()?.serialize_pem(),
            ca,
        })
    }

    /// Renews certificates that expire soon or lack one of `names`. Returns whether anything changed and must be
    /// stored.
    pub fn renew(&mut self, names: &[String], now: Timestamp) -> Result<bool, CertError> {
        let serving = Facts::read(&self.serving.certificate_pem)?;
        let stale_serving = serving.is_due(now) || !serving.carries(names);
        let stale_admin = Facts::read(&self.admin.certificate_pem)?.is_due(now);
        if Facts::read(&self.ca.certificate_pem)?.is_invalid(now) {
            tracing::warn!("the certificate of the CA is not valid at this machine's time: is its clock right?");
        }
        if stale_serving {
            self.serving = make_serving(&self.ca, names, now)?;
        }
        if stale_admin {
            self.admin = make_client(&self.ca, ADMIN_USER, &[ADMIN_GROUP.to_owned()], now)?;
        }
        Ok(stale_serving || stale_admin)
    }

    /// Renews the serving certificate with the same names.
    pub fn renew_serving(&mut self, now: Timestamp) -> Result<(), CertError> {
        let serving = Facts::read(&self.serving.certificate_pem)?;
        self.serving = make_serving(&self.ca, &serving.names, now)?;
        Ok(())
    }

    /// The names and addresses in the serving certificate. Those that earlier starts requested are included.
    pub fn serving_names(&self) -> Result<Vec<String>, CertError> {
        Ok(Facts::read(&self.serving.certificate_pem)?.names)
    }

    /// The period in which the serving certificate need not be renewed, in Unix seconds.
    pub fn serving_period(&self) -> Result<Range<i64>, CertError> {
        Ok(Facts::read(&self.serving.certificate_pem)?.period())
    }

    /// Issues a client certificate for `user` in `groups`.
    pub fn issue_client(&self, user: &str, groups: &[String], now: Timestamp) -> Result<Pair, CertError> {
        make_client(&self.ca, user, groups, now)
    }

    /// The whole identity as text. Keep it secret.
    pub fn to_pem(&self) -> String {
        self.parts().iter().map(|(name, pem)| format!("# {name}\n{}\n", pem.trim_end())).collect()
    }

    /// Parses the output of [`Identity::to_pem`].
    pub fn from_pem(text: &str) -> Result<Identity, CertError> {
        let part = |name: &str| section(text, name);
        let pair = |name: &str| -> Result<Pair, CertError> {
            Ok(Pair { certificate_pem: part(&format!("{name}.crt"))?, key_pem: part(&format!("{name}.key"))? })
        };
        let identity = Identity {
            ca: pair("ca")?,
            serving: pair("serving")?,
            admin: pair("admin")?,
            service_account_key_pem: part("service-account.key")?,
        };
        identity.check()?;
        Ok(identity)
    }

    /// Refuses parts that do not match each other. With a damaged part, clients would be refused without a clear
    /// reason.
    fn check(&self) -> Result<(), CertError> {
        let key = |name: &str, pem: &str| {
            // The parser of TLS and tokens.
            private_key(pem)?;
            KeyPair::from_pem(pem).map_err(|error| CertError::Unreadable(format!("{name}.key is damaged: {error}")))
        };
        let ca = certificate(&self.ca.certificate_pem)?;
        let ca = x509(&ca)?;
        for (name, pair) in [("ca", &self.ca), ("serving", &self.serving), ("admin", &self.admin)] {
            let der = certificate(&pair.certificate_pem)?;
            let parsed = x509(&der)?;
            // The parser of TLS, which is stricter.
            ParsedCertificate::try_from(&der)
                .map_err(|error| CertError::Unreadable(format!("{name}.crt is damaged: {error}")))?;
            parsed.verify_signature(Some(ca.public_key())).map_err(|_| {
                CertError::Unreadable(format!("{name}.crt is damaged: its signature is not that of the CA"))
            })?;
            if key(name, &pair.key_pem)?.public_key_raw() != &*parsed.public_key().subject_public_key.data {
                return Err(CertError::Unreadable(format!("{name}.key is not the key of {name}.crt")));
            }
        }
        key("service-account", &self.service_account_key_pem)?;
        Ok(())
    }

    fn parts(&self) -> [(&'static str, &str); 7] {
        [
            ("ca.crt", &self.ca.certificate_pem),
            ("ca.key", &self.ca.key_pem),
            ("serving.crt", &self.serving.certificate_pem),
            ("serving.key", &self.serving.key_pem),
            ("admin.crt", &self.admin.certificate_pem),
            ("admin.key", &self.admin.key_pem),
            ("service-account.key", &self.service_account_key_pem),
        ]
    }
}

// Keys must never be logged.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("ca", &self.ca).field("serving", &self.serving).finish_non_exhaustive()
    }
}

/// The first certificate of a PEM text.
pub(crate) fn certificate(pem: &str) -> Result<CertificateDer<'static>, CertError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| unreadable(&error, "a certificate"))
}

fn x509<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertError> {
    let (_, parsed) = X509Certificate::from_der(der).map_err(|error| CertError::Unreadable(error.to_string()))?;
    Ok(parsed)
}

/// The private key of a PEM text.
pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, CertError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| unreadable(&error, "a private key"))
}

fn unreadable(error: &pem::Error, what: &str) -> CertError {
    CertError::Unreadable(match error {
        pem::Error::NoItemsFound => format!("{what} is missing"),
        error => error.to_string(),
    })
}

fn section(text: &str, name: &str) -> Result<String, CertError> {
    let title = format!("# {name}");
    let lines = text.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.starts_with('#'));
    let found: String = lines.flat_map(|line| [line, "\n"]).collect();
    if found.is_empty() { Err(CertError::Unreadable(format!("it has no {name}"))) } else { Ok(found) }
}

fn make_ca(now: Timestamp) -> Result<Pair, CertError> {
    let key = KeyPair::generate()?;
    let mut params = leaf(now, CA_LIFETIME);
    params.distinguished_name = common_name("mainstay-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Pair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

fn make_serving(ca: &Pair, names: &[String], now: Timestamp) -> Result<Pair, CertError> {
    let mut params = leaf(now, LEAF_LIFETIME);
    for name in names {
        let one = CertificateParams::new(vec![name.clone()]).map_err(|_| CertError::Name(name.clone()))?;
        params.subject_alt_names.extend(one.subject_alt_names);
    }
    params.distinguished_name = common_name("mainstay");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer(ca)?)?;
    Ok(Pair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

fn make_client(ca: &Pair, user: &str, groups: &[String], now: Timestamp) -> Result<Pair, CertError> {
    let key = KeyPair::generate()?;
    let certificate_pem = sign_client(ca, user, groups, LEAF_LIFETIME, &key, now)?;
    Ok(Pair { certificate_pem, key_pem: key.serialize_pem() })
}

/// Signs a client certificate for this public key, in PEM.
pub(super) fn sign_client(
    ca: &Pair,
    user: &str,
    groups: &[String],
    lifetime: Duration,
    key: &impl PublicKeyData,
    now: Timestamp,
) -> Result<String, CertError> {
    let mut params = leaf(now, lifetime);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let issuer = issuer(ca)?;
    let draft = params.signed_by(key, &issuer)?;
    // rcgen allows one value per attribute type, but a user may have many groups.
    let subject = der::subject(user, groups);
    let signed = der::with_subject(draft.der(), &subject, issuer.key())?;
    Ok(der::pem("CERTIFICATE", &signed))
}

/// Whether the CA signed this certificate, even if the certificate has expired.
pub fn is_signed_by(ca_pem: &str, certificate_pem: &str) -> bool {
    let (Ok(ca), Ok(certificate)) = (certificate(ca_pem), certificate(certificate_pem)) else { return false };
    let (Ok(ca), Ok(certificate)) = (x509(&ca), x509(&certificate)) else { return false };
    certificate.verify_signature(Some(ca.public_key())).is_ok()
}

fn issuer(ca: &Pair) -> Result<Issuer<'static, KeyPair>, CertError> {
    Ok(Issuer::from_ca_cert_pem(&ca.certificate_pem, KeyPair::from_pem(&ca.key_pem)?)?)
}

fn leaf(now: Timestamp, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_second().max(0).unsigned_abs());
    params.not_before = now - BACKDATED;
    params.not_after = now + lifetime;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// The facts that decide whether a certificate must be renewed.
struct Facts {
    not_before_s: i64,
    not_after_s: i64,
    names: Vec<String>,
}

impl Facts {
    fn read(pem: &str) -> Result<Facts, CertError> {
        let der = certificate(pem)?;
        let parsed = x509(&der)?;
        let extension = parsed.subject_alternative_name().map_err(|error| CertError::Unreadable(error.to_string()))?;
        let names = extension.iter().flat_map(|found| &found.value.general_names).filter_map(alternative_name);
        let (not_before, not_after) = (&parsed.validity.not_before, &parsed.validity.not_after);
        let (not_before_s, not_after_s) = (not_before.timestamp(), not_after.timestamp());
        Ok(Facts { not_before_s, not_after_s, names: names.collect() })
    }

    /// The period in which the certificate need not be renewed, in Unix seconds.
    fn period(&self) -> Range<i64> {
        let renew_before_s = i64::try_from(RENEW_BEFORE.as_secs()).unwrap_or(i64::MAX);
        self.not_before_s..self.not_after_s.saturating_sub(renew_before_s)
    }

    /// Whether the certificate must be renewed: it expires soon, or it is not valid yet because the clock was ahead.
    fn is_due(&self, now: Timestamp) -> bool {
        !self.period().contains(&now.as_second())
    }

    fn is_invalid(&self, now: Timestamp) -> bool {
        !(self.not_before_s..=self.not_after_s).contains(&now.as_second())
    }

    fn carries(&self, wanted: &[String]) -> bool {
        wanted.iter().all(|name| self.names.contains(name))
    }
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn an_identity_survives_its_text_form() {
        let identity = Identity::make(&serving_names("127.0.0.1", &[]), at(NOW)).unwrap();
        assert_eq!(Identity::from_pem(&identity.to_pem()).unwrap(), identity);
        let cut = identity.to_pem().replace("# service-account.key", "# something-else");
        assert_eq!(
            Identity::from_pem(&cut).unwrap_err().to_string(),
            "the stored identity is unreadable: it has no service-account.key"
        );
        assert!(Identity::from_pem("").is_err());
        assert!(!format!("{identity:?}").contains("PRIVATE"));
    }

    /// Flips a bit in each character of the text: it is refused, or parses to the same identity.
    #[test]
    fn damage_is_detected_at_every_byte() {
        let identity = Identity::make(&serving_names("127.0.0.1", &[]), at(NOW)).unwrap();
        let text = identity.to_pem();
        let meant = |identity: &Identity| {
            let pairs = [&identity.ca, &identity.serving, &identity.admin];
            let of = |pair: &Pair| (certificate(&pair.certificate_pem).unwrap(), private_key(&pair.key_pem).unwrap());
            (pairs.map(of), private_key(&identity.service_account_key_pem).unwrap())
        };
        let mut harmless = 0;
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1 << (place % 8);
            if let Ok(read) = Identity::from_pem(&String::from_utf8_lossy(&bytes)) {
                let line = text[..place].lines().count();
                assert!(meant(&read) == meant(&identity), "byte {place}, in line {line}");
                harmless += 1;
            }
        }
        assert!(harmless < text.len() / 50, "{harmless} of {}", text.len());
        for end in 0..text.trim_end().len() {
            assert!(Identity::from_pem(&text[..end]).is_err(), "cut off at {end}");
        }
    }

    #[test]
    fn leaves_are_renewed_when_old_or_when_names_are_missing_and_the_ca_stays() {
        let names = serving_names("10.0.0.7", &["api.example".to_owned()]);
        let first = Identity::make(&names, at(NOW)).unwrap();
        let day = 24 * 60 * 60;

        let mut same = first.clone();
        assert!(!same.renew(&names, at(NOW + 200 * day)).unwrap());
        assert_eq!(same, first);

        let mut old = first.clone();
        assert!(old.renew(&names, at(NOW + 300 * day)).unwrap());
        assert_ne!(old.serving, first.serving);
        assert_ne!(old.admin, first.admin);
        assert_eq!(old.ca, first.ca);
        assert_eq!(old.service_account_key_pem, first.service_account_key_pem);

        let mut moved = first.clone();
        assert!(moved.renew(&serving_names("10.0.0.8", &[]), at(NOW)).unwrap());
        assert_eq!(moved.admin, first.admin);
        assert!(!moved.renew(&serving_names("10.0.0.8", &[]), at(NOW)).unwrap());
    }

    #[test]
    fn serving_names_hold_the_host_once_and_no_wildcard_address() {
        assert!(serving_names("10.1.2.3", &[]).contains(&"10.1.2.3".to_owned()));
        assert!(serving_names("[fd00::1]", &[]).contains(&"fd00::1".to_owned()));
        assert_eq!(serving_names("0.0.0.0", &[]), serving_names("localhost", &[]));
        let wrong = Identity::make(&serving_names("", &["bad name\u{1F600}".to_owned()]), at(NOW)).unwrap_err();
        assert!(wrong.to_string().contains("is neither a DNS name nor an IP address"), "{wrong}");
    }
}
