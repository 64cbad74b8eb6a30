//! Who is asking: client certificates, tokens, and the certificates and keys behind them.

mod cache;
pub mod certs;
mod client_certificate;
mod der;
pub mod files;
mod impersonation;
pub mod kept;
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

/// The group of everyone who proved an identity.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The user name of a ServiceAccount.
pub fn service_account_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of a namespace's ServiceAccounts, besides [`AUTHENTICATED`].
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// The user that a ServiceAccount acts as.
pub fn service_account_user(namespace: &str, name: &str) -> User {
    let mut groups = service_account_groups(namespace);
    groups.push(AUTHENTICATED.to_owned());
    User { name: service_account_name(namespace, name), groups, ..User::default() }
}

/// Tells who sent a request.
pub struct Authenticator {
    pub certificates: ClientCertificates,
    pub static_tokens: StaticTokens,
    pub tokens: ServiceAccountTokens,
    pub env: Env,
}

impl Authenticator {
    /// The caller, by certificate or by token; anonymous without either. A bad one of either is 401, unless the other is good.
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
        // The caller learns only that it failed; whoever runs the server may want to know why.
        tracing::debug!(reasons = ?refusals, "unauthenticated request");
        Err(Status::unauthorized())
    }

    /// The user of a token meant for one of `audiences`, and those of them that it is meant for.
    pub fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), TokenError> {
        if let Some(user) = self.static_tokens.user(&static_tokens::digest(token)) {
            // A static token is meant for this server and nobody else.
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

/// The token of an `Authorization: Bearer` header. Other schemes are not ours, and so no attempt to log in.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?;
    let (scheme, token) = std::str::from_utf8(value.as_bytes()).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
