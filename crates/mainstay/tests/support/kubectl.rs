//! The real kubectl, in a home directory of its own.

use super::cluster::Cluster;
use super::program::{self, PATIENCE, Running, Said};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

const OLDEST_MINOR: u32 = 28;

/// kubectl in one namespace of one server, as one user.
#[derive(Clone)]
pub struct Kubectl {
    program: &'static Path,
    pub cluster: Arc<Cluster>,
    /// `None`: as the kubeconfig says.
    pub namespace: Option<String>,
    kubeconfig: PathBuf,
    variables: Vec<(String, String)>,
}

/// kubectl from $KUBECTL or PATH, if it is new enough.
pub fn find() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let program = PathBuf::from(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()));
        (minor_version(&program)? >= OLDEST_MINOR).then_some(program)
    });
    found.as_deref().or_else(|| super::skip("no kubectl 1.28 or newer found"))
}

impl Kubectl {
    pub fn new(program: &'static Path, cluster: Arc<Cluster>) -> Kubectl {
        let kubeconfig = cluster.kubeconfig.clone();
        Kubectl { program, cluster, namespace: None, kubeconfig, variables: Vec::new() }
    }

    pub fn in_namespace(&self, namespace: &str) -> Kubectl {
        Kubectl { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The same with this variable set.
    pub fn with_variable(&self, name: &str, value: &str) -> Kubectl {
        let mut changed = self.clone();
        changed.variables.push((name.to_owned(), value.to_owned()));
        changed
    }

    /// The same server with a bearer token (`None`: anonymous).
    pub fn with_token(&self, token: Option<&str>) -> Kubectl {
        let mut config = self.value("config view --raw -o json");
        // Without any credentials kubectl asks for a user name; the server ignores the password.
        let nobody = || serde_json::json!({"username": "nobody", "password": "nothing"});
        let user = token.map_or_else(nobody, |token| serde_json::json!({"token": token}));
        config["users"][0]["user"] = user;
        let name = format!("kubeconfig-{}", token.map_or(0, |token| token.len()));
        let name = format!("{name}-{}", self.namespace.as_deref().unwrap_or("default"));
        let kubeconfig = PathBuf::from(self.cluster.write(&name, &config.to_string()));
        Kubectl { kubeconfig, ..self.clone() }
    }

    /// kubectl's own version, 1.x.
    pub fn minor(&self) -> u32 {
        minor_version(self.program).expect("it was found by its version")
    }

    /// An absolute path, even if it was found by name.
    pub fn program(&self) -> PathBuf {
        let named = |directory: PathBuf| Some(directory.join(self.program)).filter(|path| path.is_file());
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).find_map(named).unwrap_or_else(|| self.program.to_owned())
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Runs kubectl with arguments split as a shell would (single quotes only).
    pub fn run(&self, arguments: &str) -> Said {
        self.run_with(arguments, "")
    }

    pub fn run_with(&self, arguments: &str, stdin: &str) -> Said {
        program::run(self.command(arguments), stdin)
    }

    /// The stdout of kubectl, which must succeed.
    #[track_caller]
    pub fn ok(&self, arguments: &str) -> String {
        self.run(arguments).succeeded()
    }

    #[track_caller]
    pub fn ok_with(&self, arguments: &str, stdin: &str) -> String {
        self.run_with(arguments, stdin).succeeded()
    }

    /// The stderr of kubectl, which must fail.
    #[track_caller]
    pub fn fails(&self, arguments: &str) -> String {
        self.run(arguments).failed()
    }

    #[track_caller]
    pub fn fails_with(&self, arguments: &str, stdin: &str) -> String {
        self.run_with(arguments, stdin).failed()
    }

    /// kubectl must succeed and print exactly this, apart from white space at the ends.
    #[track_caller]
    pub fn prints(&self, arguments: &str, expected: &str) {
        let out = self.ok(arguments);
        assert_eq!(out.trim(), expected.trim(), "kubectl {arguments}");
    }

    /// Repeats kubectl until it prints the expected text: some conditions `kubectl wait` does not support.
    #[track_caller]
    pub fn until(&self, arguments: &str, check: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let out = self.ok(arguments);
            if check(&out) {
                return out;
            }
            assert!(Instant::now() < deadline, "kubectl {arguments}: not in time\n{out}");
        }
    }

    /// The JSON that kubectl prints.
    #[track_caller]
    pub fn value(&self, arguments: &str) -> Value {
        self.value_with(arguments, "")
    }

    #[track_caller]
    pub fn value_with(&self, arguments: &str, stdin: &str) -> Value {
        let out = self.ok_with(arguments, stdin);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("kubectl {arguments}: {error}\n{out}"))
    }

    /// An object as stored.
    #[track_caller]
    pub fn object(&self, name: &str) -> Value {
        self.value(&format!("get {name} -o json --show-managed-fields"))
    }

    /// Creates objects from a manifest.
    #[track_caller]
    pub fn create(&self, manifest: &str) -> String {
        self.ok_with("create -f -", manifest)
    }

    /// Starts kubectl in the background.
    pub fn start(&self, arguments: &str) -> Running {
        Running::start(self.command(arguments))
    }

    fn command(&self, arguments: &str) -> Command {
        let home = self.cluster.path();
        let mut command = Command::new(self.program);
        command.env_clear().current_dir(home).env("HOME", home).env("KUBECONFIG", &self.kubeconfig);
        command.env("KUBECACHEDIR", home.join("cache"));
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(words(arguments));
        command
    }
}

/// Splits at white space; single quotes keep it.
pub fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut inside, mut quoted) = (false, false);
    for c in line.chars() {
        match c {
            '\'' => {
                if !inside {
                    words.push(String::new());
                }
                (inside, quoted) = (true, !quoted);
            }
            c if c.is_whitespace() && !quoted => inside = false,
            c => {
                if !inside {
                    words.push(String::new());
                    inside = true;
                }
                words.last_mut().expect("a word was begun").push(c);
            }
        }
    }
    words
}

/// The minor version of kubectl 1.x, if this is one.
fn minor_version(program: &Path) -> Option<u32> {
    let output = Command::new(program).args(["version", "--client", "--output=json"]).output().ok()?;
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    let version = &answer["clientVersion"];
    let minor = version["minor"].as_str()?.trim_end_matches('+').parse().ok()?;
    (version["major"] == "1").then_some(minor)
}
