//! What `mainstay up` and `mainstay server` print when they are ready.

use crate::trouble::{is_complete, is_ready};
use crate::up::Place;
use kit::api::{Api, ApiError, Resource};
use object::Value;
use object::access::{self, Access};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

/// Prints a line. The reader of stdout may have closed it, and the server must not end because of that.
macro_rules! out {
    ($($text:tt)*) => {
        drop(writeln!(std::io::stdout(), $($text)*))
    };
}

/// So many unhealthy objects are named.
const UNHEALTHY_MAX: usize = 5;

/// What the store holds when the server starts.
#[derive(Default)]
pub struct Contents {
    classes: Vec<String>,
    sets: u64,
    pods: u64,
    claims: u64,
    volumes: u64,
    unhealthy: Vec<String>,
}

impl Contents {
    pub async fn read(api: &Api) -> Result<Contents, ApiError> {
        let sets = Resource::new("apps/v1", "StatefulSet", "statefulsets", true);
        let nodes = Resource::new("v1", "Node", "nodes", false);
        let claims = Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
        let volumes = Resource::new("v1", "PersistentVolume", "persistentvolumes", false);
        let classes = Resource::new("storage.k8s.io/v1", "StorageClass", "storageclasses", false);
        let mut contents = Contents { pods: count(api, "/api/v1/pods").await?, ..Contents::default() };
        api.each(&classes.collection(""), |class| {
            let default = if object::kinds::storage::is_default_class(class) { " (default)" } else { "" };
            contents.classes.push(format!("{}{default}", access::name(class)));
        })
        .await?;
        let Contents { sets: set_count, claims: claim_count, volumes: volume_count, unhealthy, .. } = &mut contents;
        api.each(&nodes.collection(""), |node| {
            if !is_ready(node) {
                unhealthy.push(format!("Node {} is not ready", access::name(node)));
            }
        })
        .await?;
        api.each(&sets.collection(""), |set| {
            *set_count += 1;
            if !is_complete(set) && !access::terminating(set) {
                let number = |path: &[&str]| set.int(path).unwrap_or(0);
                let (ready, all) = (number(&["status", "readyReplicas"]), number(&["spec", "replicas"]));
                unhealthy.push(format!("StatefulSet {}: {ready} of {all} replicas are ready", full_name(set)));
            }
        })
        .await?;
        let mut add = |count: &mut u64, object: &Value, what: &str, bad: &str| {
            *count += 1;
            if object.text(&["status", "phase"]) == bad {
                unhealthy.push(format!("{what} {} is {bad}", full_name(object)));
            }
        };
        api.each(&claims.collection(""), |claim| add(claim_count, claim, "PersistentVolumeClaim", "Lost")).await?;
        api.each(&volumes.collection(""), |volume| add(volume_count, volume, "PersistentVolume", "Failed")).await?;
        Ok(contents)
    }

    fn has_workloads(&self) -> bool {
        self.sets + self.pods + self.claims + self.volumes > 0
    }

    fn print(&self) {
        let classes = if self.classes.is_empty() { "none".to_owned() } else { self.classes.join(", ") };
        out!("  classes     {classes}");
        if !self.has_workloads() {
            out!("  objects     no StatefulSets, pods or claims yet");
            return;
        }
        out!(
            "  objects     {}, {}, {}, {}",
            counted(self.sets, "StatefulSet"),
            counted(self.pods, "pod"),
            counted(self.claims, "claim"),
            counted(self.volumes, "volume")
        );
        let mut label = "unhealthy";
        for line in self.unhealthy.iter().take(UNHEALTHY_MAX) {
            out!("  {label:<10}  {line}");
            label = "";
        }
        if let Some(more) = self.unhealthy.len().checked_sub(UNHEALTHY_MAX).filter(|more| *more > 0) {
            out!("              and {more} more");
        }
    }
}

/// How many objects a collection has, without reading them.
async fn count(api: &Api, path: &str) -> Result<u64, ApiError> {
    let list = api.get(&format!("{path}?limit=1")).await?;
    let rest = list.int(&["metadata", "remainingItemCount"]).unwrap_or(0);
    Ok(list.items(&["items"]).len() as u64 + u64::try_from(rest).unwrap_or(0))
}

fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn full_name(object: &Value) -> String {
    match access::namespace(object) {
        "" => access::name(object).to_owned(),
        namespace => format!("{namespace}/{}", access::name(object)),
    }
}

/// The first lines, the same for `up` and `server`.
pub fn ready(place: &Place, started: Instant) {
    out!("Mainstay {} is ready after {} ms.", env!("CARGO_PKG_VERSION"), started.elapsed().as_millis());
    out!("  API         {}", place.url);
    if place.address.ip().is_unspecified() {
        everywhere(place.address, &place.names);
    } else if place.has_extra_names {
        out!("  certificate {}", place.names.join(", "));
    }
    match &place.kubeconfig_error {
        None => out!("  kubeconfig  {}", place.kubeconfig.display()),
        Some(error) => {
            out!("  kubeconfig  not written");
            eprintln!(
                "mainstay: {error}; an older kubeconfig may not work until this one is written at the next start"
            );
        }
    }
    out!("  state       {}", place.backend);
}

/// A server that listens on all addresses: these, and which of them its certificate names.
fn everywhere(address: SocketAddr, names: &[String]) {
    let addresses = crate::addresses::of_this_machine();
    let reached = addresses.iter().filter(|found| found.is_ipv4() || address.is_ipv6()).map(ToString::to_string);
    let reached: Vec<String> = reached.collect();
    if !reached.is_empty() {
        out!("  listens on  port {} of {}", address.port(), reached.join(", "));
    }
    out!("  certificate {}", names.join(", "));
    let missing: Vec<String> = reached.into_iter().filter(|address| !names.contains(address)).collect();
    if !missing.is_empty() {
        out!("              clients that use {} need --tls-san with that address", missing.join(" or "));
    }
}

/// What `up` adds.
pub fn workloads(contents: &Contents, nodes: usize) {
    match nodes {
        0 => out!("  nodes       none of its own: pods stay Pending until other nodes register"),
        _ => {
            out!("  nodes       {} simulated: pods are scheduled and become ready, but no container is run", nodes)
        }
    }
    contents.print();
}

/// What `server` adds.
pub fn no_controllers() {
    out!(
        "  controllers none: StatefulSets, claims and deletions wait until mainstay controllers runs against this API"
    );
}

/// The commands that show the product.
pub fn next_commands(place: &Place, commands: &[String]) {
    out!();
    if place.kubeconfig_error.is_none() {
        out!("Try it from another terminal:");
        out!("  export KUBECONFIG={}", shell_word(&place.kubeconfig.display().to_string()));
        commands.iter().for_each(|command| out!("  {command}"));
        out!();
    }
    out!("Ctrl-C stops it.");
}

/// Commands for `up`: the first workload where there is none, or what is there.
pub fn first_steps(contents: &Contents) -> Vec<String> {
    const SHOW: &str = "kubectl get statefulsets,pods,persistentvolumeclaims";
    if contents.has_workloads() {
        return vec![format!("{SHOW} -A")];
    }
    let example = Path::new("examples/web.yaml");
    let apply = if example.is_file() {
        format!("kubectl apply -f {}", example.display())
    } else {
        format!("{} example | kubectl apply -f -", program())
    };
    vec![apply, SHOW.to_owned()]
}

/// How the user started this program: by name, or by a path that works from any directory.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if !called.is_empty() && !called.contains('/') {
        return shell_word(&called);
    }
    std::env::current_exe().map_or(called, |path| shell_word(&path.display().to_string()))
}

/// Text as one word of a POSIX shell.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_quoted_where_needed() {
        assert_eq!(shell_word("/home/you/.kube/config"), "/home/you/.kube/config");
        assert_eq!(shell_word("/home/a b/it's"), "'/home/a b/it'\\''s'");
        assert_eq!(shell_word("$HOME"), "'$HOME'");
    }
}
