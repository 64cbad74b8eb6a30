//! Tokens, from request to refusal, with a real store.

use super::certs::Identity;
use super::testing::{Bench, NOW_S, delete, put, store};
use super::tokens::DEFAULT_ISSUER;
use super::{Authenticator, ClientCertificates, ServiceAccountTokens, StaticTokens, token_request};
use crate::attributes::User;
use crate::env::Env;
use crate::object_store::Reader;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::{HeaderMap, HeaderValue, header};
use object::{Status, Value, json};
use std::sync::Arc;
use store::Store;

struct World {
    store: Arc<dyn Store>,
    bench: Arc<Bench>,
    env: Env,
    authenticator: Authenticator,
    identity: Identity,
}

impl World {
    fn new() -> World {
        let (store, bench) = (store(), Bench::new());
        let env = bench.env();
        let identity = Identity::make(&[], env.clock.now()).unwrap();
        let key = &identity.service_account_key_pem;
        let authenticator = Authenticator {
            certificates: ClientCertificates::new(&identity.ca.certificate_pem).unwrap(),
            static_tokens: StaticTokens::parse("static,joe,u7,\"dev,ops\"").unwrap(),
            tokens: ServiceAccountTokens::new(key, DEFAULT_ISSUER, &[], store.clone()).unwrap(),
            env: env.clone(),
        };
        let world = World { store, bench, env, authenticator, identity };
        world.put("/core/serviceaccounts/ns/web", json!({"metadata": {"name": "web", "uid": "sa-1"}}));
        world.put("/core/nodes/n1", json!({"metadata": {"name": "n1", "uid": "node-1"}}));
        world.put("/core/secrets/ns/s", json!({"metadata": {"name": "s", "uid": "secret-1"}}));
        let spec = json!({"serviceAccountName": "web", "nodeName": "n1"});
        world.put("/core/pods/ns/web-0", json!({"metadata": {"name": "web-0", "uid": "pod-1"}, "spec": spec}));
        world
    }

    fn put(&self, key: &str, value: Value) {
        put(&self.store, key, &value);
    }

    fn request(&self, spec: Value) -> Result<Value, Status> {
        let reader = Reader { store: self.store.clone() };
        let request = json!({"spec": spec});
        token_request::answer(&self.authenticator.tokens, &reader, &self.env, "ns", "web", request)
    }

    fn token(&self, spec: Value) -> String {
        self.request(spec).unwrap()["status"]["token"].as_str().unwrap().to_owned()
    }

    fn login(&self, token: &str) -> Result<User, Status> {
        self.authenticator.authenticate(&bearer(token), None)
    }

    fn why_not(&self, token: &str) -> String {
        let audiences = self.authenticator.tokens.audiences().to_vec();
        self.authenticator.authenticate_token(token, &audiences).unwrap_err().to_string()
    }
}

fn bearer(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
    headers
}

fn bound_to(kind: &str, name: &str) -> Value {
    json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}})
}

#[test]
fn a_requested_token_has_upstreams_claims_and_logs_in() {
    let world = World::new();
    let answer = world.request(bound_to("Pod", "web-0")).unwrap();
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["metadata"]["name"], "web");
    assert_eq!(answer["spec"]["expirationSeconds"], 3600);
    assert_eq!(answer["spec"]["audiences"], json!([DEFAULT_ISSUER]));
    assert_eq!(answer["status"]["expirationTimestamp"], "2027-01-15T09:00:00Z");
    let token = answer["status"]["token"].as_str().unwrap();
    let part = |at: usize| -> Value {
        serde_json::from_slice(&BASE64.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
    };
    assert_eq!(part(0)["alg"], "ES256");
    assert_eq!(part(0)["kid"], world.authenticator.tokens.jwks()["keys"][0]["kid"]);
    let claims = json!({
        "aud": [DEFAULT_ISSUER], "exp": NOW_S + 3600, "iat": NOW_S, "nbf": NOW_S, "iss": DEFAULT_ISSUER, "jti": "id-1",
        "sub": "system:serviceaccount:ns:web",
        "kubernetes.io": {
            "namespace": "ns",
            "node": {"name": "n1", "uid": "node-1"},
            "pod": {"name": "web-0", "uid": "pod-1"},
            "serviceaccount": {"name": "web", "uid": "sa-1"},
        },
    });
    assert_eq!(part(1), claims);
    let user = world.login(token).unwrap();
    assert_eq!(user.name, "system:serviceaccount:ns:web");
    assert_eq!(user.uid, "sa-1");
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
    let extra = json!({
        "authentication.kubernetes.io/credential-id": ["JTI=id-1"],
        "authentication.kubernetes.io/node-name": ["n1"],
        "authentication.kubernetes.io/node-uid": ["node-1"],
        "authentication.kubernetes.io/pod-name": ["web-0"],
        "authentication.kubernetes.io/pod-uid": ["pod-1"],
    });
    assert_eq!(json!(user.extra), extra);
}

#[test]
fn a_token_is_invalid_after_its_account_or_bound_object_is_deleted() {
    let account = "/core/serviceaccounts/ns/web";
    let cases = [
        (json!({}), account),
        (bound_to("Pod", "web-0"), account),
        (bound_to("Pod", "web-0"), "/core/pods/ns/web-0"),
        (bound_to("Secret", "s"), "/core/secrets/ns/s"),
        (bound_to("Node", "n1"), "/core/nodes/n1"),
    ];
    for (spec, key) in cases {
        let world = World::new();
        let token = world.token(spec.clone());
        // Twice, to test that a cached result does not keep the token valid.
        assert!(world.login(&token).is_ok() && world.login(&token).is_ok());
        delete(&world.store, key);
        assert_eq!(world.login(&token).unwrap_err(), Status::unauthorized(), "{spec} without {key}");
        world.put(key, json!({"metadata": {"uid": "another"}, "spec": {"serviceAccountName": "web"}}));
        assert_eq!(world.login(&token).unwrap_err().code, 401, "{spec} with another {key}");
        assert!(world.why_not(&token).contains("UID (another) does not match claim"), "{}", world.why_not(&token));
    }
    // The node of a pod is only information.
    let world = World::new();
    let token = world.token(bound_to("Pod", "web-0"));
    delete(&world.store, "/core/nodes/n1");
    assert!(world.login(&token).is_ok());
}

#[test]
fn a_terminating_account_is_valid_for_a_minute() {
    let world = World::new();
    let token = world.token(json!({}));
    let going = json!({"metadata": {"uid": "sa-1", "deletionTimestamp": "2027-01-15T08:00:00Z"}});
    world.put("/core/serviceaccounts/ns/web", going);
    assert!(world.login(&token).is_ok());
    world.bench.advance(60);
    assert!(world.login(&token).is_ok());
    world.bench.advance(1);
    assert_eq!(world.why_not(&token), "service account \"web\" has been deleted");
}

#[test]
fn times_audiences_issuer_and_signature_are_checked() {
    let world = World::new();
    let token = world.token(json!({"expirationSeconds": 600}));
    // A server whose clock is up to a minute ahead or behind accepts the token.
    world.bench.advance(600 + 60);
    assert!(world.login(&token).is_ok());
    world.bench.advance(1);
    assert_eq!(world.why_not(&token), "service account token has expired");
    world.bench.advance(-661 - 60);
    assert!(world.login(&token).is_ok());
    world.bench.advance(-1);
    assert_eq!(world.why_not(&token), "service account token is not valid yet");
    world.bench.advance(61);

    let elsewhere = world.token(json!({"audiences": ["vault"]}));
    assert_eq!(
        world.why_not(&elsewhere),
        format!("token audiences [\"vault\"] is invalid for the target audiences [{DEFAULT_ISSUER:?}]")
    );
    let there = ["other".to_owned(), "vault".to_owned()];
    assert_eq!(world.authenticator.authenticate_token(&elsewhere, &there).unwrap().1, ["vault"]);

    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (head, claims) = signed.split_once('.').unwrap();
    let none = BASE64.encode(r#"{"alg":"none","kid":""}"#);
    let forged = [
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{head}.{}.{signature}", BASE64.encode("{}")),
        format!("{signed}.{}", BASE64.encode([0; 64])),
        format!("{signed}.{}", BASE64.encode([0; 3])),
        format!("{signed}.!!!"),
        signed.to_owned(),
        "a.b.c".to_owned(),
        "..".to_owned(),
        "x".repeat(100_000),
    ];
    for text in forged {
        assert_eq!(world.login(&text).unwrap_err(), Status::unauthorized());
        assert_eq!(world.why_not(&text), "invalid bearer token");
    }
    // A token of another cluster, for an account with the same name and uid.
    let other = World::new();
    assert_eq!(world.why_not(&other.token(json!({}))), "invalid bearer token");
    let key = &world.identity.service_account_key_pem;
    let renamed = ServiceAccountTokens::new(key, "https://other", &[], world.store.clone()).unwrap();
    let now = world.env.clock.now();
    assert!(renamed.verify(&token, &[DEFAULT_ISSUER.to_owned()], now).is_err());
}

#[test]
fn bad_requests_are_refused_in_upstreams_words() {
    let world = World::new();
    world.put("/core/pods/ns/other", json!({"metadata": {"uid": "p"}, "spec": {"serviceAccountName": "default"}}));
    let invalid = "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: ";
    let cases = [
        (json!({"expirationSeconds": 599}), 422, format!("{invalid}599: may not specify a duration less than 10 minutes")),
        (
            json!({"expirationSeconds": 4_294_967_297_i64}),
            422,
            format!("{invalid}4294967297: may not specify a duration larger than 2^32 seconds"),
        ),
        (bound_to("Pod", "nope"), 404, "pods \"nope\" not found".to_owned()),
        (
            bound_to("Pod", "other"),
            400,
            "cannot bind token for serviceaccount \"web\" to pod running with different serviceaccount name.".to_owned(),
        ),
        (bound_to("ConfigMap", "x"), 400, "cannot bind token to object of type /v1, Kind=ConfigMap".to_owned()),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "old"}}),
            409,
            "Operation cannot be fulfilled on Pod \"web-0\": the UID in the bound object reference (old) does not match \
             the UID in record. The object might have been deleted and then recreated"
                .to_owned(),
        ),
    ];
    for (spec, code, message) in cases {
        let status = world.request(spec).unwrap_err();
        assert_eq!((status.code, status.message), (code, message));
    }
    assert!(world.request(json!({"expirationSeconds": 1_i64 << 32})).is_ok());
    delete(&world.store, "/core/serviceaccounts/ns/web");
    assert_eq!(world.request(json!({})).unwrap_err().message, "serviceaccounts \"web\" not found");
}

#[test]
fn certificates_tokens_and_no_credentials() {
    let world = World::new();
    let now = world.env.clock.now();
    let admin = super::certs::certificate(&world.identity.admin.certificate_pem).unwrap();
    let foreign = super::certs::certificate(&Identity::make(&[], now).unwrap().admin.certificate_pem).unwrap();
    let name = |headers: HeaderMap, peer: Option<&[u8]>| {
        world.authenticator.authenticate(&headers, peer).map(|user| user.name).map_err(|status| status.code)
    };
    let other_scheme = {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic am9lOnB3"));
        headers
    };
    let anonymous = || Ok("system:anonymous".to_owned());
    assert_eq!(name(HeaderMap::new(), None), anonymous());
    assert_eq!(name(other_scheme, None), anonymous());
    assert_eq!(name(bearer("static"), None), Ok("joe".to_owned()));
    assert_eq!(name(bearer("statiC"), None), Err(401));
    assert_eq!(name(HeaderMap::new(), Some(&admin)), Ok("kubernetes-admin".to_owned()));
    assert_eq!(name(bearer("wrong"), Some(&admin)), Ok("kubernetes-admin".to_owned()));
    assert_eq!(name(HeaderMap::new(), Some(&foreign)), Err(401));
    assert_eq!(name(bearer("static"), Some(&foreign)), Ok("joe".to_owned()));
    assert_eq!(name(HeaderMap::new(), Some(b"rubbish")), Err(401));
}

#[test]
fn the_published_key_verifies_a_token() {
    let world = World::new();
    let token = world.token(json!({}));
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let jwks = world.authenticator.tokens.jwks();
    let key = &jwks["keys"][0];
    let coordinate = |name: &str| BASE64.decode(key[name].as_str().unwrap()).unwrap();
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point);
    key.verify(signed.as_bytes(), &BASE64.decode(signature).unwrap()).unwrap();
    let document = world.authenticator.tokens.openid_configuration("https://127.0.0.1:6443/");
    assert_eq!(document["issuer"], DEFAULT_ISSUER);
    assert_eq!(document["jwks_uri"], "https://127.0.0.1:6443/openid/v1/jwks");
}

#[test]
fn token_reviews_return_the_user_of_a_token() {
    let world = World::new();
    let ask = |spec: Value| {
        crate::authz::reviews::token(&world.authenticator, json!({"spec": spec})).map(|review| review["status"].clone())
    };
    let status = ask(json!({"token": "static"})).unwrap();
    let user = json!({"username": "joe", "uid": "u7", "groups": ["dev", "ops", "system:authenticated"]});
    assert_eq!(status, json!({"authenticated": true, "user": user, "audiences": [DEFAULT_ISSUER]}));
    let status = ask(json!({"token": "static", "audiences": ["vault"]})).unwrap();
    assert_eq!(status["authenticated"], false);
    let token = world.token(json!({"audiences": ["vault"]}));
    let status = ask(json!({"token": token, "audiences": ["vault", "x"]})).unwrap();
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["vault"])));
    let status = ask(json!({"token": "wrong"})).unwrap();
    assert_eq!(status, json!({"authenticated": false, "user": {}, "error": "invalid bearer token"}));
    assert_eq!(ask(json!({})).unwrap_err().message, "token is required for TokenReview in authentication");
    let review = crate::authz::reviews::self_subject(json!({}), &User::anonymous());
    let anonymous = json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]});
    assert_eq!(review["status"]["userInfo"], anonymous);
}
