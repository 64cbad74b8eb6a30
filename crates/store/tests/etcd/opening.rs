//! Opening a store: formats, certificates, users, and what is refused.

use crate::support::{Road, Traffic, gateway, impatient, open, place, put_by_hand, shared, text, until, write};
use base64::Engine;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use store::etcd::{Config, Tls, User};
use store::suite::{Members, directory, finish};
use store::{Error, Etcd, OpenError, Options};

async fn refusal(config: &Config) -> OpenError {
    Etcd::open(config, finish, Options::default()).await.err().expect("opening must be refused")
}

/// A store of a newer version is not changed. If a newer version appears while a server runs, that server can no longer
/// write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_formats_are_refused() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let store = open(&config).await;
    write(&*store, "/a", "1").await.unwrap();
    put_by_hand(&config, "/format", "version=2\nsomething=new\n").await;
    let refused = write(&*store, "/a", "2").await.unwrap_err();
    assert!(matches!(&refused, Error::Unavailable(why) if why.contains("replaced or upgraded")), "{refused:?}");
    assert!(matches!(store.barrier().await, Err(Error::Unavailable(_))), "reads must not be confirmed either");
    assert!(store.healthy().is_err());
    let newer = refusal(&config).await;
    assert_eq!(newer.to_string(), "the store was written by a newer version (format 2; this one reads up to 1)");
}

/// A server that has not yet seen the newer version cannot write either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_missed_a_newer_format_cannot_write() {
    let Some(members) = shared() else { return };
    let config = impatient(&place(&members));
    let road = Road::to(&config).await;
    let behind = open(&road.through(&config)).await;
    write(&*behind, "/a", "1").await.unwrap();
    // From now on the server receives nothing, but its requests arrive.
    road.set(Traffic::OneWay);
    put_by_hand(&config, "/format", "version=2\n").await;
    assert!(write(&*behind, "/a", "2").await.is_err());
    let (stored, new) = (base64("/a", &config), base64::engine::general_purpose::STANDARD.encode("\n\u{1}1"));
    let found = gateway(&config, "kv/range", &format!(r#"{{"key":"{stored}"}}"#)).await;
    assert!(found.contains(&new), "the value was changed: {found}");
}

fn base64(key: &str, config: &Config) -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("{}/data{key}", config.prefix))
}

/// A store as version 1 first wrote it must stay readable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_format_opens() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    put_by_hand(&config, "/format", "version=1\noffset=1000\n").await;
    // A row: field 1 is the value; field 2, the expiry time, is absent.
    put_by_hand(&config, "/data/core/x", "\n\u{5}value").await;
    let store = open(&config).await;
    assert_eq!(text(&*store, "/core/x").as_deref(), Some("value"));
    let record = store.get("/core/x").unwrap();
    assert!(record.modified > 1000 && record.created == record.modified, "{record:?}");
    let written = write(&*store, "/core/x", "new").await.unwrap();
    assert!(written.revision > record.modified);
    assert_eq!(written.records[0].created, record.created);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_other_programs_are_not_opened_as_a_store() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    put_by_hand(&config, "/registry/pods/x", "of a Kubernetes server").await;
    assert!(matches!(refusal(&config).await, OpenError::NotOurs));
    let damaged = place(&members);
    put_by_hand(&damaged, "/format", "rubbish").await;
    assert!(matches!(refusal(&damaged).await, OpenError::Damaged(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_etcd_is_named_in_the_error() {
    let unauthenticated = impatient(&Config::parse("etcd://127.0.0.1:1").unwrap());
    let refused = refusal(&unauthenticated).await;
    assert!(matches!(&refused, OpenError::Unreachable(why) if why.contains("127.0.0.1:1")), "{refused}");
}

/// A transaction that is too large for etcd is refused permanently, and the store stays usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_too_large_is_refused() {
    let Some(members) = shared() else { return };
    let store = open(&place(&members)).await;
    for size in [1_700_000, 9_000_000] {
        let refused = write(&*store, "/large", &"x".repeat(size)).await.unwrap_err();
        assert!(matches!(refused, Error::TooLarge(_)), "{size}: {refused:?}");
    }
    write(&*store, "/large", &"x".repeat(1_400_000)).await.unwrap();
    assert_eq!(text(&*store, "/large").unwrap().len(), 1_400_000);
}

/// Mutual TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked() {
    let place = directory();
    std::fs::create_dir_all(&place).unwrap();
    let (ca, issuer) = authority();
    let (server, server_key) = leaf(&issuer, "127.0.0.1");
    let (client, client_key) = leaf(&issuer, "mainstay");
    for (name, pem) in [("ca.crt", &ca), ("server.crt", &server), ("server.key", &server_key)] {
        std::fs::write(place.join(name), pem).unwrap();
    }
    let secure = [
        "--cert-file=DIR/server.crt",
        "--key-file=DIR/server.key",
        "--trusted-ca-file=DIR/ca.crt",
        "--client-cert-auth",
    ];
    let Some(members) = Members::start_in(place, 1, &secure) else { return };
    let plain = impatient(&Config::parse(&members.url()).unwrap());
    assert!(matches!(refusal(&plain).await, OpenError::Unreachable(_)), "plain text must fail");
    let unauthenticated = Config { tls: Some(Tls { ca: ca.clone(), client: None }), ..plain.clone() };
    assert!(matches!(refusal(&unauthenticated).await, OpenError::Unreachable(_)), "a client certificate is required");
    let (other_ca, _) = authority();
    let fooled = Config { tls: Some(Tls { ca: other_ca, client: None }), ..plain.clone() };
    assert!(matches!(refusal(&fooled).await, OpenError::Unreachable(_)), "another CA must not be trusted");
    let tls = Some(Tls { ca, client: Some((client, client_key)) });
    let known = Config { tls, ..plain };
    let store = open(&known).await;
    write(&*store, "/a", "1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_again_when_etcd_lost_their_token() {
    let Some(mut members) = Members::start(1) else { return };
    let open_to_all = Config::parse(&members.url()).unwrap();
    until("etcd answers", async || Etcd::open(&open_to_all, finish, Options::default()).await.ok()).await;
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/enable", "{}"),
    ] {
        gateway(&open_to_all, path, body).await;
    }
    let user = |name: &str, password: &str| Config {
        user: Some(User { name: name.to_owned(), password: password.to_owned() }),
        ..impatient(&open_to_all)
    };
    for (config, why) in
        [(impatient(&open_to_all), "user name is empty"), (user("root", "wrong"), "authentication failed")]
    {
        let refused = refusal(&config).await;
        assert!(matches!(&refused, OpenError::Refused(said) if said.contains(why)), "{refused}");
    }
    let store = open(&user("root", "secret")).await;
    write(&*store, "/a", "1").await.unwrap();
    members.kill(0);
    members.restart(0);
    until("the user is logged in again", async || write(&*store, "/a", "2").await.ok()).await;
    store.barrier().await.unwrap();
    assert_eq!(text(&*store, "/a").as_deref(), Some("2"));
}

fn authority() -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate, Issuer::new(params, key))
}

fn leaf(issuer: &Issuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}
