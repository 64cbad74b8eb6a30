//! Failed calls. The caller decides what a code means for the volume.

use crate::code;
use crate::endpoint::Endpoint;
use std::error::Error;
use std::time::Duration;
use tonic::{Code, Status};

/// A failed call, with the driver's message if it sent one. Prints as gRPC errors do in Kubernetes events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code::name(*.code))]
pub struct Failure {
    /// For example `/csi.v1.Controller/CreateVolume`.
    pub method: &'static str,
    pub code: Code,
    pub message: String,
}

impl Failure {
    /// A failure that the driver sent.
    pub(super) fn from_driver(method: &'static str, status: &Status) -> Failure {
        Failure { method, code: status.code(), message: status.message().to_owned() }
    }

    /// A failure of the transport. Whether the driver received and executed the call is unknown, whatever code the
    /// library assigns.
    pub(super) fn broken(method: &'static str, status: &Status, endpoint: &Endpoint, is_late: bool) -> Failure {
        let Some(source) = status.source() else {
            let message = format!("the response of the CSI driver at {endpoint} cannot be read: {}", status.message());
            return Failure { method, code: Code::Unavailable, message };
        };
        if is_late {
            return Failure { method, code: Code::DeadlineExceeded, message: LATE.to_owned() };
        }
        let message = format!("the connection to the CSI driver at {endpoint} failed: {}", root(source));
        Failure { method, code: Code::Unavailable, message }
    }

    pub(super) fn late(method: &'static str, deadline: Duration) -> Failure {
        let message = format!("{LATE} (within {} ms)", deadline.as_millis());
        Failure { method, code: Code::DeadlineExceeded, message }
    }

    /// The name of the code as Kubernetes prints it.
    pub fn code_name(&self) -> &'static str {
        code::name(self.code)
    }
}

const LATE: &str = "the CSI driver did not answer in time";

/// The innermost error, which is the most specific and the shortest.
fn root<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_as_in_kubernetes_events() {
        let failure = Failure { method: "", code: Code::Cancelled, message: "no more".to_owned() };
        assert_eq!(failure.to_string(), "rpc error: code = Canceled desc = no more");
    }
}
