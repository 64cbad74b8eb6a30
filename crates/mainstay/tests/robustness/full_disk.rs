//! A disk that is full: writes are refused and say why, reads go on, and when there is room again so does everything else.
//!
//! The disk is full by a limit on the size of files, which needs no rights: the kernel refuses to let the store's file grow.

use crate::support::{PATIENCE, Running, mainstay};
use crate::talk::*;
use serde_json::json;
use std::process::Command;
use std::time::{Duration, Instant};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// In blocks of 512 bytes, as the shell counts.
const ROOM: u32 = 6 * 1024 * 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_recovers() {
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    let kubeconfig = data.path().join("kubeconfig");
    let program = mainstay(data.path());
    let mut shell = Command::new("sh");
    shell.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // A file that grows too large is an error for the program, not its end.
    let script = format!("trap '' XFSZ; ulimit -S -f {ROOM}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(program.get_program()).args(["up", "--listen", "127.0.0.1:0", "--data-dir"]);
    shell.arg(data.path().join("data")).arg("--kubeconfig").arg(&kubeconfig);
    let mut program = Running::start(shell);
    tokio::task::block_in_place(|| program.line_with(&["Ctrl-C"]));
    let client = connect(&kubeconfig).await;

    let map = |at: u32| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{at}")}, "data": {"pad": "x".repeat(100_000)}});
    let mut kept = 0;
    let (code, why) = loop {
        match ask(&client, "POST", MAPS, Some(&map(kept))).await {
            Answer::Done(_) => kept += 1,
            Answer::Refused(code, why) => break (code, why),
            Answer::None => panic!("the server is gone after {kept} writes"),
        }
        assert!(kept < 1000, "the disk is never full");
    };
    assert_eq!(code, 503, "{why}");
    assert!(
        why.starts_with("the store does not take writes: the disk failed: ") && why.contains("File too large"),
        "{why}"
    );
    assert!(kept > 5, "it was full from the start");
    // Reads go on, health says what is wrong, and leases are refused like all writes: nobody is told that one was kept.
    let names = |list: &serde_json::Value| list["items"].as_array().expect("items").len();
    let list = done(&client, "GET", MAPS, None).await;
    assert_eq!(names(&list), kept as usize + 1, "what was acknowledged, and the CA's certificate");
    let health = http::Request::get("/readyz?verbose").body(Vec::new()).expect("a request");
    let said = client.request_text(health).await.expect_err("it is not ready").to_string();
    assert!(said.contains("store failed") || said.contains("500"), "{said}");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let refused = ask(&client, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", Some(&lease)).await;
    assert!(matches!(refused, Answer::Refused(503, _)), "{refused:?}");

    // Room again: health returns by itself, and the write goes through.
    let freed =
        Command::new("prlimit").args(["--fsize=unlimited:unlimited", "--pid", &program.id().to_string()]).status();
    assert!(freed.expect("prlimit is there").success());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = http::Request::get("/readyz").body(Vec::new()).expect("a request");
        if client.request_text(health).await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "health does not return");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    done(&client, "POST", MAPS, Some(&map(kept))).await;
    tokio::task::block_in_place(|| {
        program.kill();
        program.finish()
    });
    // And all of it is there afterwards.
    let mut again = mainstay(data.path());
    again.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data.path().join("data"));
    again.arg("--kubeconfig").arg(&kubeconfig);
    let mut program = Running::start(again);
    tokio::task::block_in_place(|| program.line_with(&["Ctrl-C"]));
    let list = done(&connect(&kubeconfig).await, "GET", MAPS, None).await;
    assert_eq!(names(&list), kept as usize + 2);
}
