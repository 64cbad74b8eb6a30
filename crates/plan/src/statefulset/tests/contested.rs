//! Claims that two sets have by their names: `data` of `db-web`, and `data-db` of `web`.

use super::in_place::{in_place, moves, none};
use super::retention::{NOBODY, settled};

/// Claims that another set has by their names, too, go with neither; also those that are made new.
#[test]
fn contested_claims_belong_to_nobody() {
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

/// T5: each of the two would write such a claim for its own revision, in turns. So neither does, and says why; new pods come all the same.
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
    assert_eq!(world.pods.len(), 2, "its pod comes by the claim as it is");
    world.contested.clear();
    world.settle();
    assert_eq!(world.sizes(), ["20Gi", "10Gi"], "the other's pod is at the revision already: T9");
}
