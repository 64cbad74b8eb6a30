//! TLS, and the user of a client certificate.
//!
//! The handshake accepts any client certificate whose key the client has; each request then checks the certificate.
//! So an untrusted or expired certificate gets a 401 with a reason, as upstream, instead of a closed connection. A
//! certificate that expires during its connection or resumed session is refused from then on, and a valid token
//! counts next to an invalid certificate.

use super::cache::Cache;
use super::certs::{CertError, Identity, certificate};
use super::serving::Serving;
use crate::attributes::User;
use crate::env::Clock;
use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// TLS 1.2 and 1.3 with HTTP/2 and HTTP/1.1, session tickets, and optional client certificates. The serving
/// certificate is renewed in time, by `clock`.
pub fn server_config(identity: &Identity, clock: Arc<dyn Clock>) -> Result<Arc<ServerConfig>, CertError> {
    let failed = |error: rustls::Error| CertError::Tls(error.to_string());
    let serving = Arc::new(Serving::new(identity, clock)?);
    let verifier = Arc::new(PossessionOnly { believed: verifier(&identity.ca.certificate_pem)? });
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(failed)?;
    Ok(Arc::new(config))
}

/// Why a client certificate is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the client certificate has expired or is not yet valid")]
    Expired,
    #[error("the client certificate was not issued for this server's clients: {0}")]
    Untrusted(String),
    #[error("the client certificate names no user")]
    Nameless,
    #[error("the client certificate is unreadable: {0}")]
    Unreadable(String),
}

/// Verifies certificates that this server's CA issued to clients.
pub struct ClientCertificates {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Verified certificates: checking a signature takes 0.1 ms, and a client sends the same certificate with every
    /// request.
    known: Cache<Vec<u8>, Known>,
}

#[derive(Clone)]
struct Known {
    user: User,
    not_before_s: i64,
    not_after_s: i64,
}

/// Half of the number of cached certificates.
const KNOWN_HALF: usize = 1024;

impl ClientCertificates {
    pub fn new(ca_pem: &str) -> Result<ClientCertificates, CertError> {
        Ok(ClientCertificates { verifier: verifier(ca_pem)?, known: Cache::new(KNOWN_HALF) })
    }

    /// The user of a certificate whose key the client has.
    pub fn user(&self, der: &[u8], now: Timestamp) -> Result<User, Refused> {
        if let Some(known) = self.known.get(der) {
            let valid = (known.not_before_s..=known.not_after_s).contains(&now.as_second());
            return if valid { Ok(known.user) } else { Err(Refused::Expired) };
        }
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().max(0).unsigned_abs()));
        self.verifier.verify_client_cert(&CertificateDer::from(der), &[], at).map_err(refused)?;
        let user = user_from_certificate(der)?;
        let (_, parsed) = parse(der)?;
        let known = Known {
            user: user.clone(),
            not_before_s: parsed.validity.not_before.timestamp(),
            not_after_s: parsed.validity.not_after.timestamp(),
        };
        self.known.insert(der.to_vec(), known);
        Ok(user)
    }
}

/// The user that a certificate names: its common name, with each organization as a group. Does not verify the
/// certificate.
pub fn user_from_certificate(der: &[u8]) -> Result<User, Refused> {
    let (_, parsed) = parse(der)?;
    let subject = parsed.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().map(str::to_owned).map_err(|error| Refused::Unreadable(error.to_string()))
    };
    let name = subject.iter_common_name().next().map(text).transpose()?.unwrap_or_default();
    if name.is_empty() {
        return Err(Refused::Nameless);
    }
    let mut groups = subject.iter_organization().map(text).collect::<Result<Vec<String>, Refused>>()?;
    if !groups.iter().any(|group| group == super::AUTHENTICATED) {
        groups.push(super::AUTHENTICATED.to_owned());
    }
    Ok(User { name, groups, ..User::default() })
}

fn parse(der: &[u8]) -> Result<(&[u8], X509Certificate<'_>), Refused> {
    X509Certificate::from_der(der).map_err(|error| Refused::Unreadable(error.to_string()))
}

fn refused(error: rustls::Error) -> Refused {
    use CertificateError as E;
    match error {
        rustls::Error::InvalidCertificate(
            E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. },
        ) => Refused::Expired,
        other => Refused::Untrusted(other.to_string()),
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn verifier(ca_pem: &str) -> Result<Arc<dyn ClientCertVerifier>, CertError> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(ca_pem)?).map_err(|error| CertError::Unreadable(error.to_string()))?;
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| CertError::Tls(error.to_string()))
}

/// Verifies only that the client has the key of its certificate; [`ClientCertificates`] verifies the certificate.
#[derive(Debug)]
struct PossessionOnly {
    believed: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for PossessionOnly {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.believed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.believed.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.believed.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.believed.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::certs::{Pair, private_key, serving_names};
    use crate::env::Env;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};

    const NOW: i64 = 1_800_000_000;
    const YEAR: i64 = 365 * 24 * 60 * 60;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// Uses the real time, because the test client checks certificates by the real clock.
    fn identity() -> (Identity, Timestamp) {
        let now = Timestamp::now();
        (Identity::make(&serving_names("127.0.0.1", &[]), now).unwrap(), now)
    }

    fn clock() -> Arc<dyn Clock> {
        Env::default().clock
    }

    fn client_config(identity: &Identity, pair: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&identity.ca.certificate_pem).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => builder
                .with_client_auth_cert(
                    vec![certificate(&pair.certificate_pem).unwrap()],
                    private_key(&pair.key_pem).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    /// Performs a handshake in memory. Returns both ends.
    fn connect(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> (ServerConnection, ClientConnection) {
        let mut server = ServerConnection::new(server.clone()).unwrap();
        let mut client = ClientConnection::new(client.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut moved = true;
        while moved {
            moved = false;
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            moved |= !wire.is_empty();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            moved |= !wire.is_empty();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        assert!(!server.is_handshaking() && !client.is_handshaking());
        (server, client)
    }

    fn peer(server: &ServerConnection) -> Option<Vec<u8>> {
        server.peer_certificates().map(|chain| chain[0].to_vec())
    }

    #[test]
    fn a_valid_certificate_names_its_holder() {
        let (identity, now) = identity();
        let groups = ["one".to_owned(), "two".to_owned(), "three".to_owned()];
        let jane = identity.issue_client("jane", &groups, now).unwrap();
        let config = server_config(&identity, clock()).unwrap();
        let (server, client) = connect(&config, &client_config(&identity, Some(&jane)));
        assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
        let known = ClientCertificates::new(&identity.ca.certificate_pem).unwrap();
        let der = peer(&server).unwrap();
        // The second result comes from the cache.
        for _ in 0..2 {
            let user = known.user(&der, now).unwrap();
            assert_eq!(user.name, "jane");
            assert_eq!(user.groups, ["one", "two", "three", "system:authenticated"]);
        }
        let (server, _) = connect(&config, &client_config(&identity, Some(&identity.admin)));
        let admin = known.user(&peer(&server).unwrap(), now).unwrap();
        assert_eq!(admin.name, "kubernetes-admin");
        assert_eq!(admin.groups, ["system:masters", "system:authenticated"]);
    }

    #[test]
    fn foreign_and_expired_certificates_connect_and_are_refused_by_name() {
        let (identity, now) = identity();
        let config = server_config(&identity, clock()).unwrap();
        let known = ClientCertificates::new(&identity.ca.certificate_pem).unwrap();

        let long_ago = at(now.as_second() - 2 * YEAR);
        let expired = identity.issue_client("jane", &[], long_ago).unwrap();
        let (server, _) = connect(&config, &client_config(&identity, Some(&expired)));
        assert_eq!(known.user(&peer(&server).unwrap(), now), Err(Refused::Expired));

        let foreign = Identity::make(&serving_names("", &[]), now).unwrap().admin;
        let (server, _) = connect(&config, &client_config(&identity, Some(&foreign)));
        assert!(matches!(known.user(&peer(&server).unwrap(), now), Err(Refused::Untrusted(_))));

        let (server, _) = connect(&config, &client_config(&identity, None));
        assert_eq!(peer(&server), None);
    }

    /// A running server whose certificate has expired or soon will renews it with the same names.
    #[test]
    fn a_serving_certificate_is_renewed_while_the_server_runs() {
        let names = serving_names("10.1.2.3", &["api.example".to_owned()]);
        for days in [400, 300, 200] {
            let begun = at(Timestamp::now().as_second() - days * 24 * 60 * 60);
            let identity = Identity::make(&names, begun).unwrap();
            let config = server_config(&identity, clock()).unwrap();
            // The handshake would fail with an expired certificate.
            let (_, client) = connect(&config, &client_config(&identity, None));
            let shown = client.peer_certificates().unwrap()[0].clone();
            let was_new = shown == certificate(&identity.serving.certificate_pem).unwrap();
            assert_eq!(was_new, days == 200, "{days} days");
            let (_, parsed) = X509Certificate::from_der(&shown).unwrap();
            let shown = parsed.subject_alternative_name().unwrap().unwrap().value.general_names.len();
            assert_eq!(shown, names.len(), "{days} days");
        }
    }

    #[test]
    fn a_remembered_certificate_still_expires_and_a_serving_one_is_no_client() {
        let identity = Identity::make(&serving_names("", &[]), at(NOW)).unwrap();
        let known = ClientCertificates::new(&identity.ca.certificate_pem).unwrap();
        let der = certificate(&identity.admin.certificate_pem).unwrap();
        assert!(known.user(&der, at(NOW)).is_ok());
        assert_eq!(known.user(&der, at(NOW + 2 * YEAR)), Err(Refused::Expired));
        assert_eq!(known.user(&der, at(NOW - YEAR)), Err(Refused::Expired));
        let serving = certificate(&identity.serving.certificate_pem).unwrap();
        assert!(matches!(known.user(&serving, at(NOW)), Err(Refused::Untrusted(_))));
        let ca = certificate(&identity.ca.certificate_pem).unwrap();
        assert!(known.user(&ca, at(NOW)).is_err());
        assert!(matches!(user_from_certificate(b"\x30\x03abc"), Err(Refused::Unreadable(_))));
        let nameless = identity.issue_client("", &["system:masters".to_owned()], at(NOW)).unwrap();
        let nameless = certificate(&nameless.certificate_pem).unwrap();
        assert_eq!(known.user(&nameless, at(NOW)), Err(Refused::Nameless));
    }

    #[test]
    fn sessions_resume_with_the_certificate_they_began_with() {
        let (identity, now) = identity();
        let config = server_config(&identity, clock()).unwrap();
        let client = client_config(&identity, Some(&identity.admin));
        let (first, _) = connect(&config, &client);
        assert_eq!(first.handshake_kind(), Some(rustls::HandshakeKind::Full));
        let (second, _) = connect(&config, &client);
        assert_eq!(second.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
        let known = ClientCertificates::new(&identity.ca.certificate_pem).unwrap();
        assert_eq!(known.user(&peer(&second).unwrap(), now).unwrap().name, "kubernetes-admin");
    }
}
