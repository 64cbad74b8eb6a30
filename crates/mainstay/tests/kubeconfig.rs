//! `mainstay kubeconfig`: kubeconfigs for the administrator and for users, printed, written and merged.

mod support;

use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::program::run;
use support::{Cluster, Place, Running, Said, kubectl_by, mainstay};
use tempfile::TempDir;

/// `mainstay kubeconfig` with these arguments, for the server of this data directory.
fn kubeconfig(home: &Path, data: &Path, arguments: &[&str]) -> Said {
    let mut command = mainstay(home);
    command.arg("kubeconfig").arg("--data-dir").arg(data).args(arguments);
    run(command, "")
}

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// kubectl that may fail.
fn try_kubectl(home: &Path, file: &Path, arguments: &str) -> Said {
    let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    let mut command = Command::new(program);
    command.env("HOME", home).env("KUBECONFIG", file).args(support::words(arguments));
    run(command, "")
}

/// A user gets a certificate of the CA with user, groups and lifetime, from a running server and from a stopped one.
#[test]
fn a_user_is_known_by_name_and_groups_and_has_bound_rights_only() {
    let (home, data) = (directory(), directory());
    let cluster = Cluster::start_server(Place::Directory(data.path()));
    let Some(admin) = kubectl_by(home.path(), &cluster.kubeconfig) else { return };
    let arguments = ["--user", "jane", "--group", "dev", "--group", "ops", "--for", "30m"];
    let said = kubeconfig(home.path(), data.path(), &arguments);
    assert!(said.err.contains("The certificate is valid until 20"), "{said}");
    let text = said.succeeded();
    assert!(!text.contains("mainstay-admin"), "{text}");
    let file = home.path().join("jane");
    std::fs::write(&file, text).expect("it can be written");
    let jane = kubectl_by(home.path(), &file).expect("it was there before");
    let whoami = |said: String| serde_json::from_str::<Value>(&said).expect("JSON")["status"]["userInfo"].clone();
    let who = whoami(jane("auth whoami -o json", ""));
    assert_eq!(who["username"], "jane");
    assert_eq!(who["groups"], serde_json::json!(["dev", "ops", "system:authenticated"]));
    let refused = try_kubectl(home.path(), &file, "get pods").failed();
    assert!(refused.contains("User \"jane\" cannot list resource \"pods\""), "{refused}");
    admin("create clusterrolebinding dev --clusterrole=view --group=dev", "");
    jane("get pods", "");
    // The user cannot have certificates signed.
    let mut command = mainstay(home.path());
    command.args(["kubeconfig", "--user", "eve", "--admin-kubeconfig"]).arg(&file);
    let refused = run(command, "");
    assert_eq!(refused.code(), 2, "{refused}");
    let refused = refused.failed();
    assert!(refused.contains("User \"jane\" cannot sign resource \"clientcertificates\""), "{refused}");
    // The administrator's kubeconfig is enough if the data directory is elsewhere.
    let mut command = mainstay(home.path());
    command.args(["kubeconfig", "--user", "joe", "--admin-kubeconfig"]).arg(&cluster.kubeconfig);
    std::fs::write(&file, run(command, "").succeeded()).expect("it can be written");
    assert_eq!(whoami(jane("auth whoami -o json", ""))["username"], "joe");

    let address = cluster.url.trim_start_matches("https://").to_owned();
    let path = cluster.kubeconfig.clone();
    std::fs::copy(&path, data.path().join("kubeconfig")).expect("it can be copied");
    cluster.stop();
    let made = kubeconfig(home.path(), data.path(), &["--user", "ann", "--group", "dev"]).succeeded();
    assert!(made.contains(&address), "the address of the last start: {made}");
    std::fs::write(&file, made).expect("it can be written");
    let mut command = mainstay(home.path());
    command.args(["server", "--listen", &address, "--data-dir"]).arg(data.path());
    let mut again = Running::start(command);
    again.line_with(&["Ctrl-C"]);
    let ann = kubectl_by(home.path(), &file).expect("it was there before");
    assert_eq!(whoami(ann("auth whoami -o json", ""))["username"], "ann");
    ann("get pods", "");
}

/// `--merge` keeps all other entries, and kubectl works with the result.
#[test]
fn merging_keeps_everything_else_and_names_the_context() {
    let (home, data) = (directory(), directory());
    let _cluster = Cluster::start_server(Place::Directory(data.path()));
    let said = kubeconfig(home.path(), data.path(), &["--merge"]).succeeded();
    let file = home.path().join(".kube/config");
    assert!(said.contains("Merged the context mainstay into") && said.contains(&file.display().to_string()), "{said}");
    assert!(said.contains("It is the current context."), "{said}");
    let Some(kubectl) = kubectl_by(home.path(), &file) else { return };
    kubectl("get namespaces", "");
    // Another cluster is current, and has a user with a credential plugin; a namespace was set; there are comments.
    kubectl("config set-cluster prod --server=https://prod.example --tls-server-name=x", "");
    kubectl("config set-credentials me --exec-command=aws --exec-api-version=client.authentication.k8s.io/v1", "");
    kubectl("config set-context prod --cluster=prod --user=me --namespace=0123", "");
    kubectl("config set-context mainstay --namespace=kube-system", "");
    kubectl("config use-context prod", "");
    let before = format!("# mine\n{}", read(&file));
    std::fs::write(&file, &before).expect("it can be written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("its mode can be set");
    let view = |arguments: &str| serde_json::from_str::<Value>(&kubectl(arguments, "")).expect("JSON");
    let known = view("config view --raw -o json");

    let said = kubeconfig(home.path(), data.path(), &["--merge"]).succeeded();
    assert!(said.contains("Nothing to change: the context mainstay is in"), "{said}");
    assert_eq!(read(&file), before);
    let said = kubeconfig(home.path(), data.path(), &["--merge", "--user", "jane", "--for", "1h"]).succeeded();
    assert!(
        said.contains("Merged the context jane@mainstay") && said.contains("kubectl --context jane@mainstay"),
        "{said}"
    );
    assert!(said.contains(".kube/config.bak is a copy of the old file"), "{said}");
    assert_eq!(read(&home.path().join(".kube/config.bak")), before);
    for path in [&file, &home.path().join(".kube/config.bak")] {
        let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    let now = view("config view --raw -o json");
    assert_eq!(now["current-context"], "prod");
    for list in ["clusters", "users", "contexts"] {
        let entries = now[list].as_array().expect("a list");
        for entry in known[list].as_array().expect("a list") {
            assert!(entries.contains(entry), "{entry} in {now}");
        }
    }
    assert_eq!(now["contexts"].as_array().map(Vec::len), Some(3));
    kubectl("--context mainstay get configmaps", "");
    assert_eq!(kubectl("--context jane@mainstay auth whoami -o jsonpath={.status.userInfo.username}", ""), "jane");
    let names: Vec<_> = std::fs::read_dir(home.path().join(".kube")).expect("it can be read").flatten().collect();
    assert_eq!(names.iter().filter(|entry| entry.file_name() != "cache").count(), 2, "no draft and no lock: {names:?}");
}

/// A file that cannot be merged into without loss is refused in one line, and not changed.
#[test]
fn files_that_cannot_be_merged_into_are_not_changed() {
    let (home, data) = (directory(), directory());
    let cluster = Cluster::start_server(Place::Directory(data.path()));
    let own = &cluster.kubeconfig;
    let at = |name: &str| home.path().join(name);
    let other = Cluster::start_server(Place::InMemory);
    for (name, text, wanted) in [
        ("broken", "clusters: [", "error converting YAML"),
        ("text", "just text", "cannot merge into"),
        ("secret", "kind: Secret\napiVersion: v1\n", "its kind is \"Secret\""),
        ("twice", "clusters: []\nclusters: []\n", "it sets a field twice"),
        ("foreign", &read(&other.kubeconfig), "its cluster mainstay is of another server"),
    ] {
        std::fs::write(at(name), text).expect("it can be written");
        let said = kubeconfig(home.path(), data.path(), &[&format!("--merge={}", at(name).display())]);
        assert_eq!((said.code(), said.err.lines().count()), (2, 1), "{said}");
        let error = said.failed();
        assert!(error.contains(wanted) && error.contains(&at(name).display().to_string()), "{name}: {error}");
        assert_eq!(read(&at(name)), text);
    }
    let merge = |name: &str, more: &[&str]| {
        let file = format!("--merge={}", at(name).display());
        kubeconfig(home.path(), data.path(), &[&[file.as_str()], more].concat())
    };
    merge("foreign", &["--name", "mine"]).succeeded();
    assert!(read(&at("foreign")).contains(&other.url), "the other server's entry stays");
    merge("foreign", &["--replace"]).succeeded();
    assert!(!read(&at("foreign")).contains(&other.url) && read(&at("foreign")).contains(&cluster.url));

    // kubectl, or a second merge, is writing the file.
    std::fs::write(at("text.lock"), "").expect("it can be written");
    assert!(merge("text", &[]).failed().contains("another program writes"));
    std::fs::create_dir(at("directory")).expect("it can be made");
    assert!(merge("directory", &[]).failed().contains("is a directory, not a regular file"));
    symlink(at("nowhere"), at("dangling")).expect("a link can be made");
    assert!(merge("dangling", &[]).failed().contains("cannot follow the link"));
    symlink(at("real"), at("link")).expect("a link can be made");
    std::fs::write(at("real"), "").expect("it can be written");
    merge("link", &[]).succeeded();
    assert!(at("link").is_symlink() && read(&at("real")).contains(&cluster.url), "the link's target is written");
    // The server writes its own file again at each start.
    let before = read(own);
    let mut command = mainstay(home.path());
    command.args(["kubeconfig", "--merge", "--data-dir"]).arg(data.path()).env("KUBECONFIG", own);
    let error = run(command, "").failed();
    assert!(error.contains("is the server's own file") && error.contains("--merge=FILE"), "{error}");
    assert_eq!(read(own), before);
    // Of several files, the first existing one is used.
    let mut command = mainstay(home.path());
    let list = std::env::join_paths([at("absent"), at("first"), at("second")]).expect("paths without colons");
    std::fs::write(at("first"), "").expect("it can be written");
    std::fs::write(at("second"), "").expect("it can be written");
    command.args(["kubeconfig", "--merge", "--data-dir"]).arg(data.path()).env("KUBECONFIG", list);
    run(command, "").succeeded();
    assert!(read(&at("first")).contains(&cluster.url) && read(&at("second")).is_empty() && !at("absent").exists());
}

#[test]
fn bad_arguments_get_one_line_with_advice() {
    let (home, data) = (directory(), directory());
    let text = data.path().display().to_string();
    for (arguments, wanted) in [
        (vec!["--user", "jane"], format!("there is no server's state in {text}: run mainstay up first")),
        (vec![], format!("there is no server's state in {text}: run mainstay up first")),
        (vec!["--user", ""], "the name of a user is empty".to_owned()),
        (vec!["--group", "dev"], "--user <NAME>".to_owned()),
        (vec!["--for", "8h"], "--user <NAME>".to_owned()),
        (
            vec!["--user", "jane", "--for", "8"],
            "a duration must be a whole number followed by ms, s, m, h or d".to_owned(),
        ),
        (vec!["--user", "jane", "--for", "9m"], "at least 10m and at most 365d".to_owned()),
        (vec!["--user", "jane", "--for", "366d"], "at least 10m and at most 365d".to_owned()),
        (vec!["--user", "jane", "--for", "99999999999999999999d"], "a duration must be a whole number".to_owned()),
        (vec!["--user", "jane", "--group", "system:masters"], "add --allow-system-names".to_owned()),
        (vec!["--user", "system:admin"], "add --allow-system-names".to_owned()),
        (vec!["--user", "jane", "--server", "10.0.0.1"], "an address must be https:// with host and port".to_owned()),
        (vec!["--name", " "], "the name of the cluster is empty".to_owned()),
        (vec!["--replace"], "--merge".to_owned()),
        (vec!["--merge", "--output", "x"], "cannot be used with".to_owned()),
        (vec!["--admin-kubeconfig", "missing"], "cannot use the administrator's kubeconfig missing".to_owned()),
        (vec!["--output", &text], format!("{text} already exists")),
    ] {
        let said = kubeconfig(home.path(), data.path(), &arguments);
        assert_eq!((said.code(), said.err.lines().count()), (2, 1), "{said}");
        assert!(said.err.starts_with("mainstay: ") && said.err.contains(&wanted), "{said}");
        assert!(said.out.is_empty(), "{said}");
    }
    // A server that does not run, and whose store is elsewhere.
    std::fs::write(
        data.path().join("kubeconfig"),
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n\
         clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: c, user: {}}]\n",
    )
    .expect("it can be written");
    let said = kubeconfig(home.path(), data.path(), &["--user", "jane"]);
    assert_eq!((said.code(), said.err.lines().count()), (2, 1), "{said}");
    assert!(said.err.contains("cannot ask the server at https://127.0.0.1:1 to sign a certificate"), "{said}");
}

/// A user of `system:masters` on request, with another server address, in a private file.
#[test]
fn a_second_administrator_is_created_on_request_only() {
    let (home, data) = (directory(), directory());
    let cluster = Cluster::start_server(Place::Directory(data.path()));
    let file = home.path().join("boss");
    let url = cluster.url.replace("127.0.0.1", "localhost");
    let path = file.display().to_string();
    let more = ["--group", "system:masters", "--allow-system-names", "--server", &url, "--output", &path];
    let said = kubeconfig(home.path(), data.path(), &[&["--user", "boss"], &more[..]].concat());
    assert!(said.out.starts_with(&format!("Wrote {path}.")), "{said}");
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert!(read(&file).contains(&format!("server: {url}\n")));
    let Some(boss) = kubectl_by(home.path(), &file) else { return };
    assert_eq!(boss("auth can-i delete nodes", "").trim(), "yes");
}
