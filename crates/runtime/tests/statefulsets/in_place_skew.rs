//! Claim templates updated in place: different gates and versions, and faults of any write. T16, T5.

use crate::kubelet::Kubelet;
use crate::sets::*;
use crate::storage::*;
use crate::world::*;
use object::access::{Access, uid};
use object::{Gates, Value, json};

const GATE: &str = "StatefulSetUpdateVolumeClaimTemplate";

fn closed() -> Gates {
    Gates::default().with(GATE, false)
}

impl World {
    /// Restarts the controllers with these gates.
    async fn restart_controllers(&mut self, gates: Gates) {
        self.stop_controllers().await;
        self.setup.gates = gates;
        self.start(ALL);
    }
}

/// T16: the server knows the field, the controllers do not: revisions and pods follow, claims do not; when
/// the gate is on, another change reaches the claims.
#[tokio::test(start_paused = true)]
async fn t16_the_controllers_gate_is_closed_and_opened() {
    let mut world = World::bare().await;
    world.setup.gates = closed();
    world.start(ALL);
    let (kubelet, storage) = (Kubelet::start(&world), Storage::start(&world));
    world.create(growing_class()).await;
    let set = world.create(with(in_place(2), json!({"volumeClaimUpdatePolicy": "OnClaimDelete"}))).await;
    world.until_done(&set).await;
    let uids = world.pod_uids().await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    let set = world.grow(&set, "20Gi").await;
    let done = world.until_done(&set).await;
    let update = done.text(&["status", "updateRevision"]).to_owned();
    let revision = world.get(&format!("{REVISIONS}/{update}")).await.expect("the revision");
    assert!(revision["data"]["spec"].has(&["volumeClaimTemplates"]));
    world.until_revision("web-0", &update).await;
    assert_eq!((world.size("data-web-1").await.as_str(), revision_of(&world.claim("data-web-1").await)), ("10Gi", ""));
    world.restart_controllers(Gates::default()).await;
    world.quiet().await;
    assert_eq!(world.size("data-web-1").await, "10Gi", "another change is needed");
    let set = world.grow(&set, "30Gi").await;
    world.until_done(&set).await;
    assert_eq!((world.size("data-web-0").await, world.size("data-web-1").await), ("30Gi".into(), "30Gi".into()));
    assert_eq!(world.pod_uids().await, uids);
    drop((kubelet, storage));
    world.stop().await;
}

/// T16: the controllers' gate is turned off in the middle: claims are no longer written or waited for, and
/// the rollout ends.
#[tokio::test(start_paused = true)]
async fn t16_the_controllers_gate_closes_in_the_middle() {
    let (mut world, kubelet, storage, set) = World::settled(in_place(3)).await;
    let uids = world.pod_uids().await;
    storage.leave(&["data-web-2"]);
    let set = world.grow(&set, "20Gi").await;
    world.until_size("data-web-2", "20Gi").await;
    world.restart_controllers(closed()).await;
    let done = world.until_done(&set).await;
    let revision = world.get(&format!("{REVISIONS}/{}", done.text(&["status", "updateRevision"]))).await;
    assert!(revision.expect("the revision")["data"]["spec"].has(&["volumeClaimTemplates"]));
    assert_eq!((world.size("data-web-0").await, world.size("data-web-1").await), ("10Gi".into(), "10Gi".into()));
    assert_eq!(world.pod_uids().await, uids);
    drop((kubelet, storage));
    world.stop().await;
}

/// T16: set while no controllers ran: they begin at once.
#[tokio::test(start_paused = true)]
async fn t16_set_while_the_controllers_were_down() {
    let set = with(in_place(2), json!({"volumeClaimUpdatePolicy": "OnClaimDelete"}));
    let (mut world, kubelet, storage, set) = World::settled(set).await;
    let uids = world.pod_uids().await;
    world.stop_controllers().await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    let set = world.grow(&set, "20Gi").await;
    world.start(ALL);
    world.until_done(&set).await;
    assert_eq!((world.size("data-web-0").await, world.size("data-web-1").await), ("20Gi".into(), "20Gi".into()));
    assert_eq!(world.pod_uids().await, uids);
    drop((kubelet, storage));
    world.stop().await;
}

/// T16: with a server that does not know the field, or has its gate off, sets behave as OnClaimDelete; a
/// stored field is kept.
#[tokio::test(start_paused = true)]
async fn t16_the_servers_gate() {
    let mut world = World::gated(closed()).await;
    world.start(ALL);
    let (kubelet, storage) = (Kubelet::start(&world), Storage::start(&world));
    world.create(growing_class()).await;
    let set = world.create(in_place(2)).await;
    assert!(!set.has(&["spec", "volumeClaimUpdatePolicy"]), "dropped");
    world.until_done(&set).await;
    assert_eq!(revision_of(&world.claim("data-web-1").await), "");
    let mut templates = set["spec"]["volumeClaimTemplates"].clone();
    templates[0]["spec"]["resources"]["requests"]["storage"] = json!("20Gi");
    let patch = json!({"spec": {"volumeClaimTemplates": templates}});
    let (code, answer) = world.send("PATCH", &path(&set), "application/merge-patch+json", Some(&patch)).await;
    assert_eq!(code, 422);
    assert!(answer.text(&["message"]).contains("field is immutable"), "{answer}");
    drop((kubelet, storage));
    // Another server with the gate on takes over, and then one with it off again.
    world.stop_controllers().await;
    world.restart_server(Gates::default()).await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    assert_eq!(set["spec"]["volumeClaimUpdatePolicy"], "InPlace");
    world.restart_server(closed()).await;
    let set = world.merge(&set, json!({"metadata": {"annotations": {"a": "b"}}})).await;
    assert_eq!(set["spec"]["volumeClaimUpdatePolicy"], "InPlace", "kept");
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": null})).await;
    assert!(!set.has(&["spec", "volumeClaimUpdatePolicy"]), "but it may be removed");
    world.stop().await;
}

/// Grows a set, and checks its whole history: sizes never decrease, no pod is restarted, each claim is
/// written once.
async fn tell(world: &World, after: usize, mishap: Option<Mishap>) -> usize {
    let begin = world.store.revision();
    let set = world.create(in_place(3)).await;
    let set = world.until_done(&set).await;
    let uids = world.pod_uids().await;
    world.requests.take().await;
    if let Some(mishap) = mishap {
        world.faults.mishap(SETS, after, mishap);
    }
    let set = world.grow(&set, "20Gi").await;
    world.until_done(&set).await;
    assert_eq!(world.pod_uids().await, uids, "nothing restarts");
    let asked = world.requests.take().await;
    let writes = asked.iter().filter(|asked| &*asked.account == SETS && is_write(&asked.method, &asked.path)).count();
    check(world, begin).await;
    for claim in world.claims().await {
        assert_eq!(world.size(&claim).await, "20Gi");
    }
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    world.until_pods(&[]).await;
    for claim in world.claims().await {
        world.delete(&crate::world::claim("default", &claim), "").await;
    }
    world.until_claims(&[]).await;
    world.until("no history is left", || async { world.names(REVISIONS).await.is_empty().then_some(()) }).await;
    writes
}

async fn check(world: &World, begin: u64) {
    let size = |claim: &Value| claim.text(&["spec", "resources", "requests", "storage"]).to_owned();
    let mut last: std::collections::BTreeMap<String, (String, String, usize)> = std::collections::BTreeMap::new();
    for moment in world.history_since(begin).await {
        let flying = moment.claims.values().filter(|claim| {
            let status = claim.text(&["status", "capacity", "storage"]);
            size(claim) == "20Gi" && status != "20Gi"
        });
        assert!(flying.count() <= 1, "one replica in flight at a time");
        for (name, claim) in &moment.claims {
            let entry = last.entry(name.clone()).or_insert_with(|| (uid(claim).to_owned(), size(claim), 0));
            assert_eq!(entry.0, uid(claim), "{name} was lost");
            if entry.1 != size(claim) {
                assert_eq!((entry.1.as_str(), size(claim).as_str()), ("10Gi", "20Gi"));
                *entry = (entry.0.clone(), size(claim), entry.2 + 1);
            }
        }
    }
    assert!(last.values().all(|(_, _, changes)| *changes == 1), "{last:?}");
}

async fn with_every_write(mishap: Mishap) {
    let (world, _kubelet) = World::lively().await;
    let _storage = Storage::start(&world);
    world.create(growing_class()).await;
    let writes = tell(&world, 0, None).await;
    assert!(writes > 8, "{writes} writes are too few");
    for after in 0..writes.saturating_sub(3) {
        tell(&world, after, Some(mishap)).await;
        assert!(!world.faults.mishap_waits(), "{after} of {writes} writes, and nothing happened");
    }
    world.stop().await;
}

/// T5, T11: any write may fail, be executed too late, or lose its response.
#[tokio::test(start_paused = true)]
async fn t5_any_write_of_a_growth_may_fail() {
    with_every_write(Mishap::Refused(500)).await;
}

#[tokio::test(start_paused = true)]
async fn t5_any_write_of_a_growth_may_be_executed_too_late() {
    with_every_write(Mishap::Refused(409)).await;
}

#[tokio::test(start_paused = true)]
async fn t5_any_response_of_a_growth_may_be_lost() {
    with_every_write(Mishap::AnswerLost).await;
}

/// T5: the controllers stop before or after any write, and are restarted.
#[tokio::test(start_paused = true)]
async fn t5_the_controllers_may_stop_at_any_write_of_a_growth() {
    // Stopping before a write equals stopping after the previous one.
    for (mishap, first) in [(Mishap::Stuck, 0), (Mishap::AnswerStuck, 1)] {
        for after in (first..12).step_by(2) {
            let (mut world, kubelet, storage, set) = World::settled(in_place(3)).await;
            let (begin, uids) = (world.store.oldest(), world.pod_uids().await);
            world.faults.mishap(SETS, after, mishap);
            let set = world.grow(&set, "20Gi").await;
            world.until_moment("the mishap", || !world.faults.mishap_waits()).await;
            world.stop_controllers().await;
            world.start(ALL);
            world.until_done(&set).await;
            assert_eq!(world.pod_uids().await, uids);
            check(&world, begin).await;
            drop((kubelet, storage));
            world.stop().await;
        }
    }
}
