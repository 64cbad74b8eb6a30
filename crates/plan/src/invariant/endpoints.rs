//! Invariant: Endpoints of the controller only contain addresses that their pods have had.

use crate::endpoints::{CONTROLLER, MANAGED_BY};
use object::Value;
use object::access::{Access, name, namespace, uid};
use std::collections::{BTreeMap, BTreeSet};

/// The addresses that each pod has ever had, by uid. Endpoints may be stale, but they never send traffic to a
/// wrong pod.
#[derive(Default)]
pub(super) struct Addresses(BTreeMap<String, BTreeSet<String>>);

impl Addresses {
    pub(super) fn see_pod(&mut self, pod: &Value) {
        let ips: Vec<&str> = ips(pod).collect();
        if !ips.is_empty() {
            let known = self.0.entry(uid(pod).to_owned()).or_default();
            known.extend(ips.into_iter().map(str::to_owned));
        }
    }

    /// The violations of an Endpoints object, as sentences.
    pub(super) fn judge(&self, endpoints: &Value) -> Vec<String> {
        if endpoints.text(&["metadata", "labels", MANAGED_BY]) != CONTROLLER {
            return Vec::new();
        }
        let lists = endpoints
            .items(&["subsets"])
            .iter()
            .flat_map(|subset| ["addresses", "notReadyAddresses"].into_iter().flat_map(|list| subset.items(&[list])));
        let is_wrong = |address: &&Value| {
            let pod = address.text(&["targetRef", "uid"]);
            !self.0.get(pod).is_some_and(|ips| ips.contains(address.text(&["ip"])))
        };
        let wrong = lists.filter(is_wrong);
        let sentences = wrong.map(|address| {
            let (pod, ip) = (address.text(&["targetRef", "name"]), address.text(&["ip"]));
            format!(
                "the Endpoints {}/{} contain {ip}, which pod {pod} never had",
                namespace(endpoints),
                name(endpoints)
            )
        });
        sentences.collect()
    }
}

fn ips(pod: &Value) -> impl Iterator<Item = &str> {
    let listed = pod.items(&["status", "podIPs"]).iter().map(|entry| entry.text(&["ip"]));
    listed.chain([pod.text(&["status", "podIP"])]).filter(|ip| !ip.is_empty())
}
