//! The table of kinds: one row describes a kind, its rules say what its objects must be.

use crate::Value;
use crate::field::{Errors, Path};
use crate::gates::Gates;
use crate::schema::TypeRef;
use crate::status::Status;
use crate::table::Column;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

type Text = Cow<'static, str>;

/// One kind in one version, as it is served.
#[derive(Clone)]
pub struct Kind {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    pub plural: Text,
    pub singular: Text,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub namespaced: bool,
    /// Reviews are answered, not stored: `create` is their only verb.
    pub stored: bool,
    pub subresources: Vec<Subresource>,
    /// `group/plural` of the objects' place in the store; two rows may share one (both Event kinds).
    pub storage: Text,
    pub schema: Option<TypeRef>,
    /// Defined by a CustomResourceDefinition: no strategic merge, updates must name their version.
    pub custom: bool,
    /// Which CustomResourceDefinition that was; built-in kinds have none.
    pub edition: Option<Edition>,
    /// The OpenAPI v3 schema that a CustomResourceDefinition gives for this version; built-in kinds have theirs by `schema`'s name.
    pub openapi: Option<Arc<Value>>,
    /// The kind of a list, where it is not the kind with `List` behind it (CRDs may name it).
    pub list: Option<Text>,
    pub rules: Arc<dyn Rules>,
}

/// A definition as it was when a kind was made of it: another uid is another definition, another generation says something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edition {
    pub uid: String,
    pub generation: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subresource {
    Status,
    /// JSON paths (dot-separated, no leading dot) of the replica counts and the selector in the parent object.
    Scale {
        spec_replicas: String,
        status_replicas: String,
        selector: Option<String>,
    },
    Binding,
    Eviction,
    Token,
    /// Writes `spec.finalizers` only: namespaces.
    Finalize,
}

impl Subresource {
    pub fn name(&self) -> &'static str {
        match self {
            Subresource::Status => "status",
            Subresource::Scale { .. } => "scale",
            Subresource::Binding => "binding",
            Subresource::Eviction => "eviction",
            Subresource::Token => "token",
            Subresource::Finalize => "finalize",
        }
    }
}

/// What rules may look at besides the objects: the gates in force and the time of the request.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    pub gates: &'a Gates,
    pub now: jiff::Timestamp,
}

/// How an object's name must look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, up to 253 characters: most kinds.
    Subdomain,
    /// RFC 1123 label, up to 63 characters: namespaces, StatefulSets.
    Label,
    /// RFC 1035 label, up to 63 characters: services.
    ServiceLabel,
    /// Anything that can stand in a URL path: RBAC kinds.
    PathSegment,
}

/// The rules of one kind. All methods have the defaults of a plain kind without a status.
///
/// The server calls, in this order: decode with the schema → `default` → (update: metadata and status carried over from the
/// old object as `crate::write` says) → `prepare_*` → `validate_*`. Metadata itself is validated by `crate::meta`.
pub trait Rules: Send + Sync {
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }
    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    fn counts_generations(&self) -> bool {
        false
    }
    /// Removes unknown fields from a decoded object and says their paths, where the kind has its own way (custom resources, whose
    /// wrong types are validation errors); `None` = `decode::conform` with the kind's schema does it.
    fn conform(&self, _object: &mut Value) -> Option<Result<Vec<String>, Status>> {
        None
    }
    /// The text of the `Warning` header on every request to a deprecated version.
    fn deprecation(&self) -> Option<&str> {
        None
    }
    /// Fills in defaults; idempotent. Runs on create, update and after every patch.
    fn default(&self, _object: &mut Value, _ctx: &Ctx) {}
    /// Resets what a client may not set at creation (status, fields behind a closed gate). The status member was removed before
    /// this when the kind has a status subresource; set the initial one here.
    fn prepare_create(&self, _object: &mut Value, _ctx: &Ctx) {}
    /// Resets what an update may not change, after status and system metadata were carried over from `old`.
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _ctx: &Ctx) {}
    /// The same for a write to `/status`, after all but status and metadata was carried over from `old`.
    fn prepare_status(&self, _new: &mut Value, _old: &Value, _ctx: &Ctx) {}
    fn validate_create(&self, _object: &Value, _ctx: &Ctx, _errors: &mut Errors) {}
    fn validate_update(&self, new: &Value, _old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
    }
    fn validate_status(&self, _new: &Value, _old: &Value, _ctx: &Ctx, _errors: &mut Errors) {}
    /// Texts for `Warning` headers on create (`old` is None) and update.
    fn warnings(&self, _new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        Vec::new()
    }
    /// Whether a create may bring a status along: only nodes, which register themselves with theirs.
    fn keeps_status_on_create(&self) -> bool {
        false
    }
    /// What else changes when a DELETE marks the object as terminating: a namespace's phase.
    fn mark_terminating(&self, _object: &mut Value) {}
    /// The grace period a DELETE gets: the asked one, or the kind's default; `None` = the kind has no graceful deletion.
    fn grace_seconds(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }
    /// Columns of `kubectl get`, the name column first; `cells` has one value for each.
    fn columns(&self) -> &[Column] {
        crate::table::NAME_AND_AGE
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        crate::table::name_and_age(object, now)
    }
    /// The rows of a list, for kinds where a row depends on its neighbours: the default StorageClass.
    fn list_cells(&self, objects: &[&Value], now: jiff::Timestamp) -> Vec<Vec<Value>> {
        objects.iter().map(|object| self.cells(object, now)).collect()
    }
    /// Whether objects are stored in another shape than they are served in. Where this is false, the two calls below do
    /// nothing and stored bytes can be sent as they are.
    fn converts(&self) -> bool {
        false
    }
    /// From the served shape to the stored one: the last step before a write.
    fn to_stored(&self, _object: &mut Value) {}
    /// From the stored shape to the served one: the first step after a read.
    #[expect(clippy::wrong_self_convention, reason = "the rules convert, the object is converted")]
    fn from_stored(&self, _object: &mut Value) {}
    /// Field selectors besides `metadata.name` and `metadata.namespace`, such as `spec.nodeName`.
    fn selectable_fields(&self) -> &[&str] {
        &[]
    }
    /// The value of one of `selectable_fields`, as text; absent is `""`.
    fn field_value(&self, object: &Value, field: &str) -> String {
        crate::selector::plain_field(object, field)
    }
}

/// A plain kind with no rules of its own.
pub struct Plain;
impl Rules for Plain {}

impl Kind {
    /// `apps/v1`, or `v1` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }
    /// `statefulsets.apps`, or `pods`: how texts and RBAC name the resource.
    pub fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_string() } else { format!("{}.{}", self.plural, self.group) }
    }
    pub fn list_kind(&self) -> String {
        self.list.as_ref().map_or_else(|| format!("{}List", self.kind), ToString::to_string)
    }
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name() == name)
    }
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
    /// The path that object-level errors of this kind start from.
    pub fn root(&self) -> Path {
        Path::default()
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

/// All kinds that are served, by group, version and plural. Built-in ones never change; CRDs come and go, each change makes a
/// new table.
#[derive(Clone, Default)]
pub struct Kinds {
    rows: BTreeMap<(Text, Text, Text), Arc<Kind>>,
}

impl Kinds {
    pub fn builtin() -> Kinds {
        let mut kinds = Kinds::default();
        for kind in crate::kinds::all() {
            kinds.insert(kind);
        }
        kinds
    }
    pub fn insert(&mut self, kind: Kind) {
        self.rows.insert((kind.group.clone(), kind.version.clone(), kind.plural.clone()), Arc::new(kind));
    }
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let key = (Cow::Owned(group.to_owned()), Cow::Owned(version.to_owned()), Cow::Owned(plural.to_owned()));
        self.rows.get(&key)
    }
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.rows.values().find(|row| row.group == group && row.version == version && row.kind == kind)
    }
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.rows.values()
    }
    /// Whether anything is served under this group and version.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.rows.values().any(|row| row.group == group && row.version == version)
    }
}
