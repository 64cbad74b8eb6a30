//! Servers that do not know what the controller could do.

use crate::controllers::Part;
use object::Value;
use object::access::Access;
use std::time::Duration;

const DOCUMENT: &str = "/openapi/v3/apis/apps/v1";
/// A server that cannot say now what it knows is asked again after this time.
const AGAIN: Duration = Duration::from_secs(30);

/// Says, once, that the server does not know how claims are to be updated. Nothing else follows from it: sets of such a server have no
/// such field, so their claims are updated `OnClaimDelete`.
pub(super) async fn tell(part: Part) {
    if !part.gates.on("StatefulSetUpdateVolumeClaimTemplate") {
        return;
    }
    loop {
        match part.api.document(DOCUMENT, "application/json", "").await {
            Ok(document) if document.as_ref().is_some_and(|it| knows_update_policy(&it.value)) => return,
            Ok(_) => {
                tracing::warn!(
                    "this API server does not know spec.volumeClaimUpdatePolicy of StatefulSets: \
                     changed claim templates count for new claims only (OnClaimDelete)"
                );
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot ask the API server what it knows of StatefulSets; asking again");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

fn knows_update_policy(document: &Value) -> bool {
    let spec = ["components", "schemas", "io.k8s.api.apps.v1.StatefulSetSpec", "properties", "volumeClaimUpdatePolicy"];
    document.has(&spec)
}

#[cfg(test)]
mod tests {
    use super::knows_update_policy;
    use object::json;

    #[test]
    fn t16_a_server_is_asked_what_it_knows() {
        let spec = |properties| json!({"components": {"schemas": {"io.k8s.api.apps.v1.StatefulSetSpec": properties}}});
        assert!(knows_update_policy(&spec(json!({"properties": {"volumeClaimUpdatePolicy": {"type": "string"}}}))));
        assert!(!knows_update_policy(&spec(json!({"properties": {"replicas": {"type": "integer"}}}))));
        assert!(!knows_update_policy(&json!({})));
    }
}
