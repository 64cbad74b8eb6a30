//! What a driver's answer to a request for a volume means.

use super::provision::Intent;
use super::topology::{self, Segment};
use super::{Code, Failure};
use jiff::{SignedDuration, Timestamp};
use object::access::Access;
use object::quantity::Quantity;
use object::{Value, json};
use std::collections::BTreeMap;

/// Who made the volume, for the driver's nodes to read.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// How often and for how long a driver must refuse, after an answer of it was lost, until it is believed that it has made nothing.
const BELIEVED_AFTER: u32 = 5;
const BELIEVED_AFTER_S: i64 = 60;

/// A volume that a driver made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Created {
    pub handle: String,
    /// 0 when the driver does not say.
    pub bytes: i64,
    pub context: BTreeMap<String, String>,
    /// Where it is reachable from; empty = everywhere.
    pub places: Vec<Segment>,
    /// Whether the driver says that it is a copy.
    pub is_copy: bool,
}

/// What to do after an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Save this volume object; then what was written down is done.
    Save(Box<Value>),
    /// It is not what was asked for: delete it, then nothing exists.
    Discard { handle: String, why: String },
    /// There may or may not be a volume: ask again, the same.
    Open { why: String },
    /// There is no volume: forget what was written down, decide anew later. `infeasible`: much later, unless the class changes.
    Refused { why: String, infeasible: bool },
    /// There is no volume, and there is no room where the node is.
    Reschedule { why: String },
}

/// Whether a driver may hold a volume that nobody was told of.
///
/// A refusal settles the call that it answers, not an earlier one whose answer was lost. A driver is asked again until it either names
/// the volume, or has said so often that the request cannot be met that the volume cannot be there: one that is there must be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    open: bool,
    refusals: u32,
    refused_since: Option<Timestamp>,
}

impl Doubt {
    /// An earlier call may have been made whose answer is unknown.
    pub fn open() -> Doubt {
        Doubt { open: true, ..Doubt::default() }
    }

    /// Takes note of a failure; returns whether it is certain now that there is no volume.
    fn settles(&mut self, code: Code, now: Timestamp) -> bool {
        if code.leaves_open() {
            *self = Doubt::open();
            return false;
        }
        if !self.open {
            return true;
        }
        if !matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted) {
            *self = Doubt::open();
            return false;
        }
        self.refusals = self.refusals.saturating_add(1);
        let since = *self.refused_since.get_or_insert(now);
        let settled =
            self.refusals >= BELIEVED_AFTER && now.duration_since(since) >= SignedDuration::from_secs(BELIEVED_AFTER_S);
        if settled {
            *self = Doubt::default();
        }
        settled
    }
}

/// What an answer means; `doubt` is what was known before, and is brought up to date.
pub fn judge(intent: &Intent, answer: Result<Created, Failure>, doubt: &mut Doubt, now: Timestamp) -> Outcome {
    let failure = match answer {
        Ok(created) => return made(intent, created),
        Err(failure) => failure,
    };
    let why = failure.to_string();
    if !doubt.settles(failure.code, now) {
        return Outcome::Open { why };
    }
    if failure.code == Code::ResourceExhausted && intent.reschedules {
        return Outcome::Reschedule { why };
    }
    Outcome::Refused { why, infeasible: failure.code == Code::InvalidArgument }
}

fn made(intent: &Intent, created: Created) -> Outcome {
    let required = intent.request.required_bytes;
    if created.handle.is_empty() {
        return Outcome::Open { why: "the driver made a volume but did not say which".to_owned() };
    }
    if created.bytes != 0 && created.bytes < required {
        let why = format!("created volume capacity {} less than requested capacity {required}", created.bytes);
        return Outcome::Discard { handle: created.handle, why };
    }
    if intent.request.source.is_some() && !created.is_copy {
        return Outcome::Discard { handle: created.handle, why: "volume content source missing".to_owned() };
    }
    let bytes = if created.bytes == 0 { required } else { created.bytes };
    let mut attributes = created.context;
    attributes.insert(IDENTITY.to_owned(), format!("mainstay-{}", intent.driver));
    let mut volume = intent.volume.clone();
    volume.put(&["spec", "capacity"], json!({"storage": Quantity::from_bytes(bytes).to_string()}));
    volume.put(&["spec", "csi", "volumeHandle"], created.handle);
    volume.put(&["spec", "csi", "volumeAttributes"], json!(attributes));
    if let Some(affinity) = topology::affinity(&created.places) {
        volume.put(&["spec", "nodeAffinity"], affinity);
    }
    Outcome::Save(Box::new(volume))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::provision::CreateVolume;

    fn intent() -> Intent {
        Intent {
            driver: "d".to_owned(),
            request: CreateVolume {
                name: "pvc-u".to_owned(),
                required_bytes: 1 << 30,
                capabilities: Vec::new(),
                parameters: BTreeMap::new(),
                mutable_parameters: BTreeMap::new(),
                source: None,
                topology: None,
                secret: None,
            },
            volume: json!({"spec": {"csi": {"driver": "d"}}}),
            reschedules: false,
        }
    }

    fn created(bytes: i64) -> Created {
        Created { handle: "h".to_owned(), bytes, ..Created::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fail(code: Code) -> Result<Created, Failure> {
        Err(Failure::new(code, "x"))
    }

    /// D3: a driver that does not say made what was asked for.
    #[test]
    fn a_volume_is_saved_with_the_size_that_it_has() {
        for (bytes, want) in [(0, "1Gi"), (1 << 30, "1Gi"), (3 << 30, "3Gi"), ((1 << 30) + 1, "1073741825")] {
            let Outcome::Save(volume) = judge(&intent(), Ok(created(bytes)), &mut Doubt::default(), at(0)) else {
                panic!()
            };
            assert_eq!(volume["spec"]["capacity"]["storage"], want);
            assert_eq!(volume["spec"]["csi"]["volumeHandle"], "h");
            assert_eq!(volume["spec"]["csi"]["volumeAttributes"][IDENTITY], "mainstay-d");
            assert!(!volume.has(&["spec", "nodeAffinity"]));
        }
    }

    #[test]
    fn what_is_too_small_or_no_copy_is_discarded() {
        let small = judge(&intent(), Ok(created(5)), &mut Doubt::default(), at(0));
        assert!(matches!(small, Outcome::Discard { why, .. } if why.contains("less than requested capacity")));
        let mut copy = intent();
        copy.request.source = Some("s".to_owned());
        let empty = judge(&copy, Ok(created(0)), &mut Doubt::default(), at(0));
        assert!(matches!(empty, Outcome::Discard { why, .. } if why.contains("content source missing")));
        let good = judge(&copy, Ok(Created { is_copy: true, ..created(0) }), &mut Doubt::default(), at(0));
        assert!(matches!(good, Outcome::Save(_)));
        let nameless = judge(&intent(), Ok(Created::default()), &mut Doubt::default(), at(0));
        assert!(matches!(nameless, Outcome::Open { .. }));
    }

    /// The classes of digest 5.6.
    #[test]
    fn failures_leave_open_refuse_or_ask_for_another_node() {
        use Code::*;
        for code in [Canceled, DeadlineExceeded, Unavailable, Aborted] {
            let mut doubt = Doubt::default();
            assert!(matches!(judge(&intent(), fail(code), &mut doubt, at(0)), Outcome::Open { .. }), "{code}");
            assert_eq!(doubt, Doubt::open());
        }
        for code in [Unknown, NotFound, AlreadyExists, PermissionDenied, OutOfRange, Internal, ResourceExhausted] {
            let outcome = judge(&intent(), fail(code), &mut Doubt::default(), at(0));
            assert!(matches!(outcome, Outcome::Refused { infeasible: false, .. }), "{code}");
        }
        let outcome = judge(&intent(), fail(InvalidArgument), &mut Doubt::default(), at(0));
        assert!(matches!(outcome, Outcome::Refused { infeasible: true, .. }));
        let movable = Intent { reschedules: true, ..intent() };
        let outcome = judge(&movable, fail(ResourceExhausted), &mut Doubt::default(), at(0));
        assert!(matches!(outcome, Outcome::Reschedule { .. }));
    }

    /// Digest 11.5: a lost answer, then a refusal: the volume may be there.
    #[test]
    fn after_a_lost_answer_one_refusal_settles_nothing() {
        for code in [Code::Internal, Code::AlreadyExists, Code::NotFound, Code::InvalidArgument] {
            let mut doubt = Doubt::default();
            judge(&intent(), fail(Code::DeadlineExceeded), &mut doubt, at(0));
            let next = judge(&intent(), fail(code), &mut doubt, at(1));
            assert!(matches!(next, Outcome::Open { .. }), "{code}");
            let Outcome::Save(_) = judge(&intent(), Ok(created(0)), &mut doubt, at(2)) else { panic!("{code}") };
        }
        // An internal error never says that there is nothing.
        let mut doubt = Doubt::open();
        for second in 0..1000 {
            assert!(matches!(judge(&intent(), fail(Code::Internal), &mut doubt, at(second)), Outcome::Open { .. }));
        }
    }

    #[test]
    fn a_driver_that_keeps_refusing_is_believed_in_the_end() {
        let mut doubt = Doubt::open();
        for second in [0, 10, 20, 30] {
            assert!(matches!(judge(&intent(), fail(Code::OutOfRange), &mut doubt, at(second)), Outcome::Open { .. }));
        }
        assert!(matches!(judge(&intent(), fail(Code::OutOfRange), &mut doubt, at(59)), Outcome::Open { .. }));
        assert!(matches!(judge(&intent(), fail(Code::OutOfRange), &mut doubt, at(60)), Outcome::Refused { .. }));
        assert_eq!(doubt, Doubt::default());

        // Anything else in between starts the count anew.
        let mut doubt = Doubt::open();
        for second in [0, 10, 20, 30] {
            judge(&intent(), fail(Code::OutOfRange), &mut doubt, at(second));
        }
        judge(&intent(), fail(Code::Unavailable), &mut doubt, at(40));
        assert!(matches!(judge(&intent(), fail(Code::OutOfRange), &mut doubt, at(100)), Outcome::Open { .. }));
    }
}
