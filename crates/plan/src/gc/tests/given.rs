//! Claims that get an owner late: a delayed request sets an owner that is deleted or terminating by then.

use super::*;

/// Decision 21: a delayed request sets the owner of a claim to a set or pod that is deleted by then. The
/// claim is kept, because its data cannot be restored; other objects are deleted as usual.
#[test]
fn a_claim_that_gets_a_deleted_owner_is_kept() {
    let late = owner("Set", "web", "uid-web", false);
    for (kind, policy, stays) in [
        ("PersistentVolumeClaim", Policy::Background, true),
        ("PersistentVolumeClaim", Policy::Orphan, true),
        ("Pod", Policy::Background, false),
    ] {
        // In either order of the watches.
        for first in ["Set", kind] {
            let mut world = World::default();
            world.create("Set", "a", "web", Vec::new());
            world.create(kind, "a", "data", Vec::new());
            world.settle();
            world.delete("web", policy);
            if policy == Policy::Orphan {
                world.settle();
            }
            world.edit("data", |fact| fact.owners.push(late.clone()));
            while world.deliver(first) {}
            world.settle();
            let left = world.objects.get("data").map(|data| data.fact.owners.len());
            assert_eq!(left, stays.then_some(0), "{kind} {policy:?}, {first} first");
        }
    }
}

/// The same while the owner waits for its dependents to be orphaned: they were listed before the claim got
/// the owner.
#[test]
fn a_claim_that_gets_an_orphaning_owner_is_kept() {
    let mut world = World::default();
    world.create("Set", "a", "web", Vec::new());
    world.create("PersistentVolumeClaim", "a", "data", Vec::new());
    world.settle();
    world.delete("web", Policy::Orphan);
    world.deliver("Set");
    world.work(|world| world.edit("data", |fact| fact.owners.push(owner("Set", "web", "uid-web", false))));
    world.settle();
    assert_eq!(world.objects.get("data").map(|data| data.fact.owners.len()), Some(0));
    assert!(!world.objects.contains_key("web"));
}

/// The same when the dependents are orphaned and another finalizer keeps the owner; unless the owner is
/// deleted again with its dependents.
#[test]
fn a_claim_that_gets_an_owner_after_orphaning_is_kept() {
    for after_all in [false, true] {
        let mut world = World::default();
        world.create("Set", "a", "web", Vec::new());
        world.create("PersistentVolumeClaim", "a", "data", Vec::new());
        world.edit("web", |fact| fact.finalizers.push("example.com/hold".to_owned()));
        world.settle();
        world.delete("web", Policy::Orphan);
        world.settle();
        assert_eq!(world.objects["web"].fact.finalizers, ["example.com/hold"]);
        world.edit("data", |fact| fact.owners.push(owner("Set", "web", "uid-web", false)));
        if after_all {
            world.delete("web", Policy::Foreground);
        }
        world.settle();
        world.edit("web", |fact| fact.finalizers.clear());
        world.settle();
        let left = world.objects.get("data").map(|data| data.fact.owners.len());
        assert_eq!(left, (!after_all).then_some(0), "after all: {after_all}");
    }
}

/// A claim that gets an owner in foreground deletion is deleted after the owner and not before: the request
/// may have been sent before the deletion, and be revoked.
#[test]
fn a_claim_that_gets_a_terminating_owner_waits_until_the_owner_is_deleted() {
    for is_taken_back in [false, true] {
        let mut world = World::default();
        world.create("Set", "a", "web", Vec::new());
        world.create("Pod", "a", "web-0", vec![owner("Set", "web", "uid-web", true)]);
        world.edit("web-0", |fact| fact.finalizers.push("example.com/hold".to_owned()));
        world.create("PersistentVolumeClaim", "a", "data", Vec::new());
        world.settle();
        world.delete("web", Policy::Foreground);
        world.edit("data", |fact| fact.owners.push(owner("Set", "web", "uid-web", false)));
        world.settle();
        assert!(!world.objects["data"].fact.deleting);
        if is_taken_back {
            world.edit("data", |fact| fact.owners.clear());
        }
        world.edit("web-0", |fact| fact.finalizers.clear());
        world.settle();
        assert!(!world.objects.contains_key("web"));
        assert_eq!(world.objects.contains_key("data"), is_taken_back);
    }
}

/// A claim that got its owner in time is deleted with it, in either order of the watches, and also if its
/// history is not known.
#[test]
fn a_claim_that_got_its_owner_in_time_is_deleted() {
    for (first, is_listed) in [("Set", false), ("PersistentVolumeClaim", false), ("Set", true)] {
        let mut world = World::default();
        world.create("Set", "a", "web", Vec::new());
        world.create("PersistentVolumeClaim", "a", "data", Vec::new());
        world.settle();
        world.edit("data", |fact| fact.owners.push(owner("Set", "web", "uid-web", false)));
        world.delete("web", Policy::Background);
        if is_listed {
            world.edit("data", |fact| fact.finalizers.push("touched".to_owned()));
            world.pending.remove("PersistentVolumeClaim");
            world.graph.apply(GraphEvent::Listed(world.objects["data"].fact.clone()));
            world.edit("data", |fact| fact.finalizers.clear());
        }
        while world.deliver(first) {}
        world.settle();
        assert!(!world.objects.contains_key("data"), "{first} first, listed: {is_listed}");
    }
}

/// The same if an event is missing, of the new owner or of the owner's deletion: the collector waits for it.
#[test]
fn a_claim_is_not_collected_before_it_is_known_when_it_got_its_owner() {
    for unheard in ["PersistentVolumeClaim", "Set"] {
        let mut world = World::default();
        world.create("Set", "a", "web", Vec::new());
        world.create("Pod", "a", "web-0", vec![owner("Set", "web", "uid-web", true)]);
        world.edit("web-0", |fact| fact.finalizers.push("example.com/hold".to_owned()));
        world.create("Pod", "a", "web-1", Vec::new());
        world.create("PersistentVolumeClaim", "a", "data", vec![owner("Pod", "web-1", "uid-web-1", false)]);
        world.settle();
        world.delete("web", Policy::Foreground);
        world.edit("data", |fact| fact.owners.push(owner("Set", "web", "uid-web", false)));
        world.delete("web-1", Policy::Background);
        for kind in ["Pod", "Set", "PersistentVolumeClaim"] {
            while kind != unheard && world.deliver(kind) {}
        }
        for _ in 0..10 {
            world.work(|_| {});
        }
        assert!(!world.deleted_by_gc.contains(&"data".to_owned()), "{unheard} unheard");
        world.settle();
        assert!(!world.objects["data"].fact.deleting, "it waits for the deletion of its owner");
        world.edit("web-0", |fact| fact.finalizers.clear());
        world.settle();
        assert!(world.objects.is_empty(), "{:?}", world.names());
    }
}
