//! The annotation that marks an in-tree plugin's volumes and claims as migrated to a CSI driver.

use super::Plugins;
use crate::bind::{PROVISIONED_BY, STORAGE_PROVISIONERS, annotation};
use object::{Value, json};

/// Annotation: the CSI driver that a volume or claim of an in-tree plugin was migrated to.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// The annotations to patch on a volume that a plugin provisioned.
pub fn of_volume(volume: &Value, plugins: &Plugins) -> Option<Value> {
    annotations(volume, annotation(volume, PROVISIONED_BY), plugins)
}

/// The annotations to patch on a claim that names a plugin.
pub fn of_claim(claim: &Value, plugins: &Plugins) -> Option<Value> {
    let asked = STORAGE_PROVISIONERS.iter().map(|key| annotation(claim, key)).find(|asked| !asked.is_empty());
    annotations(claim, asked.unwrap_or(""), plugins)
}

fn annotations(object: &Value, plugin: &str, plugins: &Plugins) -> Option<Value> {
    if plugin.is_empty() {
        return None;
    }
    let now = annotation(object, MIGRATED_TO);
    match plugins.driver_of(plugin) {
        Some(driver) if now != driver => Some(json!({MIGRATED_TO: driver})),
        None if !now.is_empty() => Some(json!({MIGRATED_TO: null})),
        _ => None,
    }
}
