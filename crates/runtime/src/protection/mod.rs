//! The protection controllers: what is in use stays until it is not.

mod claims;
mod classes;
mod volumes;

pub use claims::run as run_claims;
pub use classes::run as run_classes;
pub use volumes::run as run_volumes;

use crate::api::{Api, ApiError};
use crate::cache::{Cache, Key, pick};
use object::access::{Access, terminating, uid};
use object::{Value, json};

/// Sends the patch of an object, and notes the answer. What loses its last finalizer is gone, and so is what was not found.
async fn patch(api: &Api, path: &str, wanted: &Value, cache: &Cache, key: &Key) -> Result<(), ApiError> {
    match api.merge_if_there(path, wanted).await? {
        Some(answer) if !terminating(&answer) => cache.wrote(answer),
        answer => cache.deleted(key, uid(wanted), answer.unwrap_or_default()),
    }
    Ok(())
}

/// What is read of an object's metadata: who it is, in which version, and what holds it.
fn trimmed_metadata(object: &mut Value) -> Value {
    let fields = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "finalizers",
        "ownerReferences",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    pick(object, &["metadata"], &fields)
}

fn trim_volume(volume: &mut Value) {
    let class = volume.cut(&["spec", "volumeAttributesClassName"]);
    *volume = json!({
        "metadata": trimmed_metadata(volume),
        "spec": {"volumeAttributesClassName": class},
        "status": {"phase": volume.cut(&["status", "phase"])},
    });
}

fn trim_claim(claim: &mut Value) {
    let class = claim.cut(&["spec", "volumeAttributesClassName"]);
    let fields = ["phase", "conditions", "currentVolumeAttributesClassName", "modifyVolumeStatus"];
    let status = fields.into_iter().filter_map(|field| Some((field.to_owned(), claim.cut(&["status", field])?)));
    let status = Value::Object(status.collect());
    *claim = json!({
        "metadata": trimmed_metadata(claim),
        "spec": {"volumeAttributesClassName": class},
        "status": status,
    });
}
