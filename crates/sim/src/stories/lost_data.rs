//! Volumes whose data is lost and restored.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, VOLUME, claim, object_ref};
use super::volumes::pod;
use object::access::{Access, name};
use object::condition;
use plan::csi::health::MISSING;
use plan::invariant::Checker;
use std::time::Duration;

fn is_running(checker: &Checker) -> bool {
    checker.get("Pod", NAMESPACE, "user").is_some_and(|pod| pod.text(&["status", "phase"]) == "Running")
}

/// Issue 20: claim and PV report missing data, and no pod starts without it. The report ends when the data is restored.
pub async fn data_lost(me: Operator) -> StoryResult {
    me.world.driver.monitor();
    me.restart_driver().await;
    me.create(claim("data", "quick")).await;
    me.create(claim("whole", "quick")).await;
    let (volume, whole) = (me.volume_of("data").await?, me.volume_of("whole").await?);
    let reported = |checker: &Checker, of: &str| {
        let claim = checker.get(CLAIM, NAMESPACE, of).is_some_and(|claim| condition::is_true(claim, MISSING));
        let reason = |volume: &str| {
            checker.get(VOLUME, "", volume).is_some_and(|volume| volume.text(&["status", "reason"]) == MISSING)
        };
        (claim, reason(name(if of == "data" { &volume } else { &whole })))
    };
    let handle = me.handle(&volume);
    for lost in [true, false, true] {
        me.world.driver.lose_data(&handle, lost);
        me.until(&format!("claim and PV report whether data is missing: {lost}"), |it| {
            reported(it, "data") == (lost, lost)
        })
        .await?;
    }
    me.create(pod("user", "data")).await;
    me.pause(Duration::from_secs(60)).await;
    let has_started = is_running(&me.world.checker());
    me.expect("no pod starts on a volume without data", !has_started)?;
    let other = reported(&me.world.checker(), "whole");
    me.expect("a volume with its data is not reported", other == (false, false))?;
    me.world.driver.lose_data(&handle, false);
    me.until("the pod runs", is_running).await?;
    // A deleted volume has no data either, but is not reported.
    me.delete(&object_ref("Pod", "user"), "").await;
    for named in ["data", "whole"] {
        me.delete(&object_ref(CLAIM, named), "").await;
    }
    me.until_gone(&volume).await?;
    me.until_volumes(0).await
}
