//! Lease preconditions: writes that are valid only while a Lease is held. A write of a former leader is refused,
//! however late it arrives.
//!
//! The Lease becomes a condition of the write's transaction, so there is no gap between the check and the write.

use crate::attributes::{Attributes, User};
use crate::authz::Authorizer;
use crate::object_store::Reader;
use http::HeaderMap;
use object::Status;
use object::access::Access;
use store::{Condition, Txn};

/// `<namespace>/<name of the Lease> <leaseTransitions> <holderIdentity>`
pub const HEADER: &str = "mainstay-lease";
const GROUP: &str = "coordination.k8s.io";

/// The leader term that a write names.
#[derive(Debug, PartialEq, Eq)]
struct Term<'a> {
    namespace: &'a str,
    name: &'a str,
    number: i64,
    holder: &'a str,
}

/// Refuses a request that names a Lease which its user may neither read nor write. The response depends on the
/// Lease's holder, so otherwise a user could find out the holders of Leases in any namespace.
pub fn authorize(headers: &HeaderMap, user: &User, authz: &Authorizer) -> Result<(), Status> {
    // `bind` refuses a malformed value.
    let Some(term) = headers.get(HEADER).and_then(|value| value.to_str().ok()).and_then(read) else { return Ok(()) };
    let asked = |verb: &str| Attributes {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        resource: "leases".to_owned(),
        namespace: term.namespace.to_owned(),
        name: term.name.to_owned(),
        ..Attributes::default()
    };
    if authz.allows(user, &asked("update")) { Ok(()) } else { authz.check(user, &asked("get")) }
}

/// Adds the term that the request names, if any, to the conditions of the transaction.
pub fn bind(headers: &HeaderMap, reader: &Reader, txn: &mut Txn) -> Result<(), Status> {
    let Some(value) = headers.get(HEADER) else { return Ok(()) };
    let term = value.to_str().ok().and_then(read).ok_or_else(|| {
        Status::bad_request(format!("the header {HEADER} is not of the form namespace/lease number holder"))
    })?;
    let key = format!("/{GROUP}/leases/{}/{}", term.namespace, term.name);
    let held = reader.get(&key)?.filter(|(lease, _)| {
        lease.text(&["spec", "holderIdentity"]) == term.holder
            && lease.int(&["spec", "leaseTransitions"]).unwrap_or(0) == term.number
    });
    let Some((_, record)) = held else {
        let why = format!("term {} of {} is over, so this write of it does not count", term.number, term.holder);
        return Err(Status::conflict(GROUP, "leases", term.name, why));
    };
    txn.conditions.push(Condition { key: key.into(), modified: record.modified });
    Ok(())
}

fn read(text: &str) -> Option<Term<'_>> {
    let (lease, rest) = text.split_once(' ')?;
    let (namespace, name) = lease.split_once('/')?;
    let (number, holder) = rest.split_once(' ')?;
    let complete = !namespace.is_empty() && !name.is_empty() && !name.contains('/') && !holder.is_empty();
    complete.then_some(Term { namespace, name, number: number.parse().ok()?, holder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_parsed() {
        let term = Term { namespace: "kube-system", name: "l", number: 3, holder: "host_1 x" };
        assert_eq!(read("kube-system/l 3 host_1 x"), Some(term));
        for bad in ["", "l 3 h", "a/b 3", "a/b x h", "a/b 3 ", "/b 3 h", "a/ 3 h", "a/b/c 3 h"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
