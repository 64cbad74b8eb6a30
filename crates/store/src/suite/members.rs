//! Starts real etcd members for tests, on free ports of this machine. They are stopped when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Line that a member logs when it accepts requests.
const READY: &str = "ready to serve client requests";
/// Longer than a member takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One etcd cluster.
pub struct Members {
    program: PathBuf,
    directory: PathBuf,
    members: Vec<Member>,
    more: Vec<String>,
}

struct Member {
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl Members {
    /// Starts a cluster with this many members. Returns `None`, with a message on stdout, if etcd is not installed.
    pub fn start(count: usize) -> Option<Members> {
        Members::start_with(count, &[])
    }

    /// Same with more arguments for each member, in which `DIR` is replaced by the cluster's directory.
    pub fn start_with(count: usize, more: &[&str]) -> Option<Members> {
        Some(Members::in_directory(program()?, directory(), count, more))
    }

    /// Same with a directory that already has files.
    pub fn start_in(directory: PathBuf, count: usize, more: &[&str]) -> Option<Members> {
        Some(Members::in_directory(program()?, directory, count, more))
    }

    fn in_directory(program: PathBuf, directory: PathBuf, count: usize, more: &[&str]) -> Members {
        std::fs::create_dir_all(&directory).expect("cannot create the directory for etcd");
        let more = more.iter().map(|word| word.replace("DIR", &directory.display().to_string())).collect();
        let mut ports = free_ports(2 * count).into_iter();
        let mut port = || ports.next().expect("free_ports returns two ports per member");
        let members =
            (0..count).map(|_| Member { client_port: port(), peer_port: port(), child: None }).collect::<Vec<_>>();
        let mut cluster = Members { program, directory, members, more };
        let starting: Vec<_> = (0..count).map(|number| cluster.launch(number)).collect();
        for said in starting {
            wait_until_ready(&said);
        }
        cluster
    }

    /// URL of the store: `etcd://127.0.0.1:port,...`.
    pub fn url(&self) -> String {
        let members: Vec<_> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect();
        format!("etcd://{}", members.join(","))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills a member immediately, as a power failure would.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            child.kill().expect("cannot kill etcd");
            child.wait().expect("cannot wait for etcd");
        }
    }

    /// Starts a killed member again with its data.
    pub fn restart(&mut self, number: usize) {
        wait_until_ready(&self.launch(number));
    }

    /// Stops a member's process: its connections stay open, but it does not respond.
    pub fn pause(&self, number: usize) {
        self.signal(number, "-STOP");
    }

    pub fn resume(&self, number: usize) {
        self.signal(number, "-CONT");
    }

    /// Compacts and defragments a member and clears its `NOSPACE` alarm, as `etcdctl compact --physical`, `defrag` and
    /// `alarm disarm` do.
    pub fn make_space(&self, number: usize) {
        let head = self.ask(number, "kv/range", r#"{"key": "AA=="}"#);
        let revision = head.split("\"revision\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let revision = revision.expect("the response has a revision");
        let compaction = format!(r#"{{"revision": "{revision}", "physical": true}}"#);
        // Refused where the history is compacted up to this revision already.
        self.send(number, "kv/compaction", &compaction);
        self.ask(number, "maintenance/defragment", "{}");
        let alarms = self.ask(number, "maintenance/alarm", r#"{"action": "GET"}"#);
        let member = alarms.split("\"memberID\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let Some(member) = member else { return };
        let end = format!(r#"{{"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": "{member}"}}"#);
        self.ask(number, "maintenance/alarm", &end);
    }

    /// Sends a request to a member's HTTP gateway, and returns the response if it is a success.
    fn ask(&self, number: usize, path: &str, body: &str) -> String {
        let answer = self.send(number, path, body);
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        answer
    }

    fn send(&self, number: usize, path: &str, body: &str) -> String {
        let address = ("127.0.0.1", self.members[number].client_port);
        let mut stream = TcpStream::connect(address).expect("cannot connect to the member");
        let head = format!("POST /v3/{path} HTTP/1.0\r\nhost: etcd\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).expect("cannot send to the member");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("cannot read from the member");
        answer
    }

    fn signal(&self, number: usize, signal: &str) {
        let child = self.members[number].child.as_ref().expect("the member is not running");
        let sent = Command::new("/bin/sh")
            .args(["-c", "kill \"$1\" \"$2\"", "sh", signal, &child.id().to_string()])
            .status()
            .expect("cannot run the shell");
        assert!(sent.success(), "member {number} cannot be signalled");
    }

    /// Starts a member. Its log lines arrive through the receiver.
    fn launch(&mut self, number: usize) -> Receiver<String> {
        let secure = self.more.iter().any(|word| word.starts_with("--cert-file"));
        let scheme = if secure { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.members[number].client_port);
        let peer = |member: &Member| format!("http://127.0.0.1:{}", member.peer_port);
        let all: Vec<_> =
            self.members.iter().enumerate().map(|(at, member)| format!("m{at}={}", peer(member))).collect();
        let own = peer(&self.members[number]);
        let mut command = Command::new(&self.program);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.args(["--name", &format!("m{number}"), "--initial-cluster", &all.join(",")]);
        command.arg("--data-dir").arg(self.directory.join(format!("m{number}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &own, "--initial-advertise-peer-urls", &own]);
        // Elections are faster than with the defaults, which are for machines that are far apart.
        command.args(["--heartbeat-interval", "100", "--election-timeout", "500"]);
        command.args(&self.more);
        let mut child = command.spawn().expect("cannot start etcd");
        let said = listen(&mut child);
        self.members[number].child = Some(child);
        said
    }
}

fn wait_until_ready(said: &Receiver<String>) {
    let deadline = Instant::now() + PATIENCE;
    let mut all = String::new();
    loop {
        match said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains(READY) => return,
            Ok(line) => all += &format!("{line}\n"),
            Err(why) => panic!("an etcd member did not become ready ({why}); its log:\n{all}"),
        }
    }
}

/// Reads the log of a member. It is read to the end, because the member would block on a full pipe.
fn listen(child: &mut Child) -> Receiver<String> {
    let (sender, said) = channel();
    let stream = child.stderr.take().expect("stderr is piped");
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // The receiver is dropped when the member is ready.
            drop(sender.send(line));
        }
    });
    said
}

impl Drop for Members {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
        }
        // A directory that cannot be removed is only a leftover temporary directory.
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// Path of the etcd binary. Returns `None`, with a message on stdout, if it is not installed. In CI that is a failure.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("ETCD").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        named.or_else(|| std::env::split_paths(&path).map(|place| place.join("etcd")).find(|file| file.is_file()));
    if found.is_none() {
        let why = "etcd is not installed (Debian's package etcd-server, or name it with ETCD)";
        assert!(std::env::var_os("CI").is_none(), "CI runs every test, but {why}");
        println!("skipped: {why}");
    }
    found
}

/// Creates the name of a new directory, in memory (`/dev/shm`) if possible, because etcd syncs each write.
pub fn directory() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("mainstay-etcd-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

fn free_ports(count: usize) -> Vec<u16> {
    // All listeners are kept until the end, so that no port is returned twice.
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a free port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}
