//! Checks of the code, as tests: nothing dead, nothing left over, nothing too long, no forbidden edge, documents in step.

#[path = "tidy/pages.rs"]
mod pages;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const LINES_MAX: usize = 700;

/// What each crate must never know, directly or through others.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("object", &["tokio", "hyper", "store", "server", "runtime", "mainstay-kit", "plan", "kube-client"]),
    ("plan", &["tokio", "hyper", "kube-client", "store", "server", "runtime", "mainstay-kit", "rand"]),
    ("store", &["object", "server", "runtime", "mainstay-kit", "plan", "k8s-openapi", "kube-client"]),
    ("server", &["runtime", "mainstay-kit", "node", "plan", "kube-client"]),
    // What controllers share knows no controller.
    ("mainstay-kit", &["server", "store", "runtime", "node", "csi"]),
    ("runtime", &["server", "store", "node"]),
    ("node", &["server", "store", "runtime", "csi"]),
    ("csi", &["object", "server", "runtime", "plan", "store", "k8s-openapi", "kube-client", "axum"]),
    ("tree", &["object", "server", "runtime", "plan", "store", "csi", "tokio"]),
    // The simulation knows all of them, and none of them knows it.
    ("mainstay", &["sim"]),
    ("sim", &["mainstay"]),
];

/// The ids of the contract: letter and how many.
const CONTRACT: &[(char, u32)] = &[('R', 16), ('O', 6), ('T', 18), ('V', 5), ('H', 10)];

#[test]
fn every_file_is_named_by_a_mod() {
    let mut reached = BTreeSet::new();
    for root in roots() {
        reach(&root, &root, &mut reached);
    }
    let dead: Vec<PathBuf> = sources().into_iter().filter(|file| !reached.contains(file)).collect();
    assert!(dead.is_empty(), "no mod names these files, so they are never compiled: {dead:#?}");
}

#[test]
fn files_are_short() {
    for file in sources() {
        let lines = read(&file).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines: split it where its ideas split", file.display());
    }
}

#[test]
fn nothing_is_left_over() {
    let leftovers = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "FIXME", "TODO", "XXX"];
    for file in sources().into_iter().filter(|file| !file.ends_with("tests/tidy.rs")) {
        for (number, line) in read(&file).lines().enumerate() {
            for leftover in leftovers {
                assert!(!line.contains(leftover), "{}:{}: {leftover} is left over", file.display(), number + 1);
            }
        }
    }
}

/// A branch that is picked at random is another run of the same seed (docs/decisions/0012).
#[test]
fn what_simulations_run_selects_in_order() {
    let simulated = ["csi", "kit", "node", "runtime", "server", "sim", "store"]
        .map(|name| root().join("crates").join(name).join("src"));
    let mut found = 0;
    for file in sources().into_iter().filter(|file| simulated.iter().any(|directory| file.starts_with(directory))) {
        let text = read(&file);
        for part in text.split("select! {").skip(1) {
            found += 1;
            assert!(part.trim_start().starts_with("biased;"), "{}: a select! without `biased;`", file.display());
        }
    }
    assert!(found > 20, "the code was searched: {found}");
}

#[test]
fn crates_do_not_know_what_they_must_not() {
    for (package, forbidden) in FORBIDDEN {
        let known = dependencies(package);
        assert!(known.contains(*package), "cargo tree names the package itself: {known:?}");
        let found: Vec<_> = forbidden.iter().filter(|name| known.contains(**name)).collect();
        assert!(
            found.is_empty(),
            "{package} must never know {found:?}; `cargo tree -e normal -p {package} -i NAME` says why"
        );
    }
}

/// `cargo deny` reads the same file and knows more (it compares the texts of licences), but to build it would take longer than all of
/// the tests.
#[test]
fn no_banned_crate_is_locked_and_all_come_from_the_registry() {
    let deny = read(&root().join("deny.toml"));
    let banned: Vec<&str> = deny.split("{ crate = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(banned.contains(&"openssl-sys"), "the list of bans was found: {banned:?}");
    let lock = read(&root().join("Cargo.lock"));
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = ") {
            assert!(!banned.contains(&name.trim_matches('"')), "{name} is locked, but deny.toml bans it");
        }
        if let Some(source) = line.strip_prefix("source = ") {
            assert!(source.starts_with("\"registry+"), "{source} is not the registry");
        }
    }
}

/// The database itself needs a network: `cargo deny check advisories`, where there is one.
#[test]
fn no_locked_version_is_open_to_a_known_advisory() {
    let known = read(&root().join("advisories.txt"));
    let lock = read(&root().join("Cargo.lock"));
    let found = open_to(&known, &lock);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(known.lines().filter(|line| line.starts_with("RUSTSEC-")).count() > 50, "the list was found");
    assert!(locked(&lock).len() > 100, "the packages were found");
}

/// A sentence for each locked version that is open to an advisory, and for each package that was not compared.
fn open_to(known: &str, lock: &str) -> Vec<String> {
    let compared: BTreeSet<&str> =
        known.lines().filter_map(|line| line.strip_prefix("= ")).flat_map(str::split_whitespace).collect();
    let mut found = Vec::new();
    for (package, version) in locked(lock) {
        if !compared.contains(package) {
            found.push(format!("{package} was not compared with the advisories: advisories.txt says how"));
        }
        let version = semver::Version::parse(version).unwrap_or_else(|error| panic!("{package} {version}: {error}"));
        for line in known.lines().filter(|line| line.starts_with("RUSTSEC-")) {
            let mut words = line.splitn(3, ' ');
            let (id, about, ranges) = (words.next(), words.next(), words.next().unwrap_or(""));
            let is_safe = |range: &str| {
                let range = semver::VersionReq::parse(range).unwrap_or_else(|error| panic!("{line}: {error}"));
                range.matches(&version)
            };
            if about == Some(package) && !ranges.split(" | ").any(is_safe) {
                found.push(format!("{package} {version} is open to {}", id.unwrap_or("")));
            }
        }
    }
    found
}

/// The packages from the registry, with their versions.
fn locked(lock: &str) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = lock.lines().map(|line| line.trim_end_matches('"')).collect();
    let foreign = lines.windows(3).filter(|lines| lines[2].starts_with("source = "));
    foreign
        .filter_map(|lines| Some((lines[0].strip_prefix("name = \"")?, lines[1].strip_prefix("version = \"")?)))
        .collect()
}

#[test]
fn advisories_are_read_as_they_are_written() {
    let known = "# why\nRUSTSEC-1 a >= 1.2.3 | < 1.0.0\nRUSTSEC-2 b ^0.3.4 | >= 0.4.2, < 0.5.0\n\n= a b\n= c\n";
    for (name, version, said) in [
        ("a", "1.2.2", "a 1.2.2 is open to RUSTSEC-1"),
        ("a", "1.2.3", ""),
        ("a", "0.9.9", ""),
        ("b", "0.3.3", "b 0.3.3 is open to RUSTSEC-2"),
        ("b", "0.3.9", ""),
        ("b", "0.5.0", "b 0.5.0 is open to RUSTSEC-2"),
        ("c", "1.0.0", ""),
        ("d", "1.0.0", "d was not compared with the advisories: advisories.txt says how"),
    ] {
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        let lock = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"{registry}\"\n");
        assert_eq!(open_to(known, &lock).join("; "), said, "{name} {version}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let deny = read(&root().join("deny.toml"));
    let list = deny.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).expect("a list of licences");
    let allowed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(allowed.contains(&"Apache-2.0"), "{allowed:?}");
    let metadata = metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let foreign: Vec<_> = packages.filter(|package| !package["source"].is_null()).collect();
    assert!(foreign.len() > 100, "{} packages", foreign.len());
    for package in foreign {
        let licence = package["license"].as_str().unwrap_or("");
        let (name, version) = (&package["name"], &package["version"]);
        assert!(is_allowed(licence, &allowed), "{name} {version} is under {licence:?}, which deny.toml does not allow");
    }
}

/// `cargo run -- up`, as the README has it, finds one program to run.
#[test]
fn the_program_is_what_cargo_runs() {
    let metadata = metadata(&["--no-deps"]);
    let meant = metadata["workspace_default_members"].as_array().expect("members");
    let packages = metadata["packages"].as_array().expect("packages").iter().filter(|it| meant.contains(&it["id"]));
    let targets = packages.flat_map(|package| package["targets"].as_array().expect("targets"));
    let programs: Vec<_> = targets.filter(|target| target["kind"][0] == "bin").map(|target| &target["name"]).collect();
    assert_eq!(programs, ["mainstay"]);
}

fn metadata(more: &[&str]) -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(more)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Whether an SPDX expression can be kept with these licences.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    // The old way to write a choice.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        holds |= all_of(words, at, allowed);
    }
    holds
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        holds &= one(words, at, allowed);
    }
    holds
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let holds = any_of(words, at, allowed);
        *at += 1;
        return holds;
    }
    // An exception only adds to what a licence allows.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allowed.contains(word)
}

#[test]
fn licences_are_read_as_they_are_written() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
    for (expression, good) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("MIT OR GPL-3.0", true),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("GPL-3.0 OR MIT AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("MIT MIT", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), good, "{expression}");
    }
}

#[test]
fn the_conformance_table_is_complete_and_true() {
    let table = read(&root().join("docs/conformance.md"));
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| id "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let ids: Vec<String> = CONTRACT
        .iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect();
    let listed: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(listed, ids, "each id of the contract has its row, in order");
    let tests = tests();
    for row in &rows {
        let [id, _, shown_by] = row[..] else { panic!("a row has three cells: {row:?}") };
        for name in shown_by.split('`').skip(1).step_by(2) {
            let carries = tests.iter().any(|test| test.name == name && has_word(&test.text, id));
            assert!(carries, "{id} is said to be shown by {name}, but no test of that name carries the id");
        }
    }
}

struct Test {
    name: String,
    /// Its comments, attributes, name and body.
    text: String,
}

/// All tests of the workspace.
fn tests() -> Vec<Test> {
    let mut found = Vec::new();
    for file in sources() {
        let text = read(&file);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            // What stands above a function without a gap belongs to it, and so does what follows up to the next gap before
            // another item.
            let above = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with(['#', '/'])).count();
            let indent = line.len() - line.trim_start().len();
            let close = format!("{}}}", " ".repeat(indent));
            let body = lines[at..].iter().take_while(|line| **line != close).count();
            if !lines[at - above..at].iter().any(|line| line.contains("test")) {
                continue;
            }
            found.push(Test { name: name.to_owned(), text: lines[at - above..at + body].join("\n") });
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))?;
    rest.split(['(', '<']).next()
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part.eq_ignore_ascii_case(word))
}

/// The names of all packages that a package is built of, without what only its tests need.
fn dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", package])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The files that cargo compiles by itself: one crate each.
fn roots() -> Vec<PathBuf> {
    let is_root = |file: &Path| {
        let package = file.ancestors().find(|directory| directory.join("Cargo.toml").exists());
        let inside = package.and_then(|package| file.strip_prefix(package).ok()).and_then(Path::to_str).unwrap_or("");
        matches!(
            inside.split('/').collect::<Vec<_>>()[..],
            ["build.rs"]
                | ["src", "lib.rs" | "main.rs"]
                | ["src", "bin", _]
                | ["src", "bin", _, "main.rs"]
                | ["tests" | "benches" | "examples", _]
                | ["tests" | "benches" | "examples", _, "main.rs"]
        )
    };
    sources().into_iter().filter(|file| is_root(file)).collect()
}

/// Follows the modules that a file names.
fn reach(file: &Path, root: &Path, reached: &mut BTreeSet<PathBuf>) {
    if !reached.insert(file.to_owned()) {
        return;
    }
    let directory = file.parent().expect("files are in directories");
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    let children = if file == root || stem == "mod" { directory.to_owned() } else { directory.join(stem) };
    let text = read(file);
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(given) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            path = Some(directory.join(given));
        } else if let Some(name) = module_name(line) {
            let given = path.take().into_iter();
            let places = [children.join(format!("{name}.rs")), children.join(name).join("mod.rs")];
            for place in given.chain(places).filter(|place| place.exists()) {
                reach(&place, root, reached);
            }
        }
    }
}

/// The name in `mod name;`, with or without `pub`.
fn module_name(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let (before, name) = line.split_once("mod ")?;
    let visible = before.is_empty() || (before.starts_with("pub") && before.ends_with(' '));
    (visible && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).then_some(name)
}

/// All Rust files of the workspace.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join("crates")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("the workspace can be read") {
            let path = entry.expect("its entries too").path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates are two levels deep").to_owned()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
