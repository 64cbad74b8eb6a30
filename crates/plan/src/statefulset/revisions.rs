//! Revisions: which one has the set's template, which one its pods have, and which old ones are deleted.

use super::set::Set;
use super::{Action, pods};
use crate::allowance;
use object::access::{self, Access, controller, name, terminating, uid};
use object::kinds::volumes::default_claim_spec;
use object::{Gates, Value, json, pod, schema};
use std::collections::BTreeSet;

const NAME_MAX: usize = 223;
const HISTORY_DEFAULT: i64 = 10;
/// The size of all revisions that no pod uses, whatever `revisionHistoryLimit` says: a patch of a few bytes adds a revision of up to 3 MB.
const HISTORY_BYTES_MAX: usize = 16 << 20;

/// The templates of pods and claims of one revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Revision<'a> {
    pub name: String,
    pub template: &'a Value,
    /// `None` if the revision has no claim templates.
    claims: Option<&'a [Value]>,
}

impl<'a> Revision<'a> {
    pub fn tells_of_claims(&self) -> bool {
        self.claims.is_some()
    }

    /// The claim template of this revision; the live one if the revision has none.
    pub fn claim_template<'t>(&self, live: &'t Value) -> &'t Value
    where
        'a: 't,
    {
        self.claims.and_then(|claims| claims.iter().rfind(|claim| name(claim) == name(live))).unwrap_or(live)
    }
}

#[derive(Debug)]
pub(super) struct Revisions<'a> {
    /// The revision that the rollout replaces; equals `update` when it is complete.
    pub current: Revision<'a>,
    /// The revision of the set's template.
    pub update: Revision<'a>,
    pub collisions: i64,
    /// Creates or renumbers the update revision.
    pub action: Option<Action>,
    /// The set's own and those it adopts, oldest first.
    listed: Vec<&'a Value>,
    /// Whether templates are compared with defaults applied, and not only literally.
    by_meaning: bool,
}

impl<'a> Revisions<'a> {
    pub fn choose(set: &Set<'a>, seen: &[&'a Value], gates: &Gates) -> Revisions<'a> {
        let mut listed: Vec<&Value> = seen.iter().copied().filter(|revision| is_listed(set, revision)).collect();
        listed.sort_by_key(|revision| {
            let created = revision.text(&["metadata", "creationTimestamp"]);
            (number(revision), created, name(revision))
        });
        let (template, claims) = (live_template(set), live_claims(set));
        let by_meaning = gates.on("StatefulSetSemanticRevisionComparison");
        let next = listed.last().map_or(1, |newest| number(newest).saturating_add(1));
        let mut collisions = set.object.int(&["status", "collisionCount"]).unwrap_or(0);
        let (update, action) = match find_equal(&listed, template, claims, by_meaning) {
            Some(found) if listed.last().is_some_and(|newest| std::ptr::eq(*newest, found)) => {
                (name(found).to_owned(), None)
            }
            Some(found) => (name(found).to_owned(), Some(renumber(found, next))),
            None => {
                let data = data_of(template, claims);
                let (hash, count, exists) = free_name(set, seen, &data, collisions);
                collisions = count;
                let action = (!exists).then(|| Action::CreateRevision(build(set, &hash, data, next)));
                (full_name(set, &hash), action)
            }
        };
        let update = Revision { name: update, template, claims };
        let was = set.object.text(&["status", "currentRevision"]);
        let current = listed.iter().find(|revision| name(revision) == was);
        let current = current.map_or_else(|| update.clone(), |revision| read(revision, template));
        Revisions { current, update, collisions, action, listed, by_meaning }
    }

    /// The revision of this name.
    pub fn named(&self, wanted: &str) -> Option<Revision<'a>> {
        if wanted == self.update.name {
            return Some(self.update.clone());
        }
        let found = self.listed.iter().find(|revision| name(revision) == wanted)?;
        Some(read(found, self.update.template))
    }

    /// Whether the pods of this revision equal those of the update revision, so that only their claims
    /// differ.
    pub fn is_alike(&self, named: &str) -> bool {
        let found = self.listed.iter().find(|revision| name(revision) == named);
        let template = found.and_then(|revision| template_of(revision));
        named == self.update.name
            || template.is_some_and(|template| {
                same_letters(template, self.update.template)
                    || (self.by_meaning && same_meaning(template, &with_defaults(self.update.template)))
            })
    }

    pub fn adoptions(&self) -> impl Iterator<Item = Action> + '_ {
        self.listed.iter().filter(|revision| controller(revision).is_none()).map(|revision| Action::AdoptRevision {
            revision: name(revision).to_owned(),
            uid: uid(revision).to_owned(),
            resource_version: revision.text(&["metadata", "resourceVersion"]).to_owned(),
        })
    }

    /// The oldest unused revisions beyond the history limit.
    pub fn outdated(&self, set: &Set, members: &pods::Members) -> Vec<Action> {
        let limit = set.object.int(&["spec", "revisionHistoryLimit"]).unwrap_or(HISTORY_DEFAULT);
        let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
        let mut live: BTreeSet<&str> = members.all().map(|pod| pod.revision()).collect();
        live.extend([self.current.name.as_str(), self.update.name.as_str()]);
        let unused: Vec<&Value> =
            self.listed.iter().copied().filter(|revision| !live.contains(name(revision))).collect();
        let excess = unused.len().saturating_sub(self.fitting(&unused).min(limit));
        let excess = unused[..excess].iter().filter(|revision| !terminating(revision));
        excess
            .map(|revision| Action::DeleteRevision {
                revision: name(revision).to_owned(),
                uid: uid(revision).to_owned(),
            })
            .collect()
    }
}

impl Revisions<'_> {
    /// How many of these revisions, the newest first, fit into the history. The newest always does, so that there is a way back. They
    /// are measured only when there will be one more.
    fn fitting(&self, unused: &[&Value]) -> usize {
        if !matches!(self.action, Some(Action::CreateRevision(_))) {
            return unused.len();
        }
        let mut bytes = 0;
        let fitting = unused.iter().rev().take_while(|revision| {
            bytes += allowance::size(revision);
            bytes <= HISTORY_BYTES_MAX
        });
        fitting.count().max(1)
    }
}

fn is_listed(set: &Set, revision: &Value) -> bool {
    access::namespace(revision) == set.namespace
        && controller(revision).is_none_or(|owner| owner.text(&["uid"]) == set.uid)
        && set.selector.matches(revision.members(&["metadata", "labels"]))
}

fn number(revision: &Value) -> i64 {
    revision.int(&["revision"]).unwrap_or(0)
}

fn live_template<'a>(set: &Set<'a>) -> &'a Value {
    set.object.at(&["spec", "template"]).unwrap_or(&Value::Null)
}

fn template_of(revision: &Value) -> Option<&Value> {
    revision.at(&["data", "spec", "template"])
}

/// The claim templates, if they are part of a revision.
fn live_claims<'a>(set: &Set<'a>) -> Option<&'a [Value]> {
    set.claims_in_revisions.then(|| set.object.items(&["spec", "volumeClaimTemplates"]))
}

fn claims_of(revision: &Value) -> Option<&[Value]> {
    revision.at(&["data", "spec", "volumeClaimTemplates"]).and_then(Value::as_array).map(Vec::as_slice)
}

fn read<'a>(revision: &'a Value, live: &'a Value) -> Revision<'a> {
    Revision {
        name: name(revision).to_owned(),
        template: template_of(revision).unwrap_or(live),
        claims: claims_of(revision),
    }
}

/// The newest revision that equals the templates: literally if there is one, else with defaults applied. A
/// server of another version may store defaults that were omitted before, which must not restart pods.
fn find_equal<'a>(
    listed: &[&'a Value],
    template: &Value,
    claims: Option<&[Value]>,
    by_meaning: bool,
) -> Option<&'a Value> {
    let find = |same: &dyn Fn(&Value) -> bool| {
        let mut newest_first = listed.iter().rev().copied();
        newest_first.find(|it| template_of(it).is_some_and(same) && same_claims(claims_of(it), claims))
    };
    find(&|other| same_letters(other, template)).or_else(|| {
        let wanted = by_meaning.then(|| with_defaults(template))?;
        find(&|other| same_meaning(other, &wanted))
    })
}

/// `wanted` has its defaults applied.
fn same_meaning(template: &Value, wanted: &Value) -> bool {
    schema::builtin_type("io.k8s.api.core.v1.PodTemplateSpec").same(&with_defaults(template), wanted)
}

fn same_claims(a: Option<&[Value]>, b: Option<&[Value]>) -> bool {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (a, b) => return a.is_none() && b.is_none(),
    };
    let kind = schema::builtin_type("io.k8s.api.core.v1.PersistentVolumeClaim");
    let plain = |template: &Value| {
        let mut template = without_status(template);
        default_claim_spec(template.entry(&["spec"]));
        template
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| kind.same(&plain(a), &plain(b)))
}

/// A template's status is ignored.
fn without_status(template: &Value) -> Value {
    let mut template = template.clone();
    template.cut(&["status"]);
    template
}

fn same_letters(revision: &Value, template: &Value) -> bool {
    let (Some(revision), Some(template)) = (revision.as_object(), template.as_object()) else { return false };
    revision.iter().filter(|(key, _)| *key != "$patch").eq(template.iter())
}

fn with_defaults(template: &Value) -> Value {
    let mut template = template.clone();
    template.cut(&["$patch"]);
    if !template.has(&["metadata"]) {
        template.put(&["metadata"], json!({}));
    }
    pod::default_spec(template.entry(&["spec"]));
    template
}

/// The data of a revision: a strategic merge patch that restores the template, and all claim templates if
/// they are part of it.
fn data_of(template: &Value, claims: Option<&[Value]>) -> Value {
    let mut template = Value::Object(template.as_object().cloned().unwrap_or_default());
    template.put(&["$patch"], "replace");
    let mut data = json!({"spec": {"template": template}});
    if let Some(claims) = claims {
        data.put(&["spec", "volumeClaimTemplates"], claims.iter().map(without_status).collect::<Vec<_>>());
    }
    data
}

/// The hash in a new revision's name, its collision count, and whether that revision exists already. Another
/// object of that name may have the same data (then it is the revision), or other data (then the count is
/// increased).
fn free_name(set: &Set, seen: &[&Value], data: &Value, collisions: i64) -> (String, i64, bool) {
    let mut count = collisions;
    loop {
        let hash = hash(data, count);
        let full = full_name(set, &hash);
        match seen.iter().find(|other| access::namespace(other) == set.namespace && name(other) == full) {
            None => return (hash, count, false),
            Some(other) if other.at(&["data"]) == Some(data) => return (hash, count, true),
            Some(_) => count = count.wrapping_add(1),
        }
    }
}

fn full_name(set: &Set, hash: &str) -> String {
    format!("{}-{hash}", &set.name[..set.name.floor_char_boundary(NAME_MAX)])
}

/// FNV-1 (not 1a) with 32 bits over the data and the count, in letters that spell no words.
pub(super) fn hash(data: &Value, collisions: i64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = format!("{}{collisions}", escaped(data));
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    hash.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

/// Compact JSON with sorted keys as Go writes it: with these characters escaped, which only occur in strings.
fn escaped(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn build(set: &Set, hash: &str, data: Value, number: i64) -> Value {
    let mut labels = live_template(set).members(&["metadata", "labels"]).clone();
    labels.insert("controller.kubernetes.io/hash".to_owned(), Value::from(hash));
    let mut metadata = json!({
        "name": full_name(set, hash),
        "namespace": set.namespace,
        "labels": labels,
        "ownerReferences": [set.reference(true)],
    });
    pods::carry_over(set.object, &mut metadata, &["annotations"]);
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "data": data, "revision": number,
    })
}

fn renumber(revision: &Value, number: i64) -> Action {
    Action::RenumberRevision {
        revision: name(revision).to_owned(),
        uid: uid(revision).to_owned(),
        resource_version: revision.text(&["metadata", "resourceVersion"]).to_owned(),
        number,
    }
}
