//! ResourceQuotas, exact under concurrency.
//!
//! Every write that changes the usage of a quota writes the new `status.used` in its own transaction, with the
//! condition that the quota is unchanged. So usage is never outdated, needs no controller, and two writes cannot both
//! take the last unit.
//!
//! A write may miss a quota that is being created or changed at the same time. For this each namespace has an
//! *epoch*: a key that every client's write to a quota changes, and that is a condition of every counted write. A
//! quota is *settled* if it was last written after the epoch, by a counted write or by [`repair`]. The first counted
//! write that finds an unsettled quota counts the namespace again. Nothing that it counts can change before it
//! commits, because such a change writes this quota too, or fails because of the epoch.

pub mod repair;
mod scope;
#[cfg(test)]
mod tests;
mod usage;

use super::{AtomicWrites, Verb, Write};
use crate::object_store::Reader;
use object::access::{Access, name};
use object::pod::amounts::Amounts;
use object::quantity::Quantity;
use object::{Status, Value, json};
use std::sync::Arc;
use store::{Operation, Record, Txn};
use usage::Countable;

const QUOTAS: &str = "/core/resourcequotas/";

/// Charges a creation or update, releases a removal, and counts usage for a new or changed quota.
pub fn charge(reader: &Reader, write: &mut Write<'_>, together: &mut AtomicWrites) -> Result<(), Status> {
    let removal = write.verb == Verb::Delete;
    if removal && write.concerns("", "namespaces") {
        let epoch = epoch_key(write.name);
        if reader.store.get(&epoch).is_some() {
            together.delete(&epoch);
        }
    }
    if !write.kind.namespaced || write.kind.storage == "core/events" {
        return Ok(());
    }
    let is_quota = write.concerns("", "resourcequotas");
    let countable = Countable { group: &write.kind.group, plural: &write.kind.plural };
    let before = write.old.filter(|_| write.verb != Verb::Create);
    let after = Some(&*write.object).filter(|_| !removal);
    if write.verb != Verb::Update || countable.changed(before, after) {
        let change = Change { write, countable, before, after };
        change.charge_all(reader, together)?;
    }
    if is_quota && !removal {
        if write.subresource.is_empty() {
            set_status(reader, write)?;
        }
        // A write without changes is not stored, so it must not add writes to the transaction.
        if write.old.is_none_or(|old| !is_same(write.object, old)) {
            together.put(&epoch_key(write.namespace), &json!({"metadata": {}}));
        }
    }
    Ok(())
}

fn is_same(new: &Value, old: &Value) -> bool {
    let without_version = |object: &Value| {
        let mut object = object.clone();
        object.cut(&["metadata", "resourceVersion"]);
        object
    };
    without_version(new) == without_version(old)
}

fn epoch_key(namespace: &str) -> String {
    format!("/mainstay/quota-epochs/{namespace}")
}

/// Sets the usage of a new or changed quota at once. The first counted write counts again, in case a write was missed
/// here.
fn set_status(reader: &Reader, write: &mut Write<'_>) -> Result<(), Status> {
    let same = |field: &str| write.old.and_then(|old| old.at(&["spec", field])) == write.object.at(&["spec", field]);
    if write.verb == Verb::Update && same("hard") && same("scopes") && same("scopeSelector") {
        return Ok(());
    }
    let mut used = usage::count(reader, write.namespace, write.object)?;
    if write.verb == Verb::Create {
        let countable = Countable { group: "", plural: "resourcequotas" };
        let own = charged(countable, write.object, Some(write.object));
        for (resource, amount) in own {
            let sum = used.get(&resource).map_or(amount, |used| used.plus(amount));
            used.insert(resource, sum);
        }
    }
    write_status(write.object, &used);
    Ok(())
}

fn write_status(quota: &mut Value, used: &Amounts) {
    let hard = quota.at(&["spec", "hard"]).cloned().unwrap_or_else(|| json!({}));
    let used: object::Map =
        used.iter().map(|(resource, amount)| (resource.clone(), json!(amount.to_string()))).collect();
    quota.put(&["status"], json!({"hard": hard, "used": used}));
}

/// What an object uses of a quota; empty if the quota does not apply to it.
fn charged(countable: Countable<'_>, quota: &Value, object: Option<&Value>) -> Amounts {
    let Some(object) = object.filter(|object| scope::matches(quota, countable, object)) else { return Amounts::new() };
    let mut usage = countable.usage(object);
    usage.retain(|resource, _| quota.has(&["spec", "hard", resource]));
    usage
}

struct Change<'a> {
    write: &'a Write<'a>,
    countable: Countable<'a>,
    before: Option<&'a Value>,
    after: Option<&'a Value>,
}

impl Change<'_> {
    fn charge_all(&self, reader: &Reader, together: &mut AtomicWrites) -> Result<(), Status> {
        let namespace = self.write.namespace;
        // Read the epoch first, so that the list contains the quota that changed it.
        let key = epoch_key(namespace);
        let epoch = reader.store.get(&key);
        together.require(&key, epoch.as_ref());
        let epoch = epoch.map_or(0, |record| record.modified);
        for (quota, record) in reader.list(&format!("{QUOTAS}{namespace}/"))? {
            if self.write.concerns("", "resourcequotas") && self.write.name == name(&quota) {
                continue;
            }
            self.charge_one(reader, quota, &record, record.modified > epoch, together)?;
        }
        Ok(())
    }

    fn charge_one(
        &self,
        reader: &Reader,
        mut quota: Value,
        record: &Arc<Record>,
        settled: bool,
        together: &mut AtomicWrites,
    ) -> Result<(), Status> {
        self.check_constraints(&quota)?;
        let delta = self.delta(&quota);
        if delta.is_empty() {
            return Ok(());
        }
        let mut used = if settled { stored_usage(&quota) } else { usage::count(reader, self.write.namespace, &quota)? };
        self.check_room(&quota, &used, &delta)?;
        for (resource, amount) in &delta {
            let sum = used.get(resource).map_or(*amount, |used| used.plus(*amount));
            used.insert(resource.clone(), if sum.is_negative() { Quantity::ZERO } else { sum });
        }
        write_status(&mut quota, &used);
        together.require(&record.key, Some(record));
        together.put(&record.key, &quota);
        Ok(())
    }

    /// The change of this quota's usage, without zeros.
    fn delta(&self, quota: &Value) -> Amounts {
        let mut delta = charged(self.countable, quota, self.after);
        for (resource, amount) in charged(self.countable, quota, self.before) {
            let rest = delta.get(&resource).map_or(Quantity::ZERO, |after| *after).minus(amount);
            delta.insert(resource, rest);
        }
        delta.retain(|_, amount| !amount.is_zero());
        delta
    }

    /// Only writes to the object itself can be refused, because a status reports facts.
    fn is_refusable(&self) -> bool {
        self.write.subresource.is_empty() && self.write.verb != Verb::Delete
    }

    fn check_constraints(&self, quota: &Value) -> Result<(), Status> {
        let Some(object) = self.after.filter(|_| self.is_refusable() && self.before.is_none()) else { return Ok(()) };
        if !scope::matches(quota, self.countable, object) {
            return Ok(());
        }
        let missing = self.countable.unspecified(object, quota);
        if missing.is_empty() {
            return Ok(());
        }
        let parts: Vec<String> = missing
            .into_iter()
            .map(|(resource, containers)| {
                let containers: Vec<&str> = containers.into_iter().collect();
                format!("{resource} for: {}", containers.join(","))
            })
            .collect();
        Err(self.write.forbidden(format!("failed quota: {}: must specify {}", name(quota), parts.join("; "))))
    }

    fn check_room(&self, quota: &Value, used: &Amounts, delta: &Amounts) -> Result<(), Status> {
        if !self.is_refusable() {
            return Ok(());
        }
        let limit = |resource: &str| quota.at(&["spec", "hard", resource]).and_then(Quantity::of);
        let used = |resource: &str| used.get(resource).copied().unwrap_or(Quantity::ZERO);
        let exceeded: Vec<&String> = delta
            .iter()
            .filter(|(_, amount)| amount.is_positive())
            .filter(|(resource, amount)| limit(resource).is_some_and(|limit| used(resource).plus(**amount) > limit))
            .map(|(resource, _)| resource)
            .collect();
        if exceeded.is_empty() {
            return Ok(());
        }
        let list = |amount: &dyn Fn(&str) -> Quantity| {
            let parts: Vec<String> =
                exceeded.iter().map(|resource| format!("{resource}={}", amount(resource.as_str()))).collect();
            parts.join(",")
        };
        Err(self.write.forbidden(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            name(quota),
            list(&|resource| delta[resource]),
            list(&used),
            list(&|resource| limit(resource).unwrap_or(Quantity::ZERO)),
        )))
    }
}

/// The transaction of a deletion without its quota updates, for a store without space for new data. The usage is then
/// too high until it is counted again. `None` if there are no quota updates or if there are other writes.
pub fn deletion_without_usage(txn: &Txn) -> Option<Txn> {
    let is_usage = |operation: &Operation| matches!(operation, Operation::Put { key, .. } if key.starts_with(QUOTAS));
    let operations: Vec<_> = txn.operations.iter().filter(|operation| !is_usage(operation)).cloned().collect();
    let only_deletes = operations.iter().all(|operation| matches!(operation, Operation::Delete { .. }));
    let is_useful = only_deletes && !operations.is_empty() && operations.len() < txn.operations.len();
    is_useful.then(|| Txn { conditions: txn.conditions.clone(), operations })
}

fn stored_usage(quota: &Value) -> Amounts {
    let hard = quota.members(&["spec", "hard"]).keys();
    let used = |resource: &str| quota.at(&["status", "used", resource]).and_then(Quantity::of);
    hard.map(|resource| (resource.to_string(), used(resource).unwrap_or(Quantity::ZERO))).collect()
}
