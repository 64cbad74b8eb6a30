//! The certificates and keys of a data directory. They are in the store, where damage is detected as usual. Older
//! servers kept them in `identity.pem`, which is adopted completely or refused. No user loses access without a message.

use crate::damage::{End, Served, fill, serve, serve_whom};
use crate::talk::*;
use kube::config::Kubeconfig;
use serde_json::Value;
use server::authn::{self, Identity};
use std::path::Path;
use store::{Embedded, Operation, Options, Txn};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_identity_is_refused_in_one_line_or_taken_over_whole() {
    let dice = Dice::new(setting("MAINSTAY_TEST_SEED", u64::from(std::process::id())));
    let names = authn::serving_names("127.0.0.1", &[]);
    let identity = Identity::make(&names, jiff::Timestamp::now()).expect("an identity");
    let text = identity.to_pem();
    let admin = &identity.admin;
    let before = authn::kubeconfig("", &identity.ca.certificate_pem, &admin.certificate_pem, &admin.key_pem);
    let before = Kubeconfig::from_yaml(&before).expect("a kubeconfig");
    let taken = taken_over(text.as_bytes(), &before).await.expect("it is whole");
    let token_keys = taken.token_keys;
    assert!(taken.said.iter().all(|line| !line.contains("new ones are made")), "{:?}", taken.said);

    let below = |end: usize| usize::try_from(dice.below(end as u64)).expect("it fits");
    let mut cases = vec![("nothing in it".to_owned(), Vec::new())];
    let end = below(text.trim_end().len());
    cases.push((format!("cut off at {end}"), text.as_bytes()[..end].to_vec()));
    // Damage each part, however short it is.
    let parts = [
        "# ca.crt",
        "# ca.key",
        "# serving.crt",
        "# serving.key",
        "# admin.crt",
        "# admin.key",
        "# service-account.key",
    ];
    let begins: Vec<usize> = parts.iter().map(|part| text.find(part).expect("a part")).chain([text.len()]).collect();
    for n in 0..usize::try_from(setting("MAINSTAY_TEST_FLIPS", 12)).expect("it fits") {
        let (from, to) = (begins[n % parts.len()], begins[n % parts.len() + 1]);
        let (place, bit) = (from + below(to - from), below(8));
        let mut bytes = text.clone().into_bytes();
        bytes[place] ^= 1 << bit;
        cases.push((format!("{}: bit {bit} of byte {place} is flipped", parts[n % parts.len()]), bytes));
    }
    let mut refused = 0;
    for (what, bytes) in cases {
        match taken_over(&bytes, &before).await {
            Ok(served) => assert_eq!(served.token_keys, token_keys, "{what}: tokens of before mean nothing"),
            Err(lines) => {
                assert_eq!(lines.len(), 1, "{what}: one clear line: {lines:?}");
                assert!(lines[0].contains("identity.pem: the stored identity is unreadable: "), "{what}: {lines:?}");
                assert!(
                    lines[0].contains("; put a copy of it back, or remove it to go on with new"),
                    "{what}: {lines:?}"
                );
                assert_eq!(lines[0].matches("unreadable").count(), 1, "{what}: said once: {lines:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 2, "{refused}");
}

/// Starts a server in a directory with only this identity; a user with access before must still have it.
async fn taken_over(identity: &[u8], before: &Kubeconfig) -> Result<Served, Vec<String>> {
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    std::fs::write(data.path().join("identity.pem"), identity).expect("the identity's file");
    serve_whom(data.path(), Some(before)).await
}

/// A store without an identity, as older servers left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_identity_is_said_and_a_lost_kubeconfig_is_made_again() {
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    let truth = fill(data.path(), End::Stopped).await;
    let first = serve(data.path()).await.expect("it is whole");
    // The credentials of kubeconfigs are in the store: the file is written again, whatever it contains.
    for rubbish in ["", "apiVersion: v1\nkind: Conf", "\u{0}\u{1}"] {
        std::fs::write(data.path().join("kubeconfig"), rubbish).expect("the kubeconfig");
        let again = serve_whom(data.path(), Some(&first.kubeconfig)).await.expect("it is whole");
        assert!(again.maps == truth);
        assert_eq!(again.token_keys, first.token_keys);
    }

    let kept = forget_identity(data.path()).await;
    let anew = serve(data.path()).await.expect("it goes on");
    let warned = |served: &Served| {
        let lines = served.said.iter();
        lines
            .filter(|line| line.contains("the store has objects, but no certificates and keys: new ones are made"))
            .count()
    };
    assert_eq!(warned(&anew), 1, "{:?}", anew.said);
    assert!(users(&anew.maps) == users(&truth));
    assert_ne!(anew.token_keys, first.token_keys);
    // Logged when it happens; from then on the store has new ones.
    let later = serve_whom(data.path(), Some(&anew.kubeconfig)).await.expect("it goes on");
    assert_eq!((warned(&later), &later.token_keys), (0, &anew.token_keys));

    // With the older servers' file it is the same server.
    forget_identity(data.path()).await;
    std::fs::write(data.path().join("identity.pem"), kept).expect("the file");
    let back = serve_whom(data.path(), Some(&first.kubeconfig)).await.expect("it is whole");
    assert_eq!((warned(&back), &back.token_keys), (0, &first.token_keys));
    assert!(users(&back.maps) == users(&truth));
}

/// What users wrote: without the CA certificate and the current revision.
fn users(maps: &Value) -> Vec<&Value> {
    maps["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter(|map| map["metadata"]["name"] != "kube-root-ca.crt")
        .collect()
}

/// Removes the identity from an unused store, and returns it.
async fn forget_identity(data: &Path) -> String {
    let key = "/mainstay/identity";
    let store = Embedded::open(&data.join("store"), server::codec::finish, Options::default()).expect("a store");
    let kept: Value = serde_json::from_slice(&store.get(key).expect("an identity").value).expect("JSON");
    let operations = vec![Operation::Delete { key: key.into(), last: None }];
    store.txn(Txn { conditions: Vec::new(), operations }).await.expect("it is forgotten");
    store.close().await;
    kept["identity"].as_str().expect("a text").to_owned()
}
