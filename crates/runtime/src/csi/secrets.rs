//! Credentials for drivers, read when they are needed and kept nowhere.

use super::remote::Secrets;
use base64::Engine;
use kit::api::{Api, ApiError, Resource};
use object::Value;
use object::access::Access;
use plan::csi::SecretRef;

/// The content of a secret; `Ok(None)` when there is no such secret.
pub async fn read(api: &Api, reference: Option<&SecretRef>) -> Result<Option<Secrets>, ApiError> {
    let Some(SecretRef { namespace, name }) = reference else { return Ok(Some(Secrets::new())) };
    let secrets = Resource::new("v1", "Secret", "secrets", true);
    let Some(secret) = api.find(&secrets.object(namespace, name)).await? else { return Ok(None) };
    let decoded = secret.members(&["data"]).iter().map(|(key, value)| (key.to_string(), decode(value)));
    Ok(Some(decoded.collect()))
}

/// CSI's secrets are text; what is none is passed on as well as it can be.
fn decode(value: &Value) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or("")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a call cannot be made without its secret.
pub fn missing(SecretRef { namespace, name }: &SecretRef) -> String {
    format!("error getting secret {name} in namespace {namespace}: secrets \"{name}\" not found")
}
