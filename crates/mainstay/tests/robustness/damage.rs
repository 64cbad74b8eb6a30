//! Files that are not as they were left: noticed when the program starts, in one line, or without effect. Never is something else served.

use crate::support::{Cluster, Place, Running, mainstay};
use crate::talk::*;
use kube::config::{Kubeconfig, NamedCluster};
use serde_json::{Value, json};
use std::path::Path;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// How a server ends before its files are damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Stopped,
    /// Then the last commit may be one that was not finished, and the file alone does not say whether it was.
    Killed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_stores_are_refused_in_one_line_or_served_whole() {
    let tries = setting("MAINSTAY_TEST_FLIPS", 12);
    let dice = Dice::new(setting("MAINSTAY_TEST_SEED", u64::from(std::process::id())));
    for end in [End::Stopped, End::Killed] {
        damage(&dice, tries, end).await;
    }
}

async fn damage(dice: &Dice, tries: u64, end: End) {
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    let truth = fill(data.path(), end).await;
    let at = |name: &str| data.path().join("store").join(name);
    let whole = std::fs::read(at("store.redb")).expect("the store's file");
    let mark = std::fs::read(at("store.mark")).expect("the store's mark");
    let put = |bytes: &[u8]| {
        std::fs::write(at("store.redb"), bytes).expect("the store's file");
        // Whoever was served before may have left another.
        std::fs::write(at("store.mark"), &mark).expect("the store's mark");
    };
    let used = whole.iter().rposition(|byte| *byte != 0).expect("something is in it");
    let (mut refused, mut harmless) = (0, 0);
    for n in 0..tries {
        let mut bytes = whole.clone();
        let below = |end: usize| usize::try_from(dice.below(end as u64)).expect("it fits");
        let what = match n % 6 {
            0 => {
                bytes.truncate(below(whole.len()));
                format!("cut off at {}", bytes.len())
            }
            1 => {
                // A sector that was never written.
                let sector = below(used / 512) * 512;
                bytes[sector..sector + 512].fill(0);
                format!("sector at {sector} is empty")
            }
            _ => {
                // Headers are small, and deserve their share.
                let (place, bit) = (below(if n % 6 == 2 { 320 } else { used }), below(8));
                bytes[place] ^= 1 << bit;
                format!("bit {bit} of byte {place} is flipped")
            }
        };
        put(&bytes);
        match serve(data.path()).await {
            Ok(served) => {
                assert!(served.maps == truth, "{what}: something else is served");
                harmless += 1;
            }
            Err(lines) => {
                assert_eq!(lines.len(), 1, "{what}: one clear line: {lines:?}");
                assert!(lines[0].starts_with("mainstay: the store is damaged: "), "{what}: {lines:?}");
                refused += 1;
            }
        }
    }
    println!("{end:?}, {tries} times damaged: {refused} refused, {harmless} without effect");
    assert!(refused > 0);
    put(&whole);
    assert!(serve(data.path()).await.expect("it is whole again").maps == truth);
}

/// The mark is read when a store opens: one that says nothing is said to do so, and one that is ahead of the store is believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_mark_is_said_and_a_store_behind_its_mark_is_refused() {
    let dice = Dice::new(setting("MAINSTAY_TEST_SEED", u64::from(std::process::id())));
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    let truth = fill(data.path(), End::Killed).await;
    let at = |name: &str| data.path().join("store").join(name);
    let (store, whole) = (std::fs::read(at("store.redb")).unwrap(), std::fs::read(at("store.mark")).unwrap());
    let revision = u64::from_le_bytes(whole[4..12].try_into().unwrap());
    assert_eq!(whole, mark(1, revision), "a mark as the test makes it is one as the program does");
    let flipped = || {
        let mut bytes = whole.clone();
        let bit = usize::try_from(dice.below(8 * whole.len() as u64)).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        (format!("bit {bit} is flipped"), Some(bytes), Mark::Said)
    };
    let mut cases = vec![
        ("missing".to_owned(), None, Mark::Quiet),
        // What a crash of the machine may leave, as it does a torn one.
        ("empty".to_owned(), Some(Vec::new()), Mark::Quiet),
        ("behind".to_owned(), Some(mark(1, revision - 1)), Mark::Quiet),
        ("full of zeros".to_owned(), Some(vec![0; whole.len()]), Mark::Said),
        ("of a newer version".to_owned(), Some(mark(2, revision + 1)), Mark::Said),
        ("ahead".to_owned(), Some(mark(1, revision + 1)), Mark::Believed),
        ("far ahead".to_owned(), Some(mark(1, u64::MAX)), Mark::Believed),
    ];
    cases
        .extend([1, 11, whole.len() - 1].map(|end| (format!("cut at {end}"), Some(whole[..end].to_vec()), Mark::Said)));
    cases.extend((0..setting("MAINSTAY_TEST_FLIPS", 12) / 4).map(|_| flipped()));
    for (what, bytes, expected) in cases {
        std::fs::write(at("store.redb"), &store).unwrap();
        match &bytes {
            Some(bytes) => std::fs::write(at("store.mark"), bytes).unwrap(),
            None => std::fs::remove_file(at("store.mark")).unwrap(),
        }
        match serve(data.path()).await {
            Ok(served) => {
                assert!(served.maps == truth, "{what}: something else is served");
                let said = served.said.iter().any(|line| line.contains("store.mark cannot be read; "));
                assert_eq!(said, expected == Mark::Said, "{what}: {:?}", served.said);
                assert!(expected != Mark::Believed, "{what}: it is served");
                assert_eq!(std::fs::read(at("store.mark")).unwrap(), whole, "{what}: the mark is as it was again");
            }
            Err(lines) => {
                assert_eq!(expected, Mark::Believed, "{what}: {lines:?}");
                is_behind(&lines);
                assert_eq!(std::fs::read(at("store.mark")).ok(), bytes, "{what}: what was refused is left alone");
            }
        }
    }
    // A mark without its store is no new store. What the refusal says helps.
    std::fs::write(at("store.mark"), &whole).unwrap();
    std::fs::remove_file(at("store.redb")).unwrap();
    is_behind(&serve(data.path()).await.err().expect("everything is gone"));
    std::fs::write(at("store.redb"), &store).unwrap();
    std::fs::write(at("store.mark"), mark(1, revision + 1)).unwrap();
    is_behind(&serve(data.path()).await.err().expect("something is gone"));
    std::fs::remove_file(at("store.mark")).unwrap();
    assert!(serve(data.path()).await.expect("it goes on with what is left").maps == truth);
    // Nor does it stop anybody that there can be none.
    std::fs::remove_file(at("store.mark")).unwrap();
    std::fs::create_dir(at("store.mark")).unwrap();
    let served = serve(data.path()).await.expect("it is said, and stops nobody");
    assert!(served.maps == truth);
    assert!(served.said.iter().any(|line| line.contains("store.mark cannot be read; ")), "{:?}", served.said);
}

/// What is to become of a mark.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mark {
    /// It says less, as it may after a crash.
    Quiet,
    /// It says nothing, and the log says so.
    Said,
    Believed,
}

/// A mark as `crates/store/FORMAT.md` describes it.
fn mark(version: u32, revision: u64) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend(revision.to_le_bytes());
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    let crc = bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
    bytes.extend((!crc).to_le_bytes());
    bytes
}

fn is_behind(lines: &[String]) {
    assert_eq!(lines.len(), 1, "one clear line: {lines:?}");
    assert!(lines[0].starts_with("mainstay: the store is damaged: writes up to revision "), "{lines:?}");
    assert!(lines[0].contains("restore a backup") && lines[0].contains("or delete store.mark"), "{lines:?}");
}

/// Makes a store of some size and answers what it holds when its server has ended.
pub async fn fill(data: &Path, end: End) -> Value {
    let cluster = tokio::task::block_in_place(|| Cluster::start_server(Place::Directory(data)));
    let client = connect(&cluster.kubeconfig).await;
    let writes = (0..60).map(|at| {
        let pad = format!("{at}-").repeat(50 * (at % 7));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{at}")}, "data": {"pad": pad}});
        let client = client.clone();
        async move { done(&client, "POST", MAPS, Some(&map)).await }
    });
    futures::future::join_all(writes).await;
    for at in (0..60).step_by(5) {
        done(&client, "DELETE", &format!("{MAPS}/m{at}"), None).await;
    }
    let truth = done(&client, "GET", MAPS, None).await;
    tokio::task::block_in_place(|| match end {
        End::Stopped => {
            let (code, lines) = cluster.stop();
            assert_eq!(code, Some(0), "{lines:?}");
        }
        End::Killed => cluster.crash(),
    });
    truth
}

/// What a server on these files served.
pub struct Served {
    pub maps: Value,
    /// What it said meanwhile.
    pub said: Vec<String>,
    /// How it lets its administrator in.
    pub kubeconfig: Kubeconfig,
    /// What it checks tokens by.
    pub token_keys: Value,
}

/// What a server on these files serves, or what it says instead.
pub async fn serve(data: &Path) -> Result<Served, Vec<String>> {
    serve_whom(data, None).await
}

/// The same; the holder of a kubeconfig of before must be let in, too.
pub async fn serve_whom(data: &Path, before: Option<&Kubeconfig>) -> Result<Served, Vec<String>> {
    let home = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut command = mainstay(home.path());
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data);
    let mut program = Running::start(command);
    let (served, program) = match tokio::task::block_in_place(|| program.line_or_end(&["is ready"])) {
        Ok(_) => {
            let kubeconfig = data.join("kubeconfig");
            let client = connect(&kubeconfig).await;
            let maps = done(&client, "GET", MAPS, None).await;
            let token_keys = done(&client, "GET", "/openid/v1/jwks", None).await;
            let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
            if let Some(before) = before {
                // It listens elsewhere now.
                let mut before = before.clone();
                before.clusters = here(&before, &kubeconfig);
                assert_eq!(done(&connect_by(before).await, "GET", MAPS, None).await, maps);
            }
            program.kill();
            (Some(Served { maps, said: Vec::new(), kubeconfig, token_keys }), program)
        }
        Err(_) => (None, program),
    };
    let (status, said) = tokio::task::block_in_place(|| program.finish());
    assert!(!status.success());
    served.map(|served| Served { said: said.clone(), ..served }).ok_or(said)
}

/// The clusters of a kubeconfig, at the address that another one has.
fn here(kubeconfig: &Kubeconfig, other: &Kubeconfig) -> Vec<NamedCluster> {
    let address = other.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
    let mut clusters = kubeconfig.clusters.clone();
    clusters[0].cluster.as_mut().expect("a cluster").server = address;
    clusters
}
