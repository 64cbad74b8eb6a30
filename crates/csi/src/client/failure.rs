//! Calls that failed, and what that means for what they asked for.

use crate::code;
use crate::endpoint::Endpoint;
use std::error::Error;
use std::time::Duration;
use tonic::{Code, Status};

/// A failed call, in the words of the driver where it had any. Prints as gRPC's errors do in Kubernetes' events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code::name(*.code))]
pub struct Failure {
    /// As `/csi.v1.Controller/CreateVolume`.
    pub method: &'static str,
    pub code: Code,
    pub message: String,
}

/// What a failed CreateVolume means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateFailure {
    /// Nobody knows whether the volume exists or will: ask again with the same arguments, even if nobody wants it any more.
    InBackground,
    /// There is no room. With topology another place may have some.
    Exhausted,
    /// There is no volume, and will be none with these arguments.
    Infeasible,
    /// There is no volume; it may be tried again.
    Final,
}

/// What a failed ControllerExpandVolume means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpandFailure {
    /// It may be happening: no other size may be asked for before it ends.
    InProgress,
    /// Never with this size.
    Infeasible,
    /// Not while the volume is in use.
    InUse,
    /// Not now.
    Final,
}

/// What a failed ControllerModifyVolume means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyFailure {
    /// It may be happening: no other class may be asked for before it ends.
    InProgress,
    /// Never with these parameters.
    Infeasible,
    /// Not now.
    Final,
}

impl Failure {
    /// The driver's own word.
    pub(super) fn said(method: &'static str, status: &Status) -> Failure {
        Failure { method, code: status.code(), message: status.message().to_owned() }
    }

    /// What went wrong on the way: whether the driver has heard of it, and done it, nobody knows, whatever the code that the library finds
    /// for it.
    pub(super) fn broken(method: &'static str, status: &Status, endpoint: &Endpoint, is_late: bool) -> Failure {
        let Some(source) = status.source() else {
            let message = format!("the answer of the CSI driver at {endpoint} cannot be read: {}", status.message());
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

    /// As the external provisioner judges a failed CreateVolume.
    pub fn creating(&self) -> CreateFailure {
        match self.code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => CreateFailure::InBackground,
            Code::ResourceExhausted => CreateFailure::Exhausted,
            Code::InvalidArgument => CreateFailure::Infeasible,
            _ => CreateFailure::Final,
        }
    }

    /// As the external resizer judges a failed ControllerExpandVolume. To be out of room is not final here: it may be freed.
    pub fn expanding(&self) -> ExpandFailure {
        match self.code {
            _ if self.may_be_in_progress() => ExpandFailure::InProgress,
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => ExpandFailure::Infeasible,
            Code::FailedPrecondition => ExpandFailure::InUse,
            _ => ExpandFailure::Final,
        }
    }

    /// As the external resizer judges a failed ControllerModifyVolume.
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

/// The error at the bottom, which says most in fewest words.
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
    fn every_code_is_judged_as_upstream_does() {
        use CreateFailure::{Exhausted, InBackground};
        use ExpandFailure::{InProgress, InUse};
        // What is not listed is final for all three.
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
