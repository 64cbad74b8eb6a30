//! Checks of the pages: each link has a target, and each file and test that a page names exists.

use super::{read, root, tests};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The longest line of a page, and the longest cell of a table. `docs/SUMMARY.md` is made for mdbook.
const LINE_MAX: usize = 100;
const CELL_MAX: usize = 125;

/// In `docs/quality/findings`, a name with this many underscores or more is the name of a test.
const TEST_NAME_UNDERSCORES: usize = 4;

/// All Markdown files of the repository.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("the repository can be read") {
            let path = entry.expect("its entries can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 30, "the pages were found: {found:?}");
    found
}

/// The lines of a page outside code blocks, joined: a link may be broken over two lines.
fn prose(page: &Path) -> String {
    let text = read(page);
    let mut in_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The texts between backticks.
fn quoted(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2)
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_of_pages_have_a_target() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = prose(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
            if !target.exists() || (!anchor.is_empty() && !anchors(&target).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "these links have no target: {broken:#?}");
}

/// The site has what `docs/SUMMARY.md` lists.
#[test]
fn every_page_is_listed_in_the_summary() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = read(&summary);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: BTreeSet<PathBuf> = links.map(|link| docs.join(link)).collect();
    let is_page = |page: &PathBuf| page.starts_with(&docs) && *page != summary;
    let missing: Vec<PathBuf> = pages().into_iter().filter(is_page).filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:#?}");
}

#[test]
fn pages_have_short_lines_and_cells() {
    let mut long = Vec::new();
    for page in pages().into_iter().filter(|page| !page.ends_with("docs/SUMMARY.md")) {
        for line in prose(&page).lines() {
            let is_long = match line.trim_start().starts_with('|') {
                true => line.split('|').any(|cell| cell.trim().chars().count() > CELL_MAX),
                false => line.chars().count() > LINE_MAX,
            };
            if is_long {
                long.push(format!("{}: {line}", page.display()));
            }
        }
    }
    assert!(long.is_empty(), "break lines at {LINE_MAX} characters, and cells at {CELL_MAX}: {long:#?}");
}

/// A reader decides by the first line whether to read on.
#[test]
fn pages_begin_with_whom_they_are_for() {
    let docs = root().join("docs");
    let parts = ["guides", "operations", "reference", "design"].map(|part| docs.join(part));
    let mut found = 0;
    for page in pages().into_iter().filter(|page| parts.iter().any(|part| page.starts_with(part))) {
        found += 1;
        let first = read(&page).lines().nth(2).unwrap_or("").to_owned();
        assert!(first.starts_with("For "), "{}: begin with whom it is for, not {first:?}", page.display());
    }
    assert!(found > 20, "the pages were found: {found}");
}

/// Comments, messages and manifests name pages by their path in the repository.
#[test]
fn pages_that_sources_name_exist() {
    let manifests = std::fs::read_dir(root().join("deploy")).expect("there are manifests");
    let manifests = manifests.map(|entry| entry.expect("it can be read").path());
    let scripts = ["test", ".ci/run", ".ci/nightly", "book.toml"].map(|name| root().join(name));
    let mut found = 0;
    for file in super::sources().into_iter().chain(manifests).chain(scripts) {
        let text = read(&file);
        for rest in text.split("docs/").skip(1) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/' | '.' | '_');
            let name = rest.split(|c| !is_name(c)).next().unwrap_or("").trim_end_matches('.');
            if name.ends_with(".md") {
                found += 1;
                assert!(root().join("docs").join(name).exists(), "{}: docs/{name} does not exist", file.display());
            }
        }
    }
    assert!(found > 20, "the names were found: {found}");
}

#[test]
fn files_that_pages_name_exist() {
    let mut missing = Vec::new();
    let map = root().join("ARCHITECTURE.md");
    for page in pages() {
        let text = prose(&page);
        for name in quoted(&text) {
            let is_file = Path::new(name).extension().is_some() && !name.contains([' ', '*', '<', '{', '…']);
            let below = match name.split('/').next() {
                Some("docs" | "crates" | "deploy") if name.contains('/') => root(),
                // The map of the code leaves out the directory of all crates.
                _ if page == map && name.contains("/src/") => root().join("crates"),
                _ => continue,
            };
            if is_file && !below.join(name).exists() {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "these files do not exist: {missing:#?}");
}

#[test]
fn tests_that_findings_name_exist() {
    let names: BTreeSet<String> = tests().into_iter().map(|test| test.name).collect();
    let mut found = 0;
    for page in pages().into_iter().filter(|page| page.starts_with(root().join("docs/quality/findings"))) {
        let text = prose(&page);
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        for name in quoted(&text).filter(is_name).filter(|name| name.matches('_').count() >= TEST_NAME_UNDERSCORES) {
            found += 1;
            assert!(names.contains(name), "{}: there is no test {name}", page.display());
        }
    }
    assert!(found > 30, "the tests were found: {found}");
}

#[test]
fn each_crate_says_what_it_must_never_know_and_where_to_begin() {
    let crates = std::fs::read_dir(root().join("crates")).expect("the workspace can be read");
    let crates: Vec<PathBuf> = crates.map(|entry| entry.expect("its entries can be read").path()).collect();
    assert!(crates.len() > 8, "the crates were found: {crates:?}");
    for directory in crates {
        let page =
            ["src/lib.rs", "src/main.rs"].map(|name| directory.join(name)).into_iter().find(|file| file.exists());
        let page = page.unwrap_or_else(|| panic!("{}: no lib.rs and no main.rs", directory.display()));
        let text = read(&page);
        let lines: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let text = lines.join(" ");
        for wanted in ["must never", "Begin with"] {
            assert!(text.contains(wanted), "{}: the page of the crate does not say {wanted:?}", page.display());
        }
    }
}
