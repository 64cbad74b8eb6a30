//! Interprets a driver's response to CreateVolume.

use super::provision::Intent;
use super::topology::{self, Segment};
use super::{Code, Failure};
use jiff::{SignedDuration, Timestamp};
use object::access::Access;
use object::quantity::Quantity;
use object::{Value, json};
use std::collections::BTreeMap;

/// The volume attribute that names the provisioner, read by the driver's node plugin.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// After a lost response: how often and for how long a driver must refuse until no volume is assumed to exist.
const BELIEVED_AFTER: u32 = 5;
const BELIEVED_AFTER_S: i64 = 60;

/// A volume that a driver created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Created {
    pub handle: String,
    /// 0 if the driver does not say.
    pub bytes: i64,
    pub context: BTreeMap<String, String>,
    /// The topology segments from which it is reachable; empty = everywhere.
    pub places: Vec<Segment>,
    /// Whether the driver says that it is a copy of the source.
    pub is_copy: bool,
}

/// What to do after a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Save this PV; the intent is then fulfilled.
    Save(Box<Value>),
    /// The volume does not match the request: delete it.
    Discard { handle: String, why: String },
    /// A volume may or may not exist: repeat the same request.
    Open { why: String },
    /// No volume exists: remove the intent and plan again later. `infeasible`: much later, unless the class changes.
    Refused { why: String, infeasible: bool },
    /// No volume exists, and the selected node's topology segment has no capacity.
    Reschedule { why: String },
}

/// Whether a driver may hold a volume whose CreateVolume response was lost.
///
/// A refusal answers its own call, not an earlier one. The request is repeated until the driver either returns the volume,
/// or has refused so often that no volume can exist: a driver must return a volume that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncertainty {
    open: bool,
    refusals: u32,
    refused_since: Option<Timestamp>,
}

impl Uncertainty {
    /// An earlier call may have been made whose response is unknown.
    pub fn open() -> Uncertainty {
        Uncertainty { open: true, ..Uncertainty::default() }
    }

    /// Records a failure; returns whether it is now certain that no volume exists.
    fn settles(&mut self, code: Code, now: Timestamp) -> bool {
        if code.leaves_open() {
            *self = Uncertainty::open();
            return false;
        }
        if !self.open {
            return true;
        }
        if !matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted) {
            *self = Uncertainty::open();
            return false;
        }
        self.refusals = self.refusals.saturating_add(1);
        let since = *self.refused_since.get_or_insert(now);
        let settled =
            self.refusals >= BELIEVED_AFTER && now.duration_since(since) >= SignedDuration::from_secs(BELIEVED_AFTER_S);
        if settled {
            *self = Uncertainty::default();
        }
        settled
    }
}

/// Interprets a response, and updates `uncertainty`, which is what earlier responses left open.
pub fn classify(
    intent: &Intent,
    answer: Result<Created, Failure>,
    uncertainty: &mut Uncertainty,
    now: Timestamp,
) -> Outcome {
    let failure = match answer {
        Ok(created) => return made(intent, created),
        Err(failure) => failure,
    };
    let why = failure.to_string();
    if !uncertainty.settles(failure.code, now) {
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
        return Outcome::Open { why: "the driver returned a volume without a handle".to_owned() };
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

    /// D3: a size of 0 in the response means the requested size.
    #[test]
    fn a_volume_is_saved_with_the_size_from_the_response() {
        for (bytes, want) in [(0, "1Gi"), (1 << 30, "1Gi"), (3 << 30, "3Gi"), ((1 << 30) + 1, "1073741825")] {
            let Outcome::Save(volume) = classify(&intent(), Ok(created(bytes)), &mut Uncertainty::default(), at(0))
            else {
                panic!()
            };
            assert_eq!(volume["spec"]["capacity"]["storage"], want);
            assert_eq!(volume["spec"]["csi"]["volumeHandle"], "h");
            assert_eq!(volume["spec"]["csi"]["volumeAttributes"][IDENTITY], "mainstay-d");
            assert!(!volume.has(&["spec", "nodeAffinity"]));
        }
    }

    #[test]
    fn volumes_that_are_too_small_or_not_a_copy_are_discarded() {
        let small = classify(&intent(), Ok(created(5)), &mut Uncertainty::default(), at(0));
        assert!(matches!(small, Outcome::Discard { why, .. } if why.contains("less than requested capacity")));
        let mut copy = intent();
        copy.request.source = Some("s".to_owned());
        let empty = classify(&copy, Ok(created(0)), &mut Uncertainty::default(), at(0));
        assert!(matches!(empty, Outcome::Discard { why, .. } if why.contains("content source missing")));
        let good = classify(&copy, Ok(Created { is_copy: true, ..created(0) }), &mut Uncertainty::default(), at(0));
        assert!(matches!(good, Outcome::Save(_)));
        let nameless = classify(&intent(), Ok(Created::default()), &mut Uncertainty::default(), at(0));
        assert!(matches!(nameless, Outcome::Open { .. }));
    }

    /// The error classes of digest 5.6.
    #[test]
    fn failures_leave_the_outcome_open_refuse_or_reschedule() {
        use Code::*;
        for code in [Canceled, DeadlineExceeded, Unavailable, Aborted] {
            let mut uncertainty = Uncertainty::default();
            assert!(matches!(classify(&intent(), fail(code), &mut uncertainty, at(0)), Outcome::Open { .. }), "{code}");
            assert_eq!(uncertainty, Uncertainty::open());
        }
        for code in [Unknown, NotFound, AlreadyExists, PermissionDenied, OutOfRange, Internal, ResourceExhausted] {
            let outcome = classify(&intent(), fail(code), &mut Uncertainty::default(), at(0));
            assert!(matches!(outcome, Outcome::Refused { infeasible: false, .. }), "{code}");
        }
        let outcome = classify(&intent(), fail(InvalidArgument), &mut Uncertainty::default(), at(0));
        assert!(matches!(outcome, Outcome::Refused { infeasible: true, .. }));
        let movable = Intent { reschedules: true, ..intent() };
        let outcome = classify(&movable, fail(ResourceExhausted), &mut Uncertainty::default(), at(0));
        assert!(matches!(outcome, Outcome::Reschedule { .. }));
    }

    /// Digest 11.5: after a lost response and a refusal, the volume may exist.
    #[test]
    fn after_a_lost_response_one_refusal_is_not_final() {
        for code in [Code::Internal, Code::AlreadyExists, Code::NotFound, Code::InvalidArgument] {
            let mut uncertainty = Uncertainty::default();
            classify(&intent(), fail(Code::DeadlineExceeded), &mut uncertainty, at(0));
            let next = classify(&intent(), fail(code), &mut uncertainty, at(1));
            assert!(matches!(next, Outcome::Open { .. }), "{code}");
            let Outcome::Save(_) = classify(&intent(), Ok(created(0)), &mut uncertainty, at(2)) else {
                panic!("{code}")
            };
        }
        // An internal error never rules out a volume.
        let mut uncertainty = Uncertainty::open();
        for second in 0..1000 {
            assert!(matches!(
                classify(&intent(), fail(Code::Internal), &mut uncertainty, at(second)),
                Outcome::Open { .. }
            ));
        }
    }

    #[test]
    fn repeated_refusals_for_a_minute_are_final() {
        let mut uncertainty = Uncertainty::open();
        for second in [0, 10, 20, 30] {
            assert!(matches!(
                classify(&intent(), fail(Code::OutOfRange), &mut uncertainty, at(second)),
                Outcome::Open { .. }
            ));
        }
        assert!(matches!(classify(&intent(), fail(Code::OutOfRange), &mut uncertainty, at(59)), Outcome::Open { .. }));
        assert!(matches!(
            classify(&intent(), fail(Code::OutOfRange), &mut uncertainty, at(60)),
            Outcome::Refused { .. }
        ));
        assert_eq!(uncertainty, Uncertainty::default());

        // Any other error in between restarts the count.
        let mut uncertainty = Uncertainty::open();
        for second in [0, 10, 20, 30] {
            classify(&intent(), fail(Code::OutOfRange), &mut uncertainty, at(second));
        }
        classify(&intent(), fail(Code::Unavailable), &mut uncertainty, at(40));
        assert!(matches!(classify(&intent(), fail(Code::OutOfRange), &mut uncertainty, at(100)), Outcome::Open { .. }));
    }
}
