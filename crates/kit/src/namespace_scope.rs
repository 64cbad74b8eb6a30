//! The namespaces that the controllers of a process work in: all, or some, on a cluster with other
//! controllers for the rest.
//!
//! Objects in other namespaces are not received at all ([`crate::watcher`] drops them), so no decision depends
//! on them. PVs are cluster-scoped: controllers that change PVs check [`NamespaceScope::covers_volume`] first.

use object::Value;
use object::access::Access;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Clones share the names.
#[derive(Clone, Debug, Default)]
pub struct NamespaceScope {
    /// `None` means all namespaces.
    namespaces: Option<Arc<BTreeSet<String>>>,
}

impl NamespaceScope {
    /// Parses names as `a,b`. The error is one sentence.
    pub fn parse(list: &str) -> Result<NamespaceScope, String> {
        let names: BTreeSet<String> =
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.is_empty() {
            return Err(
                "--namespaces is empty: give names separated by commas, or remove the flag to work in all namespaces"
                    .to_owned(),
            );
        }
        for name in &names {
            if let Some(why) = object::name::label(name).first() {
                return Err(format!("{name:?} is not a valid name of a namespace: {why}"));
            }
        }
        Ok(NamespaceScope { namespaces: Some(Arc::new(names)) })
    }

    pub fn is_everywhere(&self) -> bool {
        self.namespaces.is_none()
    }

    /// The names; none if it is all namespaces.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.namespaces.iter().flat_map(|names| names.iter().map(String::as_str))
    }

    /// The name, if there is exactly one.
    pub fn only(&self) -> Option<&str> {
        self.namespaces.as_ref().filter(|names| names.len() == 1)?.first().map(String::as_str)
    }

    /// Whether objects of this namespace are covered. Cluster-scoped objects (`""`) always are.
    pub fn covers(&self, namespace: &str) -> bool {
        namespace.is_empty() || self.namespaces.as_ref().is_none_or(|names| names.contains(namespace))
    }

    /// Whether a PV is covered: its claimRef is in a covered namespace, or it has none. A claim elsewhere is
    /// not in the cache, so its PV would look like one whose claim was deleted.
    pub fn covers_volume(&self, volume: &Value) -> bool {
        let Some(names) = &self.namespaces else { return true };
        volume.at(&["spec", "claimRef"]).is_none_or(|claim| names.contains(claim.text(&["namespace"])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn names_are_read() {
        let scope = NamespaceScope::parse("shop, test,shop,").unwrap();
        assert_eq!(scope.names().collect::<Vec<_>>(), ["shop", "test"]);
        assert_eq!((scope.only(), scope.is_everywhere()), (None, false));
        assert_eq!(NamespaceScope::parse("shop").unwrap().only(), Some("shop"));
        for wrong in ["", " , ", "Shop", "a/b", "-a", "*", "shop test", &"x".repeat(64)] {
            let error = NamespaceScope::parse(wrong).unwrap_err();
            assert!(!error.contains('\n') && error.contains("namespace"), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_covered() {
        let volume = |spec| json!({"metadata": {"name": "v"}, "spec": spec});
        let rows = [
            // A namespace, a PV of a claim there, and whether `shop,test` covers both.
            ("shop", volume(json!({"claimRef": {"namespace": "shop", "name": "c", "uid": "1"}})), true),
            ("test", volume(json!({"claimRef": {"namespace": "test", "name": "c"}})), true),
            ("other", volume(json!({"claimRef": {"namespace": "other", "name": "c", "uid": "1"}})), false),
            ("sho", volume(json!({"claimRef": {"namespace": "sho", "name": "c"}})), false),
            ("other", volume(json!({"claimRef": {"name": "c"}})), false),
            ("other", volume(json!({"claimRef": {}})), false),
            ("", volume(json!({})), true),
        ];
        let (few, all) = (NamespaceScope::parse("shop,test").unwrap(), NamespaceScope::default());
        for (namespace, volume, covered) in rows {
            assert_eq!((few.covers(namespace), few.covers_volume(&volume)), (covered, covered), "{namespace} {volume}");
            assert!(all.covers(namespace) && all.covers_volume(&volume));
        }
    }
}
