//! The resizer and modifier: makes volumes larger, and changes their attributes, as their claims ask.

use super::drivers::{Drivers, Known};
use super::metrics::Metrics;
use super::{attributes_classes, claims, secrets, tell, volumes};
use crate::controllers::ControllerContext;
use jiff::Timestamp;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Index, Key, key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::Events;
use kit::queue::Queue;
use kit::worker::{self, Source};
use kit::{Clock, KeyedBackoff};
use object::Value;
use object::access::{Access, name, namespace, uid};
use plan::csi::modify::{self, Modification};
use plan::csi::resize::{self, Expanded, Expansion};
use plan::csi::{Code, Finish, SecretRef};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const WORKERS: usize = 10;
/// A volume in use is looked at this often: its pods are not followed for it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "csi-resizer-controller",
    account: "csi-resizer",
    scope: Scope::Cluster,
    rules: &[
        allow("get list watch patch", "core", "persistentvolumes"),
        allow("get list watch", "core", "persistentvolumeclaims"),
        allow("patch", "core", "persistentvolumeclaims/status"),
        allow("list", "core", "pods"),
        allow("list watch", "storage.k8s.io", "volumeattributesclasses"),
        allow("get", "core", "secrets"),
    ],
};

/// Serves the drivers of this process, until the part stops.
pub async fn run(context: ControllerContext) {
    if context.drivers.is_empty() {
        return;
    }
    let control = Arc::new(Control::new(&context));
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let work = control.clone();
    let worker = worker::run_with(context.clone(), queue.clone(), control.sources(), WORKERS, move |key| {
        let control = work.clone();
        async move { control.sync(key).await }
    });
    let greet = async {
        let mut arrivals = context.drivers.arrivals();
        while arrivals.changed().await.is_ok() {
            control.claim_cache.all().iter().filter(|claim| is_due(claim)).for_each(|claim| queue.add(key(claim)));
        }
    };
    tokio::select! {
        biased;
        () = worker => {}
        () = greet => {}
    }
}

struct Control {
    api: Api,
    events: Events,
    metrics: Metrics,
    clock: Clock,
    drivers: Drivers,
    claim_cache: Cache,
    volume_cache: Cache,
    class_cache: Cache,
    /// Claims by the attributes class that they want.
    wishes: Index,
    memories: Mutex<HashMap<Key, Memories>>,
    attempts: KeyedBackoff<(Key, &'static str)>,
    claims: Resource,
    volumes: Resource,
}

/// What is remembered of a claim.
#[derive(Clone, Default)]
struct Memories {
    uid: String,
    resize: resize::Memory,
    modify: modify::Memory,
}

/// A call that was made.
struct Attempt<'a> {
    place: (Key, &'static str),
    /// What it asked for.
    basis: String,
    volume: &'a Arc<Value>,
    known: &'a Known,
    /// How it failed.
    code: Option<Code>,
}

/// A claim that changes all the time is tried again later.
const WRITE_ATTEMPTS: usize = 5;

type Again = Result<Option<Duration>, ApiError>;

impl Control {
    fn new(context: &ControllerContext) -> Control {
        let claim_cache = Cache::default();
        Control {
            api: context.api.clone(),
            events: context.events.clone(),
            metrics: context.metrics.csi.clone(),
            clock: context.clock.clone(),
            drivers: context.drivers.clone(),
            wishes: claim_cache.index(|claim| match claim.text(&["spec", "volumeAttributesClassName"]) {
                "" => Vec::new(),
                class => vec![("".into(), class.into())],
            }),
            claim_cache,
            volume_cache: Cache::default(),
            class_cache: Cache::default(),
            memories: Mutex::default(),
            attempts: KeyedBackoff::default(),
            claims: claims(),
            volumes: volumes(),
        }
    }

    fn sources(&self) -> Vec<Source> {
        let claims = Source::new(claims(), |claim| if is_due(claim) { vec![key(claim)] } else { Vec::new() });
        let volumes = Source::new(volumes(), |volume| match volume.at(&["spec", "claimRef"]) {
            Some(claim) => vec![(claim.text(&["namespace"]).into(), claim.text(&["name"]).into())],
            None => Vec::new(),
        });
        let wishes = self.wishes.clone();
        let classes = Source::new(attributes_classes(), move |class| {
            wishes.get(&key(class)).iter().filter(|claim| is_due(claim)).map(|claim| key(claim)).collect()
        });
        vec![
            claims.into(self.claim_cache.clone()),
            volumes.into(self.volume_cache.clone()),
            classes.into(self.class_cache.clone()),
        ]
    }

    async fn sync(&self, key: Key) -> Again {
        let Some(claim) = self.claim_cache.get(&key) else {
            self.memories().remove(&key);
            self.attempts.forget(&(key.clone(), "resize"));
            self.attempts.forget(&(key, "modify"));
            return Ok(None);
        };
        let volume = self.volume_cache.get(&("".into(), claim.text(&["spec", "volumeName"]).into()));
        let Some(volume) = volume else { return Ok(None) };
        let Some(known) = self.drivers.find(|driver| resize::is_for(&claim, &volume, driver)) else { return Ok(None) };
        let resized = self.resize(&key, &claim, &volume, &known).await?;
        // Both may have been written meanwhile.
        let claim = self.claim_cache.get(&key).unwrap_or(claim);
        let volume = self.volume_cache.get(&("".into(), name(&volume).into())).unwrap_or(volume);
        let modified = self.modify(&key, &claim, &volume, &known).await?;
        Ok(resized.into_iter().chain(modified).min())
    }

    async fn resize(&self, key: &Key, claim: &Arc<Value>, volume: &Arc<Value>, known: &Known) -> Again {
        let memory = self.recall(key, claim).resize;
        let in_use = memory.offline_only && self.is_used(claim).await?;
        let now = (self.clock)();
        let step = resize::plan(claim, volume, &known.driver, &memory, || in_use, now);
        match step {
            resize::Step::Nothing => {
                self.attempts.forget(&(key.clone(), "resize"));
                Ok(None)
            }
            resize::Step::Unmark(patch) => {
                let answer = self.api.merge(&self.volumes.object("", name(volume)), &patch).await?;
                self.volume_cache.wrote(answer);
                Ok(None)
            }
            resize::Step::Rest(until) => Ok(Some(left(until, now))),
            resize::Step::InUse(event) => {
                self.tell(claim, &event);
                Ok(Some(LOOK_AGAIN_AFTER))
            }
            resize::Step::Expand(expansion) => self.expand(key, claim, volume, known, *expansion).await,
        }
    }

    async fn expand(
        &self,
        key: &Key,
        claim: &Arc<Value>,
        volume: &Arc<Value>,
        known: &Known,
        expansion: Expansion,
    ) -> Again {
        let place = (key.clone(), "resize");
        let basis = expansion.bytes.to_string();
        if let Some(wait) = self.attempts.remaining(&place, &basis) {
            return Ok(Some(wait));
        }
        // What the driver can do may have changed with its version.
        let driver = match known.remote.about().await {
            Ok(driver) => driver,
            Err(failure) => {
                return Ok(Some(self.attempts.failed(&place, &basis, |failures| {
                    known.pace.after(failures, failure.code == Code::Unavailable)
                })));
            }
        };
        let claim = self.mark(claim, expansion.mark).await?;
        self.tell(&claim, &expansion.begins);
        let answer = match &expansion.call {
            Some(call) => {
                let secrets = self.secrets(call.secret.as_ref()).await?;
                known.remote.expand(call, secrets).await
            }
            None => Ok(Expanded { bytes: expansion.bytes, node_part: true }),
        };
        if let Err(failure) = &answer {
            self.metrics.expansion_failed(&driver.name, failure);
        }
        let attempt = Attempt { place, basis, volume, known, code: answer.as_ref().err().map(|failure| failure.code) };
        let (before, now) = (self.recall(key, &claim).resize, (self.clock)());
        let bytes = expansion.bytes;
        self.finish(&attempt, claim, |claim, volume| {
            let mut memory = before.clone();
            let finish = resize::finish(claim, volume, &driver, bytes, answer.clone(), &mut memory, now);
            let rests_until = memory.slow.as_ref().map(|(_, until)| *until);
            self.remember(key, |memories| memories.resize = memory);
            (finish, rests_until)
        })
        .await
    }

    async fn modify(&self, key: &Key, claim: &Arc<Value>, volume: &Arc<Value>, known: &Known) -> Again {
        let memory = self.recall(key, claim).modify;
        let class = modify::next_class(claim, &memory);
        let class = self.class_cache.get(&("".into(), class.into()));
        let now = (self.clock)();
        match modify::plan(claim, volume, class.as_deref(), &known.driver, &memory, now) {
            modify::Step::Nothing => {
                self.attempts.forget(&(key.clone(), "modify"));
                Ok(None)
            }
            modify::Step::Rest(until) => Ok(Some(left(until, now))),
            modify::Step::Note { claim: patch, event } => {
                let claim = self.mark(claim, patch).await?;
                event.iter().for_each(|event| self.tell(&claim, event));
                Ok(None)
            }
            modify::Step::Modify(modification) => self.change(key, claim, volume, known, *modification).await,
        }
    }

    async fn change(
        &self,
        key: &Key,
        claim: &Arc<Value>,
        volume: &Arc<Value>,
        known: &Known,
        change: Modification,
    ) -> Again {
        let place = (key.clone(), "modify");
        if let Some(wait) = self.attempts.remaining(&place, &change.class) {
            return Ok(Some(wait));
        }
        let claim = self.mark(claim, change.mark).await?;
        self.tell(&claim, &change.begins);
        let secrets = self.secrets(change.call.secret.as_ref()).await?;
        let answer = known.remote.modify(&change.call, secrets).await;
        if let Err(failure) = &answer {
            self.metrics.modification_failed(&known.driver.name, failure);
        }
        let basis = change.class.clone();
        let attempt = Attempt { place, basis, volume, known, code: answer.as_ref().err().map(|failure| failure.code) };
        let (before, now) = (self.recall(key, &claim).modify, (self.clock)());
        self.finish(&attempt, claim, |claim, volume| {
            let mut memory = before.clone();
            let finish = modify::finish(claim, volume, &change.class, answer.clone(), &mut memory, now);
            let rests_until = memory.slow.as_ref().map(|(_, until)| *until);
            self.remember(key, |memories| memories.modify = memory);
            (finish, rests_until)
        })
        .await
    }

    /// Writes what came of an attempt, and says when the next one is. The call is made: if others wrote the claim or the volume
    /// meanwhile, what is to be written is decided anew, not what is to be done.
    async fn finish(
        &self,
        attempt: &Attempt<'_>,
        mut claim: Arc<Value>,
        decide: impl Fn(&Value, &Value) -> (Finish, Option<Timestamp>),
    ) -> Again {
        let mut volume = attempt.volume.clone();
        let (mut finish, mut rests_until) = decide(&claim, &volume);
        for attempt in 1.. {
            match self.write(&claim, &volume, &finish).await {
                Err(error) if error.is_conflict() && attempt < WRITE_ATTEMPTS => {}
                result => {
                    result?;
                    break;
                }
            }
            let (claim_path, volume_path) =
                (self.claims.object(namespace(&claim), name(&claim)), self.volumes.object("", name(&volume)));
            let found = (self.api.find(&claim_path).await?, self.api.find(&volume_path).await?);
            let (Some(found_claim), Some(found_volume)) = found else { break };
            if uid(&found_claim) != uid(&claim) || uid(&found_volume) != uid(&volume) {
                break;
            }
            (claim, volume) = (found_claim, found_volume);
            (finish, rests_until) = decide(&claim, &volume);
        }
        finish.event.iter().for_each(|event| self.tell(&claim, event));
        if !finish.again {
            self.attempts.forget(&attempt.place);
            return Ok(None);
        }
        let is_away = attempt.code == Some(Code::Unavailable);
        let wait = self
            .attempts
            .failed(&attempt.place, &attempt.basis, |failures| attempt.known.pace.after(failures, is_away));
        let rest = rests_until.map(|until| left(until, (self.clock)()));
        Ok(Some(rest.unwrap_or(wait)))
    }

    /// The volume first: what the claim says about it must be so.
    async fn write(&self, claim: &Arc<Value>, volume: &Value, finish: &Finish) -> Result<(), ApiError> {
        if let Some(patch) = &finish.volume {
            let answer = self.api.merge(&self.volumes.object("", name(volume)), patch).await?;
            self.volume_cache.wrote(answer);
        }
        self.mark(claim, finish.claim.clone()).await.map(drop)
    }

    /// Patches the status of a claim; returns the claim as it is then.
    async fn mark(&self, claim: &Arc<Value>, patch: Option<Value>) -> Result<Arc<Value>, ApiError> {
        let Some(patch) = patch else { return Ok(claim.clone()) };
        let path = format!("{}/status", self.claims.object(namespace(claim), name(claim)));
        let answer = self.api.merge(&path, &patch).await?;
        self.claim_cache.wrote(answer.clone());
        Ok(answer)
    }

    /// A secret that is missing fails the call's key, which comes back.
    async fn secrets(&self, reference: Option<&SecretRef>) -> Result<super::remote::Secrets, ApiError> {
        match (secrets::read(&self.api, reference).await?, reference) {
            (Some(secrets), _) => Ok(secrets),
            (None, reference) => {
                let missing = reference.map(secrets::missing).unwrap_or_default();
                Err(ApiError::Broken(kube::Error::Service(missing.into())))
            }
        }
    }

    /// Whether a pod that has not ended names the claim.
    async fn is_used(&self, claim: &Value) -> Result<bool, ApiError> {
        let pods = Resource::new("v1", "Pod", "pods", true);
        let mut used = false;
        self.api
            .each(&pods.collection(namespace(claim)), |pod| {
                let ended = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
                used |= !ended && plan::protect::claims_of(pod).any(|named| named == name(claim));
            })
            .await?;
        Ok(used)
    }

    fn tell(&self, claim: &Value, event: &plan::csi::Event) {
        tell(&self.events, &self.claims, claim, event);
    }

    /// What is remembered of this very claim.
    fn recall(&self, key: &Key, claim: &Value) -> Memories {
        let mut memories = self.memories();
        let found = memories.entry(key.clone()).or_default();
        if found.uid != uid(claim) {
            *found = Memories { uid: uid(claim).to_owned(), ..Memories::default() };
        }
        found.clone()
    }

    fn remember(&self, key: &Key, change: impl FnOnce(&mut Memories)) {
        change(self.memories().entry(key.clone()).or_default());
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<Key, Memories>> {
        self.memories.lock().expect("no panic happens under this lock")
    }
}

fn is_due(claim: &Value) -> bool {
    resize::wants_more(claim) || modify::is_due(claim)
}

fn left(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO)
}
