//! KEP-2644 with any order of deletion of pod, claim, PV and class.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, claim, object_ref};
use super::volumes::pod;
use object::access::Access;
use object::json;
use std::collections::BTreeSet;

const PARTS: [&str; 4] = ["pod", "claim", "volume", "class"];

/// All orders of the four objects.
fn orders() -> Vec<Vec<&'static str>> {
    let mut all = vec![Vec::new()];
    for _ in PARTS {
        let longer = |order: &Vec<&'static str>| {
            let rest: Vec<&str> = PARTS.into_iter().filter(|part| !order.contains(part)).collect();
            rest.into_iter().map(|part| [order.clone(), vec![part]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// H10: each order once, with policies and plugins in turn. The final state must be the same.
pub async fn any_order(me: Operator) -> StoryResult {
    let makers = [
        ("Delete", csi::directory::DEFAULT_NAME),
        ("Retain", plan::reclaim::HOST_PATH),
        ("Delete", plan::reclaim::HOST_PATH),
        ("Retain", csi::directory::DEFAULT_NAME),
    ];
    let mut left = BTreeSet::new();
    for (at, order) in orders().into_iter().enumerate() {
        // Six orders begin with each object, so each plugin is combined with each first object.
        let (policy, provisioner) = makers[at % makers.len()];
        let named = order.join("-");
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": named},
            "provisioner": provisioner, "reclaimPolicy": policy,
        });
        me.create(class.clone()).await;
        me.create(claim(&named, &named)).await;
        let volume = me.volume_of(&named).await?;
        me.create(pod(&named, &named)).await;
        me.until("the pod runs", |checker| {
            checker.get("Pod", NAMESPACE, &named).is_some_and(|pod| pod.text(&["status", "phase"]) == "Running")
        })
        .await?;
        if policy == "Retain" {
            left.insert(me.handle(&volume));
        }
        for part in order {
            let object = match part {
                "pod" => &object_ref("Pod", &named),
                "claim" => &object_ref(CLAIM, &named),
                "volume" => &volume,
                _ => &class,
            };
            me.delete(object, "").await;
        }
        me.until_gone(&object_ref(CLAIM, &named)).await?;
        me.until_gone_for_good(&volume).await?;
    }
    me.until_handles(&left).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twenty_four_orders() {
        let all: BTreeSet<Vec<&str>> = orders().into_iter().collect();
        assert_eq!(all.len(), 24);
        assert!(all.iter().all(|order| PARTS.iter().all(|part| order.contains(part))));
    }
}
