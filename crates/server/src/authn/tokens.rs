//! ServiceAccount tokens: JSON Web Tokens signed with ES256, valid while the account and the bound objects exist.

use super::cache::Cache;
use super::certs::{CertError, private_key};
use super::static_tokens::{TokenDigest, digest};
use super::{AUTHENTICATED, service_account_groups, service_account_name};
use crate::attributes::User;
use crate::authz::quoted;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use object::{Status, Value, json};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::Store;

/// The default issuer, as in clusters made by kubeadm.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Tolerated clock difference between servers of one store, as upstream.
const LEEWAY_S: i64 = 60;
/// A terminating account or pod is still valid for this long, so that its last requests succeed.
const DELETION_LEEWAY_S: i64 = 60;
/// Half of the number of cached tokens, and of cached accounts and pods.
const REMEMBERED_HALF: usize = 4096;
/// All tokens of this server are much shorter.
const TOKEN_MAX_BYTES: usize = 64 * 1024;

/// The claims of a token, in the order in which they are encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub bound: Bound,
    pub nbf: i64,
    pub sub: String,
}

/// The account of a token, and the objects that it is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub namespace: String,
    /// With a pod: its node, as information. Without a pod: the node that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Why a token is refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid bearer token")]
    Invalid,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("token audiences {} is invalid for the target audiences {}", quoted(.0), quoted(.1))]
    Audience(Vec<String>, Vec<String>),
    #[error("{0}")]
    Gone(String),
    #[error("{0}")]
    Internal(Status),
}

/// Signs and verifies ServiceAccount tokens.
pub struct ServiceAccountTokens {
    signer: Signer,
    issuer: String,
    /// The audiences of this API server.
    audiences: Vec<String>,
    store: Arc<dyn Store>,
    verified: Cache<TokenDigest, Arc<Claims>>,
    facts: Cache<String, Fact>,
}

impl ServiceAccountTokens {
    pub fn new(
        key_pem: &str,
        issuer: &str,
        audiences: &[String],
        store: Arc<dyn Store>,
    ) -> Result<ServiceAccountTokens, CertError> {
        let audiences = if audiences.is_empty() { vec![issuer.to_owned()] } else { audiences.to_vec() };
        Ok(ServiceAccountTokens {
            signer: Signer::new(key_pem)?,
            issuer: issuer.to_owned(),
            audiences,
            store,
            verified: Cache::new(REMEMBERED_HALF),
            facts: Cache::new(REMEMBERED_HALF),
        })
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The audiences of this API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, Status> {
        self.signer.sign(claims)
    }

    /// The user of a token for one of `audiences`, and those audiences that it is valid for.
    pub fn verify(&self, token: &str, audiences: &[String], now: Timestamp) -> Result<(User, Vec<String>), TokenError> {
        let claims = self.claims(token)?;
        let now_s = now.as_second();
        if claims.iss != self.issuer {
            return Err(TokenError::Invalid);
        }
        if now_s < claims.nbf.saturating_sub(LEEWAY_S) {
            return Err(TokenError::NotYet);
        }
        if now_s > claims.exp.saturating_add(LEEWAY_S) {
            return Err(TokenError::Expired);
        }
        let shared: Vec<String> = audiences.iter().filter(|audience| claims.aud.contains(audience)).cloned().collect();
        if shared.is_empty() {
            return Err(TokenError::Audience(claims.aud.clone(), audiences.to_vec()));
        }
        self.check_existence(&claims.bound, now_s)?;
        Ok((user(&claims), shared))
    }

    /// The claims of a token that this server signed. They are not checked yet.
    fn claims(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let digest = digest(token);
        if let Some(claims) = self.verified.get(&digest) {
            return Ok(claims);
        }
        let claims = Arc::new(self.signer.verify(token).ok_or(TokenError::Invalid)?);
        self.verified.insert(digest, claims.clone());
        Ok(claims)
    }

    /// The account and the bound objects must exist with the same uids.
    fn check_existence(&self, bound: &Bound, now_s: i64) -> Result<(), TokenError> {
        let ns = &bound.namespace;
        let account = &bound.serviceaccount;
        self.check(&format!("/core/serviceaccounts/{ns}/{}", account.name), account, now_s, "service account")?;
        if let Some(secret) = &bound.secret {
            self.check(&format!("/core/secrets/{ns}/{}", secret.name), secret, now_s, "secret")?;
        }
        match (&bound.pod, &bound.node) {
            (Some(pod), _) => self.check(&format!("/core/pods/{ns}/{}", pod.name), pod, now_s, "pod"),
            (None, Some(node)) => self.check(&format!("/core/nodes/{}", node.name), node, now_s, "node"),
            (None, None) => Ok(()),
        }
    }

    fn check(&self, key: &str, wanted: &Reference, now_s: i64, what: &str) -> Result<(), TokenError> {
        let name = &wanted.name;
        let Some(fact) = self.fact(key)? else {
            return Err(TokenError::Gone(format!("{what} {name:?} not found")));
        };
        if fact.uid.as_ref() != wanted.uid {
            let text = format!("{what} UID ({}) does not match claim ({})", fact.uid, wanted.uid);
            return Err(TokenError::Gone(text));
        }
        if fact.deleted_s.is_some_and(|deleted_s| deleted_s.saturating_add(DELETION_LEEWAY_S) < now_s) {
            return Err(TokenError::Gone(format!("{what} {name:?} has been deleted")));
        }
        Ok(())
    }

    /// The relevant fields of a stored object, parsed once per version.
    fn fact(&self, key: &str) -> Result<Option<Fact>, TokenError> {
        let Some(record) = self.store.get(key) else { return Ok(None) };
        if let Some(fact) = self.facts.get(key)
            && fact.modified == record.modified
        {
            return Ok(Some(fact));
        }
        let parsed: Stored = serde_json::from_slice(&record.value).map_err(|error| {
            TokenError::Internal(Status::internal(format!("stored object {key} is unreadable: {error}")))
        })?;
        let fact = Fact {
            modified: record.modified,
            uid: parsed.metadata.uid.into(),
            deleted_s: parsed.metadata.deletion_timestamp.map(Timestamp::as_second),
        };
        self.facts.insert(key.to_owned(), fact.clone());
        Ok(Some(fact))
    }

    /// `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        let (x, y) = self.signer.public_point();
        json!({"keys": [{
            "use": "sig",
            "kty": "EC",
            "kid": self.signer.key_id,
            "crv": "P-256",
            "alg": "ES256",
            "x": BASE64.encode(x),
            "y": BASE64.encode(y),
        }]})
    }

    /// `/.well-known/openid-configuration`. `server_url` is the URL at which clients reach this server.
    pub fn openid_configuration(&self, server_url: &str) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("{}/openid/v1/jwks", server_url.trim_end_matches('/')),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }
}

#[derive(Clone)]
struct Fact {
    modified: store::Revision,
    uid: Arc<str>,
    deleted_s: Option<i64>,
}

#[derive(Deserialize)]
struct Stored {
    metadata: StoredMetadata,
}

#[derive(Deserialize)]
struct StoredMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default, rename = "deletionTimestamp", deserialize_with = "timestamp")]
    deletion_timestamp: Option<Timestamp>,
}

fn timestamp<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

fn user(claims: &Claims) -> User {
    let bound = &claims.bound;
    let mut user = User {
        name: service_account_name(&bound.namespace, &bound.serviceaccount.name),
        uid: bound.serviceaccount.uid.clone(),
        groups: service_account_groups(&bound.namespace),
        ..User::default()
    };
    user.groups.push(AUTHENTICATED.to_owned());
    let mut add = |key: &str, value: String| {
        user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
    };
    if !claims.jti.is_empty() {
        add("credential-id", format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &bound.pod {
        add("pod-name", pod.name.clone());
        add("pod-uid", pod.uid.clone());
    }
    if let Some(node) = &bound.node {
        add("node-name", node.name.clone());
        if !node.uid.is_empty() {
            add("node-uid", node.uid.clone());
        }
    }
    user
}

/// The signing key.
struct Signer {
    key: EcdsaKeyPair,
    key_id: String,
    random: SystemRandom,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

impl Signer {
    fn new(key_pem: &str) -> Result<Signer, CertError> {
        let random = SystemRandom::new();
        let der = private_key(key_pem)?;
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_der(), &random).map_err(|error| {
                CertError::Unreadable(format!("the token signing key is not an ECDSA P-256 key: {error}"))
            })?;
        let key_id = BASE64.encode(ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref()));
        Ok(Signer { key, key_id, random })
    }

    fn sign(&self, claims: &Claims) -> Result<String, Status> {
        let header = Header { alg: "ES256".to_owned(), kid: self.key_id.clone() };
        let encode = |json: serde_json::Result<Vec<u8>>| json.map(|json| BASE64.encode(json)).map_err(Status::internal);
        let signed = format!("{}.{}", encode(serde_json::to_vec(&header))?, encode(serde_json::to_vec(claims))?);
        let signature = self
            .key
            .sign(&self.random, signed.as_bytes())
            .map_err(|_| Status::internal("the operating system provided no random numbers to sign a token"))?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }

    /// The claims, if this server signed the token.
    fn verify(&self, token: &str) -> Option<Claims> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header.alg != "ES256" || header.kid != self.key_id {
            return None;
        }
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key());
        key.verify(signed.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }

    /// The coordinates of the public key, which is stored as a tag byte and 32 bytes for each.
    fn public_point(&self) -> (&[u8], &[u8]) {
        let point = self.key.public_key().as_ref().get(1..).unwrap_or_default();
        point.split_at(point.len() / 2)
    }
}
