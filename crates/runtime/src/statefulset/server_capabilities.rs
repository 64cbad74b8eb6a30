//! Detects API servers that lack fields which the controller uses.

use crate::controllers::ControllerContext;
use kit::api::Api;
use object::Value;
use object::access::Access;
use std::time::Duration;

const DOCUMENT: &str = "/openapi/v3/apis/apps/v1";
/// Time until a failed request for the schema is repeated.
const AGAIN: Duration = Duration::from_secs(30);

/// Warns once if the server does not know how claims are to be updated. Nothing else changes: sets of such a
/// server have no such field, so their claims are updated `OnClaimDelete`.
pub(super) async fn warn_if_missing(context: ControllerContext) {
    if context.gates.on("StatefulSetUpdateVolumeClaimTemplate") && !is_known(&context.api).await {
        tracing::warn!(
            "This API server does not support spec.volumeClaimUpdatePolicy of StatefulSets: changed claim templates apply to new \
             claims only (OnClaimDelete)"
        );
    }
}

/// Whether the server knows the field; waits until the server can answer.
async fn is_known(api: &Api) -> bool {
    loop {
        match api.document(DOCUMENT, "application/json", "").await {
            Ok(document) => return document.is_some_and(|it| knows_update_policy(&it.value)),
            // A server without OpenAPI v3 does not know the field either.
            Err(error) if error.is_not_found() => return false,
            Err(error) => {
                tracing::debug!(%error, "Failed to read the schema of StatefulSets; retrying");
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
    use super::is_known;
    use http::{Request, Response};
    use kit::api::Api;
    use kube::client::Body;
    use object::{Value, json};
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A server that gives these responses, one per request.
    fn server(answers: Vec<(u16, Value)>) -> (Api, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let (code, answer) = answers[count.fetch_add(1, Ordering::Relaxed)].clone();
            let body = Body::from(answer.to_string().into_bytes());
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).expect("an answer")) }
        });
        (Api::new(kube::Client::new(service, "default")), asked)
    }

    fn document(properties: Value) -> Value {
        json!({"components": {"schemas": {"io.k8s.api.apps.v1.StatefulSetSpec": {"properties": properties}}}})
    }

    #[tokio::test(start_paused = true)]
    async fn t16_a_server_is_asked_for_its_schema_until_it_answers() {
        let knowing = document(json!({"replicas": {}, "volumeClaimUpdatePolicy": {"type": "string"}}));
        let older = document(json!({"replicas": {}}));
        let late = (503, json!({"kind": "Status", "code": 503}));
        let cases = [
            (vec![(200, knowing.clone())], true),
            (vec![(200, older.clone())], false),
            (vec![late.clone(), late.clone(), (200, knowing)], true),
            (vec![late, (200, older)], false),
            (vec![(404, json!({"kind": "Status", "code": 404}))], false),
        ];
        for (answers, known) in cases {
            let times = answers.len();
            let (api, asked) = server(answers);
            assert_eq!((is_known(&api).await, asked.load(Ordering::Relaxed)), (known, times));
        }
    }
}
