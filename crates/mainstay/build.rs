//! Tells the program from which commit it was built, and when: for `/version`, `kubernetes_build_info` and bug reports.
//!
//! The date is that of `SOURCE_DATE_EPOCH` or of the commit, never the clock's, so that the same sources make the same program.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    watched_files().iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["show", "-s", "--format=%ct", "HEAD"]));
    println!("cargo::rustc-env=MAINSTAY_COMMIT={commit}");
    println!("cargo::rustc-env=MAINSTAY_BUILD_SECONDS={}", seconds.as_deref().unwrap_or("0"));
}

/// The files that change with the commit. Only those that exist: cargo would run this again for a missing one at each build.
fn watched_files() -> Vec<PathBuf> {
    let path = |name: &str| git(&["rev-parse", "--git-path", name]).map(PathBuf::from).filter(|path| path.is_file());
    // Every move of HEAD is in its log. Where none is kept, HEAD and what it refers to are watched.
    if let Some(log) = path("logs/HEAD") {
        return vec![log];
    }
    let reference = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let reference = reference.and_then(|reference| path(&reference)).or_else(|| path("packed-refs"));
    path("HEAD").into_iter().chain(reference).collect()
}

/// What git says about the repository of this package; `None` outside of one, such as in an unpacked release.
fn git(arguments: &[&str]) -> Option<String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Another project's repository may be around an unpacked release.
    if !package.join("../../.git").exists() {
        return None;
    }
    let output = Command::new("git").current_dir(package).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
