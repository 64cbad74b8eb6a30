//! Volumes whose data is lost and put back.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, the};
use super::volumes::pod;
use object::access::{Access, name};
use object::condition;
use plan::csi::health::MISSING;
use plan::invariant::Checker;
use std::time::Duration;

fn runs(checker: &Checker) -> bool {
    checker.get("Pod", NAMESPACE, "user").is_some_and(|pod| pod.text(&["status", "phase"]) == "Running")
}

/// Issue 20: claim and volume say that the data is missing, no pod starts without it, and both are as before when it is back.
pub async fn data_lost(me: Operator) -> Told {
    me.world.driver.monitor();
    me.restart_driver().await;
    me.create(claim("data", "quick")).await;
    me.create(claim("whole", "quick")).await;
    let (volume, whole) = (me.volume_of("data").await?, me.volume_of("whole").await?);
    let says = |checker: &Checker, of: &str| {
        let claim = checker.get(CLAIM, NAMESPACE, of).is_some_and(|claim| condition::is_true(claim, MISSING));
        let reason = |volume: &str| {
            checker.get(VOLUME, "", volume).is_some_and(|volume| volume.text(&["status", "reason"]) == MISSING)
        };
        (claim, reason(name(if of == "data" { &volume } else { &whole })))
    };
    let handle = me.handle(&volume);
    for lost in [true, false, true] {
        me.world.driver.lose_data(&handle, lost);
        me.until(&format!("claim and volume say whether data is missing: {lost}"), |it| {
            says(it, "data") == (lost, lost)
        })
        .await?;
    }
    me.create(pod("user", "data")).await;
    me.pause(Duration::from_secs(60)).await;
    let has_started = runs(&me.world.checker());
    me.expect("no pod starts on a volume without data", !has_started)?;
    let other = says(&me.world.checker(), "whole");
    me.expect("a volume that has its data is not reported", other == (false, false))?;
    me.world.driver.lose_data(&handle, false);
    me.until("the pod runs", runs).await?;
    // What is deleted has no data either, and is not reported.
    me.delete(&the("Pod", "user"), "").await;
    for named in ["data", "whole"] {
        me.delete(&the(CLAIM, named), "").await;
    }
    me.until_gone(&volume).await?;
    me.until_volumes(0).await
}
