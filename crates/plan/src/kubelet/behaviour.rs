//! The behaviour of a simulated pod, from its annotations `sim.mainstay.dev/…`.

use jiff::SignedDuration;
use object::Value;
use object::access::Access;

pub const PREFIX: &str = object::well_known::SIMULATION_PREFIX;
/// On a Node: `true` takes the node down. It is not read from pods: a pod's annotations affect that pod only,
/// because whoever may create a pod must not be able to stop the pods of others.
pub const DOWN: &str = object::well_known::SIMULATED_DOWN;
/// Annotations that earlier versions read from pods to take the pod's node down.
const NODE_FAULTS: [&str; 2] = ["node-down", "down"];

/// How a pod behaves. The default is to run and be ready at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Stays in ContainerCreating for this long.
    pub start_after: SignedDuration,
    pub ready: Readiness,
    pub image_pull_fails: bool,
    /// Every run of its containers crashes after this time.
    pub crash_after: Option<SignedDuration>,
    pub end: Option<End>,
    pub exit_code: i64,
    pub exit_reason: Option<String>,
    pub terminate: Termination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    After(SignedDuration),
    Never,
}

/// How and when the whole pod terminates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Succeed(SignedDuration),
    Fail(SignedDuration),
    Evict(SignedDuration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// After this time, and at the latest at the end of its grace period.
    After(SignedDuration),
    Never,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            start_after: SignedDuration::ZERO,
            ready: Readiness::After(SignedDuration::ZERO),
            image_pull_fails: false,
            crash_after: None,
            end: None,
            exit_code: 1,
            exit_reason: None,
            terminate: Termination::After(SignedDuration::ZERO),
        }
    }
}

impl Behaviour {
    /// Reads a pod's annotations. Invalid ones are ignored; for each, a sentence is returned.
    pub fn of(pod: &Value) -> (Behaviour, Vec<String>) {
        let mut behaviour = Behaviour::default();
        let mut complaints = Vec::new();
        for (key, value) in pod.members(&["metadata", "annotations"]) {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            let value = value.as_str().unwrap_or("");
            if let Err(wanted) = behaviour.take(name, value) {
                complaints.push(match wanted {
                    Wanted::AnotherName if NODE_FAULTS.contains(&name) => {
                        format!("annotation {key:?} is ignored: a pod cannot take its node down; annotate the Node with {DOWN:?}")
                    }
                    Wanted::AnotherName => format!("annotation {key:?} is not known to simulated nodes and is ignored"),
                    Wanted::Value(wanted) => {
                        format!("annotation {key:?} is {value:?}, but must be {wanted}; it is ignored")
                    }
                });
            }
        }
        (behaviour, complaints)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), Wanted> {
        let known = ANNOTATIONS.iter().find(|(known, _)| *known == name);
        known.map_or(Err(Wanted::AnotherName), |(_, read)| read(self, value))
    }
}

type Read = fn(&mut Behaviour, &str) -> Result<(), Wanted>;

/// The annotations by the last part of their names, each with its parser.
const ANNOTATIONS: [(&str, Read); 10] = [
    ("start-after", |behaviour, value| set(&mut behaviour.start_after, duration(value))),
    ("ready", |behaviour, value| {
        let wanted = "\"true\", \"false\" or a duration like \"30s\"";
        behaviour.ready = match value {
            "true" => Readiness::After(SignedDuration::ZERO),
            "false" => Readiness::Never,
            other => Readiness::After(duration(other).map_err(|_| Wanted::Value(wanted))?),
        };
        Ok(())
    }),
    ("image-pull", |behaviour, value| {
        behaviour.image_pull_fails = value == "error";
        if behaviour.image_pull_fails { Ok(()) } else { Err(Wanted::Value("\"error\"")) }
    }),
    ("crash-after", |behaviour, value| set(&mut behaviour.crash_after, duration(value).map(Some))),
    ("succeed-after", |behaviour, value| set(&mut behaviour.end, duration(value).map(End::Succeed).map(Some))),
    ("fail-after", |behaviour, value| set(&mut behaviour.end, duration(value).map(End::Fail).map(Some))),
    ("evict-after", |behaviour, value| set(&mut behaviour.end, duration(value).map(End::Evict).map(Some))),
    ("exit-code", |behaviour, value| {
        let code = value.parse().ok().filter(|code| (1..=255).contains(code));
        set(&mut behaviour.exit_code, code.ok_or(Wanted::Value("a number from 1 to 255")))
    }),
    ("exit-reason", |behaviour, value| {
        let fits = !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric());
        let reason = fits.then(|| Some(value.to_owned()));
        set(&mut behaviour.exit_reason, reason.ok_or(Wanted::Value("one word of letters and digits")))
    }),
    ("terminate-after", |behaviour, value| {
        let wanted = "\"never\" or a duration like \"30s\"";
        behaviour.terminate = match value {
            "never" => Termination::Never,
            other => Termination::After(duration(other).map_err(|_| Wanted::Value(wanted))?),
        };
        Ok(())
    }),
];

fn set<T>(place: &mut T, value: Result<T, Wanted>) -> Result<(), Wanted> {
    *place = value?;
    Ok(())
}

/// Whether a Node is annotated to be down; the error is a sentence about an invalid annotation.
pub fn is_down(node: &Value) -> Result<bool, String> {
    let Some(value) = node.at(&["metadata", "annotations", DOWN]) else { return Ok(false) };
    let value = value.as_str().unwrap_or("");
    truth(value)
        .map_err(|_| format!("annotation {DOWN:?} is {value:?}, but must be \"true\" or \"false\"; it is ignored"))
}

enum Wanted {
    AnotherName,
    Value(&'static str),
}

fn truth(value: &str) -> Result<bool, Wanted> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Wanted::Value("\"true\" or \"false\"")),
    }
}

/// Longer than any test needs, and short enough that a timestamp plus it does not overflow.
const DURATION_MAX: SignedDuration = SignedDuration::from_hours(24 * 365 * 10);

fn duration(value: &str) -> Result<SignedDuration, Wanted> {
    let read: Option<SignedDuration> = value.parse().ok();
    let fits = |duration: &SignedDuration| !duration.is_negative() && *duration <= DURATION_MAX;
    read.filter(fits).ok_or(Wanted::Value("a duration like \"30s\" or \"1m30s\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn read(annotations: Value) -> (Behaviour, Vec<String>) {
        Behaviour::of(&json!({"metadata": {"annotations": annotations}}))
    }

    #[test]
    fn annotations_set_the_behaviour_of_a_pod() {
        let seconds = SignedDuration::from_secs;
        let plain = Behaviour::default();
        let cases = [
            (json!({"other/thing": "x"}), plain.clone()),
            (json!({"sim.mainstay.dev/start-after": "1m30s"}), Behaviour { start_after: seconds(90), ..plain.clone() }),
            (json!({"sim.mainstay.dev/ready": "false"}), Behaviour { ready: Readiness::Never, ..plain.clone() }),
            (json!({"sim.mainstay.dev/ready": "true"}), plain.clone()),
            (
                json!({"sim.mainstay.dev/ready": "500ms"}),
                Behaviour { ready: Readiness::After(SignedDuration::from_millis(500)), ..plain.clone() },
            ),
            (
                json!({"sim.mainstay.dev/crash-after": "0s", "sim.mainstay.dev/exit-code": "137", "sim.mainstay.dev/exit-reason": "OOMKilled"}),
                Behaviour {
                    crash_after: Some(SignedDuration::ZERO),
                    exit_code: 137,
                    exit_reason: Some("OOMKilled".to_owned()),
                    ..plain.clone()
                },
            ),
            (
                json!({"sim.mainstay.dev/terminate-after": "never"}),
                Behaviour { terminate: Termination::Never, ..plain.clone() },
            ),
            (
                json!({"sim.mainstay.dev/evict-after": "2h"}),
                Behaviour { end: Some(End::Evict(seconds(7200))), ..plain },
            ),
        ];
        for (annotations, want) in cases {
            assert_eq!(read(annotations.clone()), (want, vec![]), "{annotations}");
        }
    }

    #[test]
    fn every_annotation_is_documented() {
        let page = include_str!("../../../../docs/guides/nodes.md");
        for name in ANNOTATIONS.map(|(name, _)| format!("{PREFIX}{name}")).into_iter().chain([DOWN.to_owned()]) {
            assert!(page.contains(&format!("| `{name}` |")), "docs/guides/nodes.md does not name {name}");
            let is_known = object::well_known::ANNOTATIONS.iter().any(|known| known.name == name);
            assert!(is_known, "object::well_known does not have {name}");
        }
    }

    #[test]
    fn invalid_annotations_are_reported_and_ignored() {
        let cases = [
            ("ready", "yes", "must be \"true\", \"false\" or a duration like \"30s\""),
            ("start-after", "soon", "must be a duration like \"30s\" or \"1m30s\""),
            ("start-after", "-5s", "must be a duration"),
            ("start-after", "99999999h", "must be a duration"),
            ("crash-after", "", "must be a duration"),
            ("image-pull", "slow", "must be \"error\""),
            ("exit-code", "0", "must be a number from 1 to 255"),
            ("exit-reason", "out of memory", "must be one word"),
            ("terminate-after", "later", "must be \"never\" or a duration"),
            ("node-down", "true", "a pod cannot take its node down; annotate the Node with \"sim.mainstay.dev/down\""),
            ("down", "true", "a pod cannot take its node down"),
            ("explode", "now", "is not known to simulated nodes"),
        ];
        for (name, value, part) in cases {
            let (behaviour, complaints) = read(json!({format!("{PREFIX}{name}"): value}));
            assert_eq!(behaviour, Behaviour::default(), "{name}");
            assert!(complaints.len() == 1 && complaints[0].contains(part), "{name}: {complaints:?}");
        }
        assert!(is_down(&json!({"metadata": {"annotations": {DOWN: "maybe"}}})).unwrap_err().contains("\"maybe\""));
        assert_eq!(is_down(&json!({"metadata": {"annotations": {DOWN: "true"}}})), Ok(true));
        assert_eq!(is_down(&json!({})), Ok(false));
    }
}
