//! Claims that are given to an owner late: by a request that was on its way for so long that its owner is gone, or about to go.

use super::*;

/// Decision 21: a set's claim is given to it, or to a pod, by a request that was on its way for so long that its owner is gone. What goes
/// with the claim does not come back, so it stays; other objects go, as ever.
#[test]
fn a_claim_that_is_given_to_an_owner_that_has_gone_stays() {
    let late = owner("Set", "web", "uid-web", false);
    for (kind, policy, stays) in [
        ("PersistentVolumeClaim", Policy::Background, true),
        ("PersistentVolumeClaim", Policy::Orphan, true),
        ("Pod", Policy::Background, false),
    ] {
        // Whichever watch is quicker.
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

/// The same while its owner waits for those that it leaves behind: it was looked for before it came.
#[test]
fn a_claim_that_is_given_to_an_owner_that_leaves_all_behind_stays() {
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

/// The same when it has left all behind, and somebody else's finalizer still holds it; unless it is told to take them along after all.
#[test]
fn a_claim_that_is_given_to_an_owner_that_left_all_behind_stays() {
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

/// A claim that its owner gets on its way out, in the foreground, goes when that is gone, and not before: the request may have been on its way when the
/// owner was told to leave it.
#[test]
fn a_claim_that_is_given_to_an_owner_on_its_way_out_waits_for_its_end() {
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

/// A claim that was given to its owner in time goes with it, whichever watch is quicker, and also where its history is not known.
#[test]
fn a_claim_that_was_given_in_time_goes() {
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
            world.graph.apply(Event::Listed(world.objects["data"].fact.clone()));
            world.edit("data", |fact| fact.finalizers.clear());
        }
        while world.deliver(first) {}
        world.settle();
        assert!(!world.objects.contains_key("data"), "{first} first, listed: {is_listed}");
    }
}

/// The same where the collector has not heard yet that it was given, or that its owner was told to go: it waits until it has.
#[test]
fn a_claim_is_not_collected_before_it_is_known_when_it_was_given() {
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
        assert!(!world.objects["data"].fact.deleting, "it waits for its owner's end");
        world.edit("web-0", |fact| fact.finalizers.clear());
        world.settle();
        assert!(world.objects.is_empty(), "{:?}", world.names());
    }
}
