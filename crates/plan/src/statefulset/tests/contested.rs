//! Claims whose names belong to two sets: `data` of `db-web`, and `data-db` of `web`.

use super::in_place::{in_place, moves, none};
use super::retention::{NOBODY, settled};

/// Claims whose names belong to another set, too, get no owner; also new ones.
#[test]
fn contested_claims_have_no_owner() {
    let mut world = settled(2, "Delete", "Delete");
    assert_eq!(world.owners("data-web-1"), ["StatefulSet/web"]);
    world.contested.insert("data-web".to_owned());
    world.scale(3);
    world.settle();
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        assert_eq!(world.owners(claim), NOBODY, "{claim}");
    }
    assert!(world.events.iter().any(|event| event.reason == "ContestedClaim"), "{:?}", world.events);
    world.scale(0);
    world.settle();
    assert_eq!(world.claims.len(), 3);
    world.contested.clear();
    world.scale(1);
    world.settle();
    assert_eq!(world.owners("data-web-0"), ["StatefulSet/web"]);
}

/// T5: each of the two sets would write such a claim for its own revision, in turns. So neither does, and
/// both report why; new pods are created even so.
#[test]
fn t5_contested_claims_are_written_by_neither() {
    let mut world = in_place(2, |_| {});
    world.contested.insert("data-web".to_owned());
    world.grow("20Gi");
    for _ in 0..3 {
        assert_eq!(moves(&world.step()), none());
    }
    assert_eq!(world.sizes(), ["10Gi"; 2]);
    assert!(world.claims_said().contains("ClaimContested"), "{}", world.claims_said());
    world.pods.remove("web-1");
    assert_eq!(moves(&world.step()), none());
    assert_eq!(world.pods.len(), 2, "its pod is created with the claim unchanged");
    world.contested.clear();
    world.settle();
    assert_eq!(world.sizes(), ["20Gi", "10Gi"], "the other pod is at the revision already: T9");
}
