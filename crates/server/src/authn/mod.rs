//! Authentication: client certificates, tokens, and the server's certificates and keys.

mod cache;
pub mod certs;
mod client_certificate;
mod der;
pub mod files;
pub mod identity_store;
mod impersonation;
mod kubeconfig;
mod serving;
pub mod static_tokens;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;
pub mod token_request;
#[cfg(test)]
mod token_tests;
pub mod tokens;

use crate::attributes::User;
use crate::env::Env;
use http::{HeaderMap, header};
use object::Status;

pub use certs::{CertError, Identity, Pair, serving_names};
pub use client_certificate::{CertificateRequest, ClientKey};
pub use impersonation::impersonate;
pub use kubeconfig::kubeconfig;
pub use static_tokens::StaticTokens;
pub use tls::{ClientCertificates, server_config, user_from_certificate};
pub use tokens::{ServiceAccountTokens, TokenError};

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The user name of a ServiceAccount.
pub fn service_account_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of a namespace's ServiceAccounts, besides [`AUTHENTICATED`].
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// The user of a ServiceAccount.
pub fn service_account_user(namespace: &str, name: &str) -> User {
    let mut groups = service_account_groups(namespace);
    groups.push(AUTHENTICATED.to_owned());
    User { name: service_account_name(namespace, name), groups, ..User::default() }
}

/// Authenticates requests.
pub struct Authenticator {
    pub certificates: ClientCertificates,
    pub static_tokens: StaticTokens,
    pub tokens: ServiceAccountTokens,
    pub env: Env,
}

impl Authenticator {
    /// The user of a certificate or token, or anonymous without either. An invalid credential gives 401, unless the
    /// other one is valid.
    pub fn authenticate(&self, headers: &HeaderMap, peer_certificate: Option<&[u8]>) -> Result<User, Status> {
        let mut refusals = Vec::new();
        if let Some(der) = peer_certificate {
            match self.certificates.user(der, self.env.clock.now()) {
                Ok(user) => return Ok(user),
                Err(refused) => refusals.push(refused.to_string()),
            }
        }
        if let Some(token) = bearer_token(headers) {
            match self.authenticate_token(token, self.tokens.audiences()) {
                Ok((user, _)) => return Ok(user),
                Err(TokenError::Internal(status)) => return Err(status),
                Err(refused) => refusals.push(refused.to_string()),
            }
        }
        if refusals.is_empty() {
            return Ok(User::anonymous());
        }
        // Clients do not learn the reason; the log has it for operators.
        tracing::debug!(reasons = ?refusals, "unauthenticated request");
        Err(Status::unauthorized())
    }

    /// The user of a token for one of `audiences`, and those audiences that it is valid for.
    pub fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), TokenError> {
        if let Some(user) = self.static_tokens.user(&static_tokens::digest(token)) {
            // A static token is valid only for this server.
            let own = self.tokens.audiences();
            let shared: Vec<String> = audiences.iter().filter(|audience| own.contains(audience)).cloned().collect();
            if shared.is_empty() {
                return Err(TokenError::Audience(own.to_vec(), audiences.to_vec()));
            }
            return Ok((user.clone(), shared));
        }
        self.tokens.verify(token, audiences, self.env.clock.now())
    }
}

/// The token of an `Authorization: Bearer` header. Other schemes are ignored.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?;
    let (scheme, token) = std::str::from_utf8(value.as_bytes()).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
