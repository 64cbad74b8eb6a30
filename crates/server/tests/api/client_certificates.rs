//! Permissions to have client certificates signed through `POST /mainstay/clientcertificate`.

use crate::backup::grant;
use crate::support::*;
use base64::Engine;
use serde_json::json;
use server::CLIENT_CERTIFICATE_PATH as PATH;
use server::authn::{ClientKey, user_from_certificate};

/// Path and query of a request for a certificate.
fn query(user: &str, seconds: &str) -> String {
    let escape = |c: char| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("%{:02X}", u32::from(c)) };
    let key: String = ClientKey::generate().unwrap().public_pem().chars().map(escape).collect();
    format!("{PATH}?user={user}&group=dev&group=ops&seconds={seconds}&publicKey={key}")
}

#[tokio::test]
async fn signing_a_client_certificate_needs_its_own_permission_or_all() {
    let world = World::new().await;
    let admin = world.admin();
    let reads = json!(["get", "list", "watch", "create"]);
    grant(&admin, "every-path", json!({"nonResourceURLs": ["*", "/mainstay/*"], "verbs": ["*"]})).await;
    grant(&admin, "creator", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": reads})).await;
    grant(&admin, "backup", json!({"apiGroups": ["mainstay.dev"], "resources": ["stores"], "verbs": ["*"]})).await;
    for user in ["every-path", "creator", "backup", "nobody"] {
        let api = world.as_user(user, &[]);
        let said = api.send("POST", &query("eve", "3600"), "", "").await.refused(403, "Forbidden");
        let why = format!("User {user:?} cannot sign resource \"clientcertificates\" in API group \"mainstay.dev\"");
        assert!(said.contains(&why), "{said}");
        assert_eq!(api.send("POST", &format!("{PATH}/"), "", "").await.code, 403);
    }
    world.outside().send("POST", &query("eve", "3600"), "", "").await.refused(403, "Forbidden");
    let own = json!({"apiGroups": ["mainstay.dev"], "resources": ["clientcertificates"], "verbs": ["sign"]});
    grant(&admin, "signer", own).await;
    for api in [admin, world.as_user("signer", &[])] {
        let reply = api.send("POST", &query("jane", "3600"), "", "").await;
        assert_eq!(reply.code, 200);
        let pem = String::from_utf8(reply.bytes.to_vec()).unwrap();
        assert!(server::authn::certs::is_signed_by(&identity().ca.certificate_pem, &pem));
        let body = pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
        let der = base64::engine::general_purpose::STANDARD.decode(body).unwrap();
        let user = user_from_certificate(&der).unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(" ").as_str()), ("jane", "dev ops system:authenticated"));
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            assert_eq!(api.send(method, &query("jane", "3600"), "", "").await.code, 405, "{method}");
        }
    }
}

#[tokio::test]
async fn bad_requests_for_certificates_are_refused() {
    let admin = World::new().await.admin();
    for (query, wanted) in [
        (PATH.to_owned(), "the name of a user is empty"),
        (query("", "3600"), "the name of a user is empty"),
        (query("jane", "1"), "the lifetime of a client certificate is at least 10m and at most 365d"),
        (query("jane", "x"), "the lifetime of a client certificate is at least 10m and at most 365d"),
        (query("jane", "99999999999"), "the lifetime of a client certificate is at least 10m and at most 365d"),
        (query("jane%0A", "3600"), "has control characters"),
        (format!("{PATH}?user=jane&seconds=3600&publicKey=x"), "cannot make a certificate"),
    ] {
        let said = admin.send("POST", &query, "", "").await.refused(400, "BadRequest");
        assert!(said.contains(wanted), "{query}: {said}");
    }
}
