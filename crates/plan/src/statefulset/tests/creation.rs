//! Identity, creation, healing, adoption: scenarios B, C and D.

use super::world::{World, actions, is_idle, leaving, not_ready, set};
use crate::statefulset::{Action, Held};
use object::access::{Access, name};
use object::{Value, json};

#[test]
fn b01_one_after_the_other_each_when_the_one_before_is_ready() {
    let mut world = World::new(3);
    for ordinal in 0..3 {
        let plan = world.step();
        assert_eq!(world.log.last().unwrap(), &format!("+web-{ordinal}"));
        assert_eq!(plan.held, [not_ready(&format!("web-{ordinal}"))]);
        world.step();
        assert_eq!(world.pods.len(), ordinal + 1, "nothing more before it is ready");
        world.ready(&format!("web-{ordinal}"), true);
    }
    assert!(is_idle(&world.settle()));
    for field in ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"] {
        assert_eq!(world.status(field), 3, "{field}");
    }
    assert_eq!(world.status("observedGeneration"), 1);
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    assert_eq!(world.revisions.keys().collect::<Vec<_>>(), [world.status_text("updateRevision")]);
}
