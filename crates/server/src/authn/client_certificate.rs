//! Client certificates for users, for `mainstay kubeconfig --user`.

use super::certs::{CertError, Pair, sign_client};
use jiff::Timestamp;
use rcgen::{KeyPair, SubjectPublicKeyInfo};
use std::time::Duration;

/// A certificate cannot be revoked, so its lifetime is limited.
pub const LIFETIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
pub const LIFETIME_MIN: Duration = Duration::from_secs(10 * 60);

const NAME_BYTES_MAX: usize = 253;
const GROUPS_MAX: usize = 64;
/// Prefix of the names of Kubernetes' own components. The group `system:masters` has all permissions.
const SYSTEM: &str = "system:";

/// The user, groups and lifetime of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    pub user: String,
    pub groups: Vec<String>,
    pub lifetime: Duration,
}

impl CertificateRequest {
    /// Checks the names and the lifetime. The error is one sentence.
    pub fn validate(&self) -> Result<(), String> {
        check_name("user", &self.user)?;
        self.groups.iter().try_for_each(|group| check_name("group", group))?;
        if self.groups.len() > GROUPS_MAX {
            return Err(format!("{} groups are more than {GROUPS_MAX}", self.groups.len()));
        }
        if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&self.lifetime) {
            return Err("the lifetime of a client certificate is at least 10m and at most 365d, because it cannot be \
                        revoked"
                .to_owned());
        }
        Ok(())
    }

    /// The first user or group name that is reserved for Kubernetes' own components.
    pub fn system_name(&self) -> Option<&str> {
        let names = std::iter::once(&self.user).chain(&self.groups);
        names.map(String::as_str).find(|name| name.starts_with(SYSTEM))
    }

    /// Signs a certificate for this public key with the CA's key. Returns it in PEM.
    pub fn sign(&self, ca: &Pair, public_key_pem: &str, now: Timestamp) -> Result<String, CertError> {
        let public_key = SubjectPublicKeyInfo::from_pem(public_key_pem)?;
        sign_client(ca, &self.user, &self.groups, self.lifetime, &public_key, now)
    }
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("the name of a {what} is empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("the name of a {what} is longer than {NAME_BYTES_MAX} bytes"));
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err(format!("the {what} {name:?} has control characters, or spaces at an end"));
    }
    Ok(())
}

/// The private key of a client. The process that generates it gives it only to its user, never to the server.
pub struct ClientKey(KeyPair);

impl ClientKey {
    pub fn generate() -> Result<ClientKey, CertError> {
        Ok(ClientKey(KeyPair::generate()?))
    }

    pub fn private_pem(&self) -> String {
        self.0.serialize_pem()
    }

    pub fn public_pem(&self) -> String {
        self.0.public_key_pem()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::certs::certificate;
    use crate::authn::tls::{ClientCertificates, Refused};
    use crate::authn::{AUTHENTICATED, Identity, certs};

    const NOW: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn request(user: &str, groups: &[&str], lifetime_s: u64) -> CertificateRequest {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        CertificateRequest { user: user.to_owned(), groups, lifetime: Duration::from_secs(lifetime_s) }
    }

    #[test]
    fn a_certificate_identifies_its_user_and_groups_until_it_expires() {
        let identity = Identity::make(&[], at(NOW)).unwrap();
        let key = ClientKey::generate().unwrap();
        let pem = request("jane", &["dev", "ops"], 3600).sign(&identity.ca, &key.public_pem(), at(NOW)).unwrap();
        let der = certificate(&pem).unwrap();
        let clients = || ClientCertificates::new(&identity.ca.certificate_pem).unwrap();
        let user = clients().user(&der, at(NOW + 3599)).unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups),
            ("jane", ["dev", "ops", AUTHENTICATED].map(str::to_owned).to_vec())
        );
        assert_eq!(clients().user(&der, at(NOW + 3601)), Err(Refused::Expired));
        assert!(certs::is_signed_by(&identity.ca.certificate_pem, &pem));
        let other = Identity::make(&[], at(NOW)).unwrap();
        assert!(!certs::is_signed_by(&other.ca.certificate_pem, &pem));
        let error = request("jane", &[], 3600).sign(&identity.ca, "rubbish", at(NOW)).unwrap_err().to_string();
        assert!(error.starts_with("cannot make a certificate: "), "{error}");
    }

    #[test]
    fn bad_requests_are_refused_in_one_sentence() {
        let long = "x".repeat(254);
        let cases = [
            (request("", &[], 3600), "the name of a user is empty"),
            (request("jane", &[""], 3600), "the name of a group is empty"),
            (request(&long, &[], 3600), "the name of a user is longer than 253 bytes"),
            (request("ja\nne", &[], 3600), "the user \"ja\\nne\" has control characters, or spaces at an end"),
            (request("jane", &["dev "], 3600), "the group \"dev \" has control characters, or spaces at an end"),
            (request("jane", &["dev"; 65], 3600), "65 groups are more than 64"),
            (request("jane", &[], 599), "the lifetime of a client certificate is at least 10m"),
            (request("jane", &[], 365 * 24 * 3600 + 1), "the lifetime of a client certificate is at least 10m"),
        ];
        for (request, wanted) in cases {
            let error = request.validate().unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
        request("jane", &["dev"; 64], 365 * 24 * 3600).validate().unwrap();
        request("jane", &[], 600).validate().unwrap();
        assert_eq!(request("jane", &["dev", "system:masters"], 600).system_name(), Some("system:masters"));
        assert_eq!(request("system:node:a", &[], 600).system_name(), Some("system:node:a"));
        assert_eq!(request("jane", &["a:system:b"], 600).system_name(), None);
    }
}
