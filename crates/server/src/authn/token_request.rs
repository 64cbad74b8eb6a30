//! `POST serviceaccounts/NAME/token`: issues a token.

use super::tokens::{Bound, Claims, Reference, ServiceAccountTokens};
use crate::env::Env;
use crate::object_store::Reader;
use jiff::{SignedDuration, Timestamp};
use object::access::{self, Access};
use object::{Errors, Path, Status, Value, json};

const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 10 * 60;
const MAX_SECONDS: i64 = 1 << 32;
/// The last second that a timestamp can have.
const END_OF_TIME_S: i64 = 253_402_207_200;

/// Completes a TokenRequest for the account `namespace/name` with defaults and `status`.
pub fn answer(
    tokens: &ServiceAccountTokens,
    reader: &Reader,
    env: &Env,
    namespace: &str,
    name: &str,
    mut request: Value,
) -> Result<Value, Status> {
    let Some((account, _)) = reader.get(&format!("/core/serviceaccounts/{namespace}/{name}"))? else {
        return Err(Status::not_found("", "serviceaccounts", name));
    };
    let now = env.clock.now();
    complete_metadata(&mut request, namespace, name, now)?;
    request.default_to(&["spec", "expirationSeconds"], DEFAULT_SECONDS);
    if request.items(&["spec", "audiences"]).is_empty() {
        request.put(&["spec", "audiences"], json!(tokens.audiences()));
    }
    let seconds = validate(&request)?;
    let mut bound = Bound {
        namespace: namespace.to_owned(),
        serviceaccount: Reference { name: name.to_owned(), uid: access::uid(&account).to_owned() },
        ..Bound::default()
    };
    if let Some(reference) = request.at(&["spec", "boundObjectRef"]) {
        bind(&mut bound, reference, reader)?;
    }
    let now_s = now.as_second();
    let exp = now_s.saturating_add(seconds).min(END_OF_TIME_S);
    let claims = Claims {
        aud: texts(&request, &["spec", "audiences"]),
        exp,
        iat: now_s,
        iss: tokens.issuer().to_owned(),
        jti: env.ids.uid(),
        sub: super::service_account_name(namespace, name),
        bound,
        nbf: now_s,
    };
    let until = Timestamp::from_second(exp).map_err(Status::internal)?;
    let status = json!({"token": tokens.sign(&claims)?, "expirationTimestamp": until.to_string()});
    request.put(&["status"], status);
    Ok(request)
}

fn complete_metadata(request: &mut Value, namespace: &str, name: &str, now: Timestamp) -> Result<(), Status> {
    let given = access::name(request);
    if !given.is_empty() && given != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let given = access::namespace(request);
    if !given.is_empty() && given != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    request.put(&["apiVersion"], "authentication.k8s.io/v1");
    request.put(&["kind"], "TokenRequest");
    request.put(&["metadata", "name"], name);
    request.put(&["metadata", "namespace"], namespace);
    let second = now.round(jiff::Unit::Second).unwrap_or(now);
    let second = if second > now { second - SignedDuration::from_secs(1) } else { second };
    request.put(&["metadata", "creationTimestamp"], second.to_string());
    Ok(())
}

/// Validates the spec. Returns the token's lifetime in seconds.
fn validate(request: &Value) -> Result<i64, Status> {
    let mut errors = Errors::default();
    let path = Path::new("spec").child("expirationSeconds");
    let seconds = request.int(&["spec", "expirationSeconds"]).unwrap_or(0);
    if seconds < MIN_SECONDS {
        errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_SECONDS {
        errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
    }
    if errors.0.is_empty() {
        Ok(seconds)
    } else {
        Err(Status::invalid("authentication.k8s.io", "TokenRequest", "", &errors))
    }
}

/// Adds the object that the token is bound to, to the claims.
fn bind(bound: &mut Bound, reference: &Value, reader: &Reader) -> Result<(), Status> {
    let (api_version, kind) = (reference.text(&["apiVersion"]), reference.text(&["kind"]));
    let name = reference.text(&["name"]);
    let ns = bound.namespace.clone();
    let (plural, key) = match (api_version, kind) {
        ("v1", "Pod") => ("pods", format!("/core/pods/{ns}/{name}")),
        ("v1", "Secret") => ("secrets", format!("/core/secrets/{ns}/{name}")),
        ("v1", "Node") => ("nodes", format!("/core/nodes/{name}")),
        _ => {
            let gv = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
            return Err(Status::bad_request(format!("cannot bind token to object of type {gv}, Kind={kind}")));
        }
    };
    let Some((target, _)) = reader.get(&key)? else {
        return Err(Status::not_found("", plural, name));
    };
    let asked = reference.text(&["uid"]);
    let uid = access::uid(&target);
    if !asked.is_empty() && asked != uid {
        let why = format!(
            "the UID in the bound object reference ({asked}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        );
        return Err(Status::conflict("", kind, name, why));
    }
    let found = Some(Reference { name: name.to_owned(), uid: uid.to_owned() });
    match kind {
        "Pod" => {
            let account = &bound.serviceaccount.name;
            if target.text(&["spec", "serviceAccountName"]) != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            bound.pod = found;
            bound.node = node_of(&target, reader)?;
        }
        "Secret" => bound.secret = found,
        _ => bound.node = found,
    }
    Ok(())
}

/// The pod's node, as information only, so a missing node is no error.
fn node_of(pod: &Value, reader: &Reader) -> Result<Option<Reference>, Status> {
    let name = pod.text(&["spec", "nodeName"]);
    if name.is_empty() {
        return Ok(None);
    }
    let node = reader.get(&format!("/core/nodes/{name}"))?;
    let uid = node.map(|(node, _)| access::uid(&node).to_owned()).unwrap_or_default();
    Ok(Some(Reference { name: name.to_owned(), uid }))
}

fn texts(object: &Value, path: &[&str]) -> Vec<String> {
    object.items(path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
