//! Files that are not as they were left: noticed when the program starts, in one line, or without effect. Never is something else served.

use crate::support::{Cluster, Place, Running, mainstay};
use crate::talk::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// How a server ends before its files are damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
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
                assert!(served == truth, "{what}: something else is served");
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
    assert!(serve(data.path()).await.expect("it is whole again") == truth);
}

/// Makes a store of some size and answers what it holds when its server has ended.
async fn fill(data: &Path, end: End) -> Value {
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

/// What a server on these files serves, or what it says instead.
async fn serve(data: &Path) -> Result<Value, Vec<String>> {
    let home = tempfile::TempDir::new().expect("a temporary directory can be made");
    let kubeconfig: PathBuf = home.path().join("kubeconfig");
    let mut command = mainstay(home.path());
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).arg("--kubeconfig").arg(&kubeconfig);
    let mut program = Running::start(command);
    match tokio::task::block_in_place(|| program.line_or_end(&["is ready"])) {
        Ok(_) => {
            let client = connect(&kubeconfig).await;
            let served = done(&client, "GET", MAPS, None).await;
            tokio::task::block_in_place(|| {
                program.kill();
                program.finish()
            });
            Ok(served)
        }
        Err(lines) => {
            let (status, _) = tokio::task::block_in_place(|| program.finish());
            assert!(!status.success());
            Err(lines)
        }
    }
}
