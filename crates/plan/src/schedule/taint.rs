//! Taints and tolerations.

use object::Value;
use object::access::Access;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
    /// An unknown effect, which does nothing.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

impl Taint {
    pub fn of(taint: &Value) -> Taint {
        let effect = match taint.text(&["effect"]) {
            "NoSchedule" => Effect::NoSchedule,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            "NoExecute" => Effect::NoExecute,
            _ => Effect::Unknown,
        };
        Taint { key: taint.text(&["key"]).to_owned(), value: taint.text(&["value"]).to_owned(), effect }
    }

    /// A taint with effect NoSchedule and without a value.
    pub fn plain(key: &str) -> Taint {
        Taint { key: key.to_owned(), value: String::new(), effect: Effect::NoSchedule }
    }

    /// Whether one of the tolerations (a JSON list) tolerates this taint.
    pub fn is_tolerated(&self, tolerations: &[Value]) -> bool {
        tolerations.iter().any(|toleration| self.is_tolerated_by(toleration))
    }

    pub fn is_tolerated_by(&self, toleration: &Value) -> bool {
        let effect = match toleration.text(&["effect"]) {
            "" => true,
            "NoSchedule" => self.effect == Effect::NoSchedule,
            "PreferNoSchedule" => self.effect == Effect::PreferNoSchedule,
            "NoExecute" => self.effect == Effect::NoExecute,
            _ => false,
        };
        let key = toleration.text(&["key"]);
        let value = toleration.text(&["value"]);
        let number = |text: &str| text.parse::<i64>().ok();
        let ordered = |judge: fn(&i64, &i64) -> bool| match (number(&self.value), number(value)) {
            (Some(have), Some(bound)) => judge(&have, &bound),
            _ => false,
        };
        effect
            && (key.is_empty() || key == self.key)
            && match toleration.text(&["operator"]) {
                "Exists" => true,
                "" | "Equal" => value == self.value,
                "Gt" => ordered(i64::gt),
                "Lt" => ordered(i64::lt),
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn tolerations_match_as_documented() {
        let taint = Taint::of(&json!({"key": "disk", "value": "5", "effect": "NoSchedule"}));
        let cases = [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "disk", "operator": "Exists"}), true),
            (json!({"key": "disk", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "disk", "value": "5", "effect": "NoSchedule"}), true),
            (json!({"key": "disk", "operator": "Equal", "value": "6"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "disk", "operator": "Gt", "value": "4"}), true),
            (json!({"key": "disk", "operator": "Lt", "value": "4"}), false),
        ];
        for (toleration, want) in cases {
            assert_eq!(taint.is_tolerated_by(&toleration), want, "{toleration}");
        }
    }
}
