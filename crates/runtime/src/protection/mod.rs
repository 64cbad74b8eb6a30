//! The protection controllers: finalizers keep objects that are in use from being deleted.

mod claims;
mod classes;
mod volumes;

pub use claims::{DESCRIPTOR as CLAIMS_DESCRIPTOR, run as run_claims};
pub use classes::{DESCRIPTOR as CLASSES_DESCRIPTOR, run as run_classes};
pub use volumes::{DESCRIPTOR as VOLUMES_DESCRIPTOR, run as run_volumes};

use kit::api::{Api, ApiError};
use kit::cache::{Cache, Key};
use object::Value;
use object::access::{terminating, uid};

/// Sends the patch of an object and stores the response. A terminating object that lost its last finalizer is
/// removed, as is one that was not found.
async fn patch(api: &Api, path: &str, wanted: &Value, cache: &Cache, key: &Key) -> Result<(), ApiError> {
    match api.merge_if_there(path, wanted).await? {
        Some(answer) if !terminating(&answer) => cache.wrote(answer),
        answer => cache.deleted(key, uid(wanted), answer.unwrap_or_default()),
    }
    Ok(())
}
