//! The table of kinds. A row describes one kind, and its rules default and validate its objects.

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

/// One kind in one served version.
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
    /// False for reviews: they are answered and not stored, and `create` is their only verb.
    pub stored: bool,
    pub subresources: Vec<Subresource>,
    /// `group/plural` under which the objects are stored. Two rows may share it (both Event kinds).
    pub storage: Text,
    pub schema: Option<TypeRef>,
    /// Defined by a CustomResourceDefinition: no strategic merge patch, and updates must set resourceVersion.
    pub custom: bool,
    /// Identity of the CustomResourceDefinition; `None` for built-in kinds.
    pub edition: Option<Edition>,
    /// The OpenAPI v3 schema from the CustomResourceDefinition. Built-in kinds are found by the name of `schema`.
    pub openapi: Option<Arc<Value>>,
    /// The list kind, if it is not the kind followed by `List` (a CRD may name it).
    pub list: Option<Text>,
    pub rules: Arc<dyn Rules>,
}

/// Identity of a definition when a kind was made from it. Another uid is another definition; another generation is
/// another spec.
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

/// What rules may use besides the objects: the feature gates and the time of the request.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    pub gates: &'a Gates,
    pub now: jiff::Timestamp,
}

/// The required form of an object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, up to 253 characters: most kinds.
    Subdomain,
    /// RFC 1123 label, up to 63 characters: namespaces, StatefulSets.
    Label,
    /// RFC 1035 label, up to 63 characters: services.
    ServiceLabel,
    /// Any valid segment of a URL path: RBAC kinds.
    PathSegment,
}

/// The rules of one kind. The default methods are those of a simple kind without a status.
///
/// The server calls them in this order: decode with the schema → `default` → (update: carry over metadata and status
/// from the old object, see `crate::write`) → `prepare_*` → `validate_*`. `crate::meta` validates the metadata.
pub trait Rules: Send + Sync {
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }
    /// Whether `metadata.generation` counts the changes of everything except metadata and status.
    fn counts_generations(&self) -> bool {
        false
    }
    /// Removes unknown fields from a decoded object and returns their paths, for kinds with their own way to do it
    /// (custom resources, whose wrong types are validation errors). `None` means that `decode::conform` with the kind's
    /// schema does it.
    fn conform(&self, _object: &mut Value) -> Option<Result<Vec<String>, Status>> {
        None
    }
    /// Returns the `Warning` header for every request to a deprecated version.
    fn deprecation(&self) -> Option<&str> {
        None
    }
    /// Applies defaults. Idempotent. Runs on create, update and after every patch.
    fn default(&self, _object: &mut Value, _ctx: &Ctx) {}
    /// Resets fields that a client may not set at creation (status, fields of disabled feature gates). If the kind has
    /// a status subresource, the status was removed before; set the initial status here.
    fn prepare_create(&self, _object: &mut Value, _ctx: &Ctx) {}
    /// Resets fields that an update may not change. Status and system metadata were carried over from `old` before.
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _ctx: &Ctx) {}
    /// Same for a write to `/status`. Everything except status and metadata was carried over from `old` before.
    fn prepare_status(&self, _new: &mut Value, _old: &Value, _ctx: &Ctx) {}
    fn validate_create(&self, _object: &Value, _ctx: &Ctx, _errors: &mut Errors) {}
    fn validate_update(&self, new: &Value, _old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
    }
    fn validate_status(&self, _new: &Value, _old: &Value, _ctx: &Ctx, _errors: &mut Errors) {}
    /// Returns `Warning` headers for a create (`old` is None) or an update.
    fn warnings(&self, _new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        Vec::new()
    }
    /// Whether a create may set the status. Only nodes, which register themselves with a status.
    fn keeps_status_on_create(&self) -> bool {
        false
    }
    /// Further changes when a DELETE marks the object as terminating, such as a namespace's phase.
    fn mark_terminating(&self, _object: &mut Value) {}
    /// The grace period of a DELETE: the requested one, or the kind's default. `None` means that the kind has no
    /// graceful deletion.
    fn grace_seconds(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }
    /// Columns of `kubectl get`, the name first. `cells` returns one value for each.
    fn columns(&self) -> &[Column] {
        crate::table::NAME_AND_AGE
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        crate::table::name_and_age(object, now)
    }
    /// Cells of a list, for kinds where a row depends on other rows: the default StorageClass.
    fn list_cells(&self, objects: &[&Value], now: jiff::Timestamp) -> Vec<Vec<Value>> {
        objects.iter().map(|object| self.cells(object, now)).collect()
    }
    /// Whether objects are stored in another form than they are served in. If false, the two methods below do nothing,
    /// and stored bytes can be sent unchanged.
    fn converts(&self) -> bool {
        false
    }
    /// Converts from the served form to the stored one: the last step before a write.
    fn to_stored(&self, _object: &mut Value) {}
    /// Converts from the stored form to the served one: the first step after a read.
    #[expect(clippy::wrong_self_convention, reason = "converts the argument, not self")]
    fn from_stored(&self, _object: &mut Value) {}
    /// Field selectors besides `metadata.name` and `metadata.namespace`, such as `spec.nodeName`.
    fn selectable_fields(&self) -> &[&str] {
        &[]
    }
    /// Returns the value of one of `selectable_fields` as text, `""` if absent.
    fn field_value(&self, object: &Value, field: &str) -> String {
        crate::selector::plain_field(object, field)
    }
}

/// Rules of a simple kind, without any checks.
pub struct Plain;
impl Rules for Plain {}

impl Kind {
    /// `apps/v1`, or `v1` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }
    /// Returns `statefulsets.apps`, or `pods`: the name of the resource in messages and RBAC.
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
    /// Path of errors about the whole object.
    pub fn root(&self) -> Path {
        Path::default()
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

/// All served kinds, by group, version and plural. Built-in kinds never change. When a CRD changes, a new table is
/// built.
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
    /// Whether any kind is served in this group and version.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.rows.values().any(|row| row.group == group && row.version == version)
    }
}
