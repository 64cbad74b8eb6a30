//! Responses of a CSI driver to all calls except CreateVolume: expansion, modification, capacity, driver name, and
//! failures.
//!
//! The first byte of an input selects the call, the rest is the response. With any response, the server must accept
//! the resulting writes and events, and no volume may shrink.

use super::requests::{Session, send};
use crate::Reader;
use bytes::Bytes;
use csi::v1;
use http::{Method, Request};
use object::access::Access;
use object::quantity::Quantity;
use object::{Value, json};
use plan::csi::capacity::{self, Available, Want};
use plan::csi::outcome::{Doubt, Outcome, judge};
use plan::csi::resize::{self, Expanded};
use plan::csi::{Abilities, Code, Driver, Event, Failure, Finish, Options, modify};
use prost::Message;
use server::Running;

const DRIVER: &str = "d.example.com";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c";
const VOLUME: &str = "/api/v1/persistentvolumes/v";
const ASKED: i64 = 2 << 30;
const CODES: [Code; 15] = [
    Code::Canceled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
];

pub fn start() -> Box<dyn Reader> {
    let mut session = Session::new();
    Box::new(move |input: &[u8]| session.with(async |server| read(server, input).await))
}

async fn read(server: &Running, input: &[u8]) -> String {
    let Some((call, answer)) = input.split_first() else { return "nothing".to_owned() };
    match call % 6 {
        0 => match v1::ControllerExpandVolumeResponse::decode(answer) {
            Ok(answer) => {
                let grown = Expanded { bytes: answer.capacity_bytes, node_part: answer.node_expansion_required };
                grow(server, Ok(grown)).await
            }
            Err(_) => "not a response".to_owned(),
        },
        1 => grow(server, Err(failure(answer))).await,
        2 => change_attributes(server, Err(failure(answer))).await,
        3 => match v1::GetCapacityResponse::decode(answer) {
            Ok(answer) => {
                write_capacity(server, answer.available_capacity, answer.maximum_volume_size, DRIVER).await;
                "room".to_owned()
            }
            Err(_) => "not a response".to_owned(),
        },
        4 => match v1::GetPluginInfoResponse::decode(answer) {
            Ok(answer) if csi::is_driver_name(&answer.name) => {
                write_capacity(server, 1, None, &answer.name).await;
                let mut volume = volume();
                volume.put(&["spec", "csi", "driver"], answer.name.as_str());
                must(server, Method::POST, "/api/v1/persistentvolumes", &volume).await;
                clear(server).await;
                "a name".to_owned()
            }
            Ok(_) => "no name".to_owned(),
            Err(_) => "not a response".to_owned(),
        },
        _ => {
            let failure = failure(answer);
            let words = format!("{:?}", failure.code);
            match judge(&super::driver::intent(), Err(failure), &mut Doubt::default(), jiff::Timestamp::UNIX_EPOCH) {
                Outcome::Open { why } | Outcome::Refused { why, .. } | Outcome::Reschedule { why } => {
                    write_event(server, &Event::warning("ProvisioningFailed", why)).await;
                    words
                }
                other => panic!("a failed call returned a volume: {other:?}"),
            }
        }
    }
}

/// A failure: one byte for the code, the rest is the message.
fn failure(answer: &[u8]) -> Failure {
    let (code, message) = answer.split_first().unwrap_or((&0, &[]));
    Failure::new(CODES[usize::from(*code) % CODES.len()], String::from_utf8_lossy(message))
}

/// Resizes a claim that requests more than its volume has.
async fn grow(server: &Running, answer: Result<Expanded, Failure>) -> String {
    let (claim, volume) = pair(server).await;
    let (mut memory, now) = (resize::Memory::default(), jiff::Timestamp::UNIX_EPOCH);
    let words = format!("{:?}", answer.as_ref().map(|grown| grown.node_part).map_err(|failure| failure.code));
    let done = resize::finish(&claim, &volume, &driver(), ASKED, answer, &mut memory, now);
    let words = format!("{words} {}", done.again);
    write(server, done).await;
    let sizes =
        [(VOLUME, ["spec", "capacity", "storage"], &volume), (CLAIM, ["status", "capacity", "storage"], &claim)];
    for (path, field, before) in sizes {
        let size = |object: &Value| object.at(&field).and_then(Quantity::of).expect("a size");
        let after = must(server, Method::GET, path, &Value::Null).await;
        assert!(size(&after) >= size(before), "{path} becomes smaller: {} instead of {}", size(&after), size(before));
    }
    clear(server).await;
    words
}

async fn change_attributes(server: &Running, answer: Result<(), Failure>) -> String {
    let (claim, volume) = pair(server).await;
    let mut memory = modify::Memory::default();
    let words = format!("{:?}", answer.as_ref().map_err(|failure| failure.code));
    let done = modify::finish(&claim, &volume, "gold", answer, &mut memory, jiff::Timestamp::UNIX_EPOCH);
    write(server, done).await;
    clear(server).await;
    words
}

/// Writes the patches and events of the resizer.
async fn write(server: &Running, done: Finish) {
    if let Some(patch) = &done.volume {
        must(server, Method::PATCH, VOLUME, patch).await;
    }
    if let Some(patch) = &done.claim {
        must(server, Method::PATCH, &format!("{CLAIM}/status"), patch).await;
    }
    if let Some(event) = &done.event {
        write_event(server, event).await;
    }
}

async fn write_capacity(server: &Running, bytes: i64, largest_bytes: Option<i64>, driver: &str) {
    let want = Want { class: "c".to_owned(), parameters: Default::default(), place: Default::default() };
    let object = capacity::object(&want, driver, "default", Available { bytes, largest_bytes });
    let path = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
    let stored = must(server, Method::POST, path, &object).await;
    assert!(capacity::is_current(&stored, &object), "the capacity would be written again forever: {stored}");
    must(server, Method::DELETE, &format!("{path}/{}", capacity::object_name(&want, driver)), &json!({})).await;
}

async fn write_event(server: &Running, event: &Event) {
    let object = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "e", "namespace": "default"},
        "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"},
        "type": "Warning", "reason": event.reason, "message": event.message,
    });
    must(server, Method::POST, "/api/v1/namespaces/default/events", &object).await;
}

async fn pair(server: &Running) -> (Value, Value) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": "v", "resources": {"requests": {"storage": "2Gi"}},
        },
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    });
    must(server, Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await;
    let status = json!({"status": claim["status"]});
    let claim = must(server, Method::PATCH, &format!("{CLAIM}/status"), &status).await;
    (claim, must(server, Method::POST, "/api/v1/persistentvolumes", &volume()).await)
}

fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": "h"},
        },
    })
}

fn driver() -> Driver {
    let can = Abilities { expand: true, modify: true, ..Abilities::default() };
    Driver { name: DRIVER.to_owned(), can, options: Options::default() }
}

/// Deletes the claim and the volume, with their finalizers.
async fn clear(server: &Running) {
    for path in [CLAIM, VOLUME] {
        let get = Request::get(path).body(Bytes::new()).expect("a path");
        if send(server, get).await.0 == 404 {
            continue;
        }
        must(server, Method::PATCH, path, &json!({"metadata": {"finalizers": null}})).await;
        must(server, Method::DELETE, path, &json!({})).await;
    }
}

async fn must(server: &Running, method: Method, path: &str, body: &Value) -> Value {
    let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let sent = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method.clone()).uri(path).header("content-type", media).body(sent);
    let (code, answer) = send(server, request.expect("a request")).await;
    assert!(code < 300, "{method} {path} {body} is refused: {answer}");
    answer
}
