//! The names of gRPC codes: as the specification writes them, and as Go and therefore Kubernetes events print them.

use tonic::Code;

const CODES: [(Code, &str, &str); 17] = [
    (Code::Ok, "OK", "OK"),
    (Code::Cancelled, "CANCELLED", "Canceled"),
    (Code::Unknown, "UNKNOWN", "Unknown"),
    (Code::InvalidArgument, "INVALID_ARGUMENT", "InvalidArgument"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "DeadlineExceeded"),
    (Code::NotFound, "NOT_FOUND", "NotFound"),
    (Code::AlreadyExists, "ALREADY_EXISTS", "AlreadyExists"),
    (Code::PermissionDenied, "PERMISSION_DENIED", "PermissionDenied"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED", "ResourceExhausted"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION", "FailedPrecondition"),
    (Code::Aborted, "ABORTED", "Aborted"),
    (Code::OutOfRange, "OUT_OF_RANGE", "OutOfRange"),
    (Code::Unimplemented, "UNIMPLEMENTED", "Unimplemented"),
    (Code::Internal, "INTERNAL", "Internal"),
    (Code::Unavailable, "UNAVAILABLE", "Unavailable"),
    (Code::DataLoss, "DATA_LOSS", "DataLoss"),
    (Code::Unauthenticated, "UNAUTHENTICATED", "Unauthenticated"),
];

/// The name that Go prints.
pub fn name(code: Code) -> &'static str {
    CODES.iter().find(|(known, ..)| *known == code).map_or("Unknown", |(.., name)| name)
}

/// Parses either name.
pub fn parse(text: &str) -> Option<Code> {
    CODES.iter().find(|(_, upper, camel)| text == *upper || text == *camel).map(|(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_names() {
        for number in 0..17 {
            let code = Code::from_i32(number);
            assert_eq!(parse(name(code)), Some(code));
        }
        assert_eq!(parse("RESOURCE_EXHAUSTED"), Some(Code::ResourceExhausted));
        assert_eq!(parse("resource exhausted"), None);
    }
}
