//! The public sanity suite's checks of the identity service.

use crate::world::*;
use csi::v1::plugin_capability::{Type, service, volume_expansion};
use csi::v1::*;

#[tokio::test]
async fn get_plugin_info_has_a_name_that_begins_and_ends_with_a_letter() {
    let world = World::new().await;
    let info = world.driver.get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
    assert!((2..=63).contains(&info.name.len()), "{info:?}");
    assert!(letter(info.name.chars().next()) && letter(info.name.chars().last()), "{info:?}");
    assert!(info.name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)), "{info:?}");
    assert!(!info.vendor_version.is_empty());
}

#[tokio::test]
async fn get_plugin_capabilities_lists_known_kinds_only() {
    for world in [World::new().await, World::full().await] {
        let answer = world.driver.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        assert!(!answer.capabilities.is_empty());
        for capability in &answer.capabilities {
            match capability.r#type.as_ref().expect("a capability has a type") {
                Type::Service(service) => assert_ne!(service.r#type(), service::Type::Unknown),
                Type::VolumeExpansion(when) => assert_ne!(when.r#type(), volume_expansion::Type::Unknown),
            }
        }
    }
}

#[tokio::test]
async fn probe_is_ready() {
    let world = World::new().await;
    assert_eq!(world.driver.probe(ProbeRequest {}).await.unwrap().ready, Some(true));
    assert!(world.driver.is_ready().await.unwrap());
}
