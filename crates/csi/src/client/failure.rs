//! Failed calls, and what a failure means for the requested operation.

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

/// The meaning of a failed CreateVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateFailure {
    /// The volume may exist, now or later: repeat the call with the same arguments, even if no claim wants it any more.
    InBackground,
    /// No capacity. With topology another segment may have some.
    Exhausted,
    /// The volume does not exist, and never will with these arguments.
    Infeasible,
    /// The volume does not exist; the call may be retried.
    Final,
}

/// The meaning of a failed ControllerExpandVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpandFailure {
    /// The expansion may be in progress: request no other size before it ends.
    InProgress,
    /// Impossible with this size.
    Infeasible,
    /// Impossible while the volume is in use.
    InUse,
    /// Temporary.
    Final,
}

/// The meaning of a failed ControllerModifyVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyFailure {
    /// The modification may be in progress: request no other class before it ends.
    InProgress,
    /// Impossible with these parameters.
    Infeasible,
    /// Temporary.
    Final,
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

    /// Classifies a failed CreateVolume as the external provisioner does.
    pub fn creating(&self) -> CreateFailure {
        match self.code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => CreateFailure::InBackground,
            Code::ResourceExhausted => CreateFailure::Exhausted,
            Code::InvalidArgument => CreateFailure::Infeasible,
            _ => CreateFailure::Final,
        }
    }

    /// Classifies a failed ControllerExpandVolume as the external resizer does. ResourceExhausted is not final here,
    /// because capacity may be freed.
    pub fn expanding(&self) -> ExpandFailure {
        match self.code {
            _ if self.may_be_in_progress() => ExpandFailure::InProgress,
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => ExpandFailure::Infeasible,
            Code::FailedPrecondition => ExpandFailure::InUse,
            _ => ExpandFailure::Final,
        }
    }

    /// Classifies a failed ControllerModifyVolume as the external resizer does.
    pub fn modifying(&self) -> ModifyFailure {
        match self.code {
            _ if self.may_be_in_progress() => ModifyFailure::InProgress,
            Code::InvalidArgument => ModifyFailure::Infeasible,
            _ => ModifyFailure::Final,
        }
    }

    fn may_be_in_progress(&self) -> bool {
        matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        )
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
    fn every_code_is_classified_as_upstream_does() {
        use CreateFailure::{Exhausted, InBackground};
        use ExpandFailure::{InProgress, InUse};
        // Codes that are not listed are final for all three calls.
        let judged = [
            (Code::Cancelled, InBackground, InProgress, ModifyFailure::InProgress),
            (Code::DeadlineExceeded, InBackground, InProgress, ModifyFailure::InProgress),
            (Code::Unavailable, InBackground, InProgress, ModifyFailure::InProgress),
            (Code::Aborted, InBackground, InProgress, ModifyFailure::InProgress),
            (Code::ResourceExhausted, Exhausted, InProgress, ModifyFailure::InProgress),
            (Code::InvalidArgument, CreateFailure::Infeasible, ExpandFailure::Infeasible, ModifyFailure::Infeasible),
            (Code::OutOfRange, CreateFailure::Final, ExpandFailure::Infeasible, ModifyFailure::Final),
            (Code::NotFound, CreateFailure::Final, ExpandFailure::Infeasible, ModifyFailure::Final),
            (Code::FailedPrecondition, CreateFailure::Final, InUse, ModifyFailure::Final),
        ];
        for number in 1..17 {
            let code = Code::from_i32(number);
            let failure = Failure { method: "", code, message: String::new() };
            let expected = judged
                .iter()
                .find(|row| row.0 == code)
                .map_or((CreateFailure::Final, ExpandFailure::Final, ModifyFailure::Final), |row| {
                    (row.1, row.2, row.3)
                });
            assert_eq!((failure.creating(), failure.expanding(), failure.modifying()), expected, "{code:?}");
        }
    }

    #[test]
    fn a_failure_reads_as_in_kubernetes_events() {
        let failure = Failure { method: "", code: Code::Cancelled, message: "no more".to_owned() };
        assert_eq!(failure.to_string(), "rpc error: code = Canceled desc = no more");
    }
}
