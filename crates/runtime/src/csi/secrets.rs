//! Credentials for drivers. They are read for each call and never cached.

use super::remote::Secrets;
use base64::Engine;
use kit::api::{Api, ApiError, Resource};
use object::Value;
use object::access::Access;
use plan::csi::SecretRef;

/// The data of a Secret; `Ok(None)` if it does not exist.
pub async fn read(api: &Api, reference: Option<&SecretRef>) -> Result<Option<Secrets>, ApiError> {
    let Some(SecretRef { namespace, name }) = reference else { return Ok(Some(Secrets::new())) };
    let secrets = Resource::new("v1", "Secret", "secrets", true);
    let Some(secret) = api.find(&secrets.object(namespace, name)).await? else { return Ok(None) };
    let decoded = secret.members(&["data"]).iter().map(|(key, value)| (key.to_string(), decode(value)));
    Ok(Some(decoded.collect()))
}

/// CSI secrets are strings. Bytes that are not UTF-8 are replaced.
fn decode(value: &Value) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or("")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The error of a call whose Secret does not exist.
pub fn missing(SecretRef { namespace, name }: &SecretRef) -> String {
    format!("error getting secret {name} in namespace {namespace}: secrets \"{name}\" not found")
}
