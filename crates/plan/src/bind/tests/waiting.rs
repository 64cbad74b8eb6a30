//! Waiting claims, and the volumes that are offered to them.

use super::world::*;
use crate::bind::{Waiting, Wanted};
use object::json;

#[test]
fn an_available_volume_is_offered_to_the_largest_fitting_claim_only() {
    let mut waiting = Waiting::default();
    let enter = |waiting: &mut Waiting<&'static str>, name, size, more| {
        waiting.enter(name, Wanted::of(&claim(name, size, more)));
    };
    enter(&mut waiting, "small", "1Gi", json!({}));
    enter(&mut waiting, "middle", "3Gi", json!({}));
    enter(&mut waiting, "huge", "9Gi", json!({}));
    enter(&mut waiting, "gold", "4Gi", json!({"spec": {"storageClassName": "gold"}}));
    enter(&mut waiting, "picky", "4Gi", json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}));
    enter(&mut waiting, "many", "4Gi", json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    let volume = volume("v", "5Gi", json!({}));
    assert_eq!(waiting.call(&"v", &volume), Some("middle"));
    assert_eq!(waiting.call(&"w", &volume), Some("small"));
    assert_eq!(waiting.call(&"x", &volume), None);
    // A volume offered to a claim that took another one is returned, to be offered again.
    assert_eq!(waiting.looked(&"middle"), ["v"]);
    assert_eq!(waiting.looked(&"middle"), [""; 0]);
    assert_eq!(waiting.len(), 4);
    enter(&mut waiting, "small", "6Gi", json!({}));
    assert_eq!(waiting.call(&"x", &volume), None, "the claim now requests more");
    for name in ["small", "huge", "gold", "picky", "many"] {
        waiting.leave(&name);
    }
    assert!(waiting.is_empty());
}
