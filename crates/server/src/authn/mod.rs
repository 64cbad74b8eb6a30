//! Who is asking: client certificates, tokens, and the certificates and keys behind them.

pub mod cache;
pub mod certs;
mod der;
pub mod files;
mod kubeconfig;
pub mod tls;

pub use certs::{CertError, Identity, Pair, serving_names};
pub use kubeconfig::kubeconfig;
pub use tls::{ClientCertificates, server_config, user_from_certificate};

/// The group of everyone who proved an identity.
pub const AUTHENTICATED: &str = "system:authenticated";
