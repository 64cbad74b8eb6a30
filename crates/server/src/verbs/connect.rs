//! Requests that a kubelet would serve: logs, exec, attach, port-forward and proxies. This server does not forward
//! them, so each is refused with a sentence that says why.

use super::{Answer, Call};
use crate::object_store::Reader;
use bytes::Bytes;
use object::access::{Access, SIMULATED};
use object::{Status, Value};

/// Responds to a subresource that connects to a pod, a service or a node. Returns `None` for other subresources.
pub fn answer(call: &Call<'_>) -> Option<Result<Answer, Status>> {
    if !call.target.group.is_empty() {
        return None;
    }
    match (call.target.plural.as_str(), call.target.subresource.as_str()) {
        ("pods", name) => PodConnection::of(name).map(|connection| to_pod(call, connection)),
        ("services", "proxy") => Some(to_service(call)),
        ("nodes", "proxy") => Some(to_node(call)),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PodConnection {
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
}

impl PodConnection {
    fn of(subresource: &str) -> Option<PodConnection> {
        Some(match subresource {
            "log" => PodConnection::Log,
            "exec" => PodConnection::Exec,
            "attach" => PodConnection::Attach,
            "portforward" => PodConnection::PortForward,
            "proxy" => PodConnection::Proxy,
            _ => return None,
        })
    }

    /// Why the connection is impossible on a simulated node.
    fn missing(self) -> &'static str {
        match self {
            PodConnection::Log => "there are no logs",
            PodConnection::Exec => "no command can be run in it",
            PodConnection::Attach => "there is no process to attach to",
            PodConnection::PortForward => "no port can be forwarded to it",
            PodConnection::Proxy => "nothing in it answers requests",
        }
    }

    fn name(self) -> &'static str {
        match self {
            PodConnection::Log => "logs",
            PodConnection::Exec => "exec",
            PodConnection::Attach => "attach",
            PodConnection::PortForward => "port-forward",
            PodConnection::Proxy => "proxy requests",
        }
    }
}

fn to_pod(call: &Call<'_>, connection: PodConnection) -> Result<Answer, Status> {
    // Only a proxy request may name a scheme and a port: `http:web-0:8080`.
    let name = if connection == PodConnection::Proxy { object_name(&call.target.name) } else { &call.target.name };
    let pod = call.stored(name)?.0;
    let takes_container = matches!(connection, PodConnection::Log | PodConnection::Exec | PodConnection::Attach);
    if takes_container {
        check_container(&pod, name, call.query.get("container").unwrap_or(""))?;
    }
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return match connection {
            // As upstream: a pod that has not started has an empty log.
            PodConnection::Log => Ok(text(String::new())),
            _ => Err(Status::bad_request(format!("pod {name} does not have a host assigned"))),
        };
    }
    if is_simulated(call, node)? {
        let missing = connection.missing();
        let why = format!("pod {name} runs on the simulated node {node}, which executes nothing: {missing}");
        // kubectl retries for 20 s after each error, so a followed log returns one line and ends.
        let is_followed = connection == PodConnection::Log && call.query.flag("follow");
        return if is_followed { Ok(text(format!("{why}\n"))) } else { Err(Status::bad_request(why)) };
    }
    Err(not_forwarded(format!(
        "pod {name} runs on the node {node}: Mainstay does not forward {} to kubelets",
        connection.name()
    )))
}

/// As upstream: the container must exist, and must be named if there are several.
fn check_container(pod: &Value, name: &str, container: &str) -> Result<(), Status> {
    let names = |list: &str| -> Vec<String> {
        pod.items(&["spec", list]).iter().map(|spec| spec.text(&["name"]).to_owned()).collect()
    };
    let (containers, inits) = (names("containers"), names("initContainers"));
    if !container.is_empty() {
        let all = containers.iter().chain(&inits).cloned().chain(names("ephemeralContainers"));
        let is_there = all.into_iter().any(|known| known == container);
        let refusal = || Status::bad_request(format!("container {container} is not valid for pod {name}"));
        return if is_there { Ok(()) } else { Err(refusal()) };
    }
    if containers.len() <= 1 {
        return Ok(());
    }
    let mut message =
        format!("a container name must be specified for pod {name}, choose one of: [{}]", containers.join(" "));
    if !inits.is_empty() {
        message.push_str(&format!(" or one of the init containers: [{}]", inits.join(" ")));
    }
    Err(Status::bad_request(message))
}

fn to_service(call: &Call<'_>) -> Result<Answer, Status> {
    let name = object_name(&call.target.name);
    call.stored(name)?;
    Err(not_forwarded(format!("service {name}: Mainstay does not proxy requests to services")))
}

fn to_node(call: &Call<'_>) -> Result<Answer, Status> {
    let name = object_name(&call.target.name);
    if is_simulated(call, name)? {
        return Err(Status::bad_request(format!(
            "node {name} is simulated: there is no kubelet that answers requests"
        )));
    }
    Err(not_forwarded(format!("node {name}: Mainstay does not proxy requests to kubelets")))
}

/// The object's name in `name`, `name:port`, `scheme:name:` and `scheme:name:port`.
fn object_name(text: &str) -> &str {
    match text.split(':').collect::<Vec<_>>().as_slice() {
        [_, name, _] => name,
        [name, ..] => name,
        [] => text,
    }
}

/// Whether the node is simulated. Fails if it does not exist.
fn is_simulated(call: &Call<'_>, node: &str) -> Result<bool, Status> {
    let reader = Reader { store: call.server.store.clone() };
    let (node, _) = reader.get(&format!("/core/nodes/{node}"))?.ok_or_else(|| Status::not_found("", "nodes", node))?;
    Ok(["labels", "annotations"].iter().any(|field| node.text(&["metadata", field, SIMULATED]) == "true"))
}

fn text(text: String) -> Answer {
    Answer { content_type: "text/plain", ..Answer::new(200, Bytes::from(text)) }
}

fn not_forwarded(why: String) -> Status {
    Status::new(501, "NotImplemented", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn names_of_proxies_may_have_a_scheme_and_a_port() {
        for text in ["web", "web:80", "http:web:80", "https:web:", "web:"] {
            assert_eq!(object_name(text), "web", "{text}");
        }
    }

    #[test]
    fn a_container_is_named_where_there_are_several() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let refusal = |pod: &Value, container: &str| check_container(pod, "p", container).err().map(|it| it.message);
        assert_eq!((refusal(&one, ""), refusal(&one, "a"), refusal(&two, "i")), (None, None, None));
        assert_eq!(refusal(&one, "x").as_deref(), Some("container x is not valid for pod p"));
        let why =
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]";
        assert_eq!(refusal(&two, "").as_deref(), Some(why));
    }
}
