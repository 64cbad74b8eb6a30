//! Adds default tolerations: pods stay for five minutes on a node that is not ready or unreachable.

use super::{Verb, Write};
use object::access::Access;
use object::{Value, json};

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: i64 = 300;

pub fn default(write: &mut Write<'_>) {
    if !write.is(Verb::Create, "", "pods") && !write.is(Verb::Update, "", "pods") {
        return;
    }
    for taint in TAINTS {
        if write.object.items(&["spec", "tolerations"]).iter().any(|toleration| tolerates(toleration, taint)) {
            continue;
        }
        let mut tolerations = write.object.items(&["spec", "tolerations"]).to_vec();
        tolerations.push(json!({
            "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS,
        }));
        write.object.put(&["spec", "tolerations"], tolerations);
    }
}

fn tolerates(toleration: &Value, taint: &str) -> bool {
    let (key, effect) = (toleration.text(&["key"]), toleration.text(&["effect"]));
    (key == taint || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::testing::World;
    use super::*;

    #[test]
    fn missing_tolerations_are_added_and_given_ones_kept() {
        let mut world = World::with_namespace("a");
        let five_minutes =
            |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        let own = json!({"key": TAINTS[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let cases = [
            (json!([]), json!([five_minutes(TAINTS[0]), five_minutes(TAINTS[1])])),
            (json!([own]), json!([own, five_minutes(TAINTS[1])])),
            (json!([{"operator": "Exists"}]), json!([{"operator": "Exists"}])),
        ];
        for (given, want) in cases {
            let pod = json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {"tolerations": given}});
            assert_eq!(world.mutate("pods", pod).unwrap()["spec"]["tolerations"], want);
        }
    }
}
