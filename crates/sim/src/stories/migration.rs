//! KEP-2644 for volumes of in-tree plugins that were migrated to CSI drivers.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, VOLUME, claim, object_ref};
use object::access::{Access, name};
use object::{Value, json};
use plan::invariant::Checker;
use plan::reclaim::{FINALIZER, migration::MIGRATED_TO};
use std::collections::BTreeSet;
use std::time::Duration;

/// A migrated plugin, and its CSI driver.
const PLUGIN: &str = "kubernetes.io/cinder";
const DRIVER: &str = "cinder.csi.openstack.org";

impl Operator {
    /// Creates the objects that an older cluster left: a backend volume, and a bound PV of the in-tree plugin with
    /// the plugin's finalizer.
    async fn migrated_volume(&self, named: &str) -> Result<Value, String> {
        let before = format!("{named}-before");
        self.create(claim(&before, "old")).await;
        let made = self.volume_of(&before).await?;
        let handle = self.handle(&made);
        self.delete(&object_ref(CLAIM, &before), "").await;
        self.until_gone(&object_ref(CLAIM, &before)).await?;
        self.delete(&made, "").await;
        self.until_gone_for_good(&made).await?;
        // A PV that a late request created again must not name the backend volume either.
        let is_free = |checker: &Checker| checker.get(VOLUME, "", name(&made)).is_none();
        self.until("no PV names the backend volume", is_free).await?;
        let annotations = json!({"pv.kubernetes.io/provisioned-by": PLUGIN});
        self.create(json!({
            "apiVersion": "v1", "kind": VOLUME,
            "metadata": {"name": named, "annotations": annotations, "finalizers": [FINALIZER]},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "old",
                "persistentVolumeReclaimPolicy": "Delete", "cinder": {"volumeID": handle},
                "claimRef": {"namespace": NAMESPACE, "name": named},
            },
        }))
        .await;
        let mut second = claim(named, "old");
        second["spec"]["volumeName"] = json!(named);
        self.create(second).await;
        self.volume_of(named).await
    }
}

/// H4: the CSI driver replaces the plugin's finalizer by its own, and deletes the volume by its policy in any order
/// of deletion. (Migration back to a plugin is not supported here.)
pub async fn migrated(me: Operator) -> StoryResult {
    me.world.driver.rename(DRIVER);
    me.world.kill_driver();
    me.world.kill_controllers();
    me.pause(Duration::from_secs(3)).await;
    me.create(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "old"},
        "provisioner": DRIVER, "reclaimPolicy": "Retain",
    }))
    .await;
    let mut left = BTreeSet::new();
    let orders: [&[&str]; 4] =
        [&["claim"], &["volume", "claim"], &["edit", "volume", "claim"], &["volume", "edit", "claim"]];
    for (at, order) in orders.into_iter().enumerate() {
        let named = format!("inherited-{at}");
        let volume = me.migrated_volume(&named).await?;
        me.until_finalizer_removed(&volume, FINALIZER).await?;
        me.until_finalizer(&volume, plan::csi::FINALIZER).await?;
        me.until("the provisioner has recorded the claim", |checker| {
            let found = checker.get(VOLUME, "", name(&volume));
            found.is_some_and(|volume| plan::csi::reclaim::is_recorded(volume))
        })
        .await?;
        let to = me.world.checker().get(VOLUME, "", name(&volume)).cloned().unwrap_or_default();
        me.expect("the PV names the driver", to.text(&["metadata", "annotations", MIGRATED_TO]) == DRIVER)?;
        if order.contains(&"edit") {
            left.insert(me.handle(&volume));
        }
        for step in order {
            match *step {
                "claim" => drop(me.delete(&object_ref(CLAIM, &named), "").await),
                "volume" => drop(me.delete(&volume, "").await),
                _ => drop(me.patch(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await),
            }
        }
        me.until_gone(&object_ref(CLAIM, &named)).await?;
        me.until_gone_for_good(&volume).await?;
    }
    me.until_handles(&left).await
}
