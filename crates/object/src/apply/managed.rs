//! `metadata.managedFields`: one entry per manager, operation, version and subresource.

use super::Writer;
use super::compare::Diff;
use super::set::Set;
use crate::write::stamp;
use crate::{Map, Value};

/// Maximum number of Update entries. When there are more, the oldest are merged.
const UPDATERS_MAX: usize = 10;
const OLD_UPDATES: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// One entry. It is kept as JSON members, because most entries do not change in a write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    members: Map,
    pub set: Set,
}

impl Entry {
    fn new(writer: &Writer, operation: Operation) -> Entry {
        let mut members = Map::new();
        let mut put = |key: &str, text: &str| drop(members.insert(key.to_owned(), Value::from(text)));
        put("apiVersion", writer.api_version);
        put("fieldsType", "FieldsV1");
        put("manager", writer.manager);
        put("operation", operation.name());
        if !writer.subresource.is_empty() {
            put("subresource", writer.subresource);
        }
        Entry { members, set: Set::default() }
    }

    fn text(&self, key: &str) -> &str {
        self.members.get(key).and_then(Value::as_str).unwrap_or("")
    }
    pub fn manager(&self) -> &str {
        self.text("manager")
    }
    pub fn api_version(&self) -> &str {
        self.text("apiVersion")
    }
    pub fn subresource(&self) -> &str {
        self.text("subresource")
    }
    pub fn operation(&self) -> Operation {
        if self.text("operation") == "Apply" { Operation::Apply } else { Operation::Update }
    }

    /// Whether the entry belongs to this writer. An applier has one entry for all versions.
    pub fn is_of(&self, writer: &Writer, operation: Operation) -> bool {
        self.operation() == operation
            && self.manager() == writer.manager
            && self.subresource() == writer.subresource
            && (operation == Operation::Apply || self.api_version() == writer.api_version)
    }

    /// Entries with the same identity must be merged.
    fn same_identity(&self, other: &Entry) -> bool {
        self.operation() == other.operation()
            && self.manager() == other.manager()
            && self.subresource() == other.subresource()
            && (self.operation() == Operation::Apply || self.api_version() == other.api_version())
    }

    fn set_time(&mut self, now: jiff::Timestamp) {
        self.members.insert("time".to_owned(), Value::from(stamp(now)));
    }

    /// Upstream's order of entries: Apply first, then by time, then by name. Times are in canonical form, so their
    /// texts sort correctly.
    fn rank(&self) -> (&str, &str, &str, &str, &str) {
        (self.text("operation"), self.text("time"), self.manager(), self.api_version(), self.subresource())
    }

    /// Reads an entry that this server wrote.
    fn read(entry: Value) -> Option<Entry> {
        let Value::Object(mut members) = entry else { return None };
        let Some(Value::Object(set)) = members.remove("fieldsV1") else { return None };
        Some(Entry { members, set: Set(set) })
    }

    /// Reads an entry that a client sent: checks it and converts it to canonical form.
    fn parse(entry: &Value) -> Result<Entry, String> {
        let members = entry.as_object().ok_or("an entry must be an object")?;
        let text = |key: &str| members.get(key).and_then(Value::as_str).unwrap_or("");
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        if text("apiVersion").is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        if text("fieldsType") != "FieldsV1" {
            return Err("fieldsType must be `FieldsV1`".to_owned());
        }
        let writer = Writer {
            manager: text("manager"),
            subresource: text("subresource"),
            api_version: text("apiVersion"),
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        let mut parsed = Entry::new(&writer, operation);
        if let Some(time) = members.get("time").filter(|time| !time.is_null()) {
            let time = time.as_str().ok_or("time must be text")?;
            parsed.set_time(time.parse().map_err(|error| format!("time {time:?} is not RFC 3339: {error}"))?);
        }
        if let Some(fields) = members.get("fieldsV1") {
            parsed.set = Set::parse(fields)?;
        }
        Ok(parsed)
    }

    fn write(self) -> Value {
        let mut members = self.members;
        members.insert("fieldsV1".to_owned(), Value::Object(self.set.0));
        Value::Object(members)
    }
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Managed(pub Vec<Entry>);

impl Managed {
    /// Returns the entries that a write starts from: the valid entries in the request (only without a subresource),
    /// else the stored ones. Clients that do not know managed fields may drop or damage them, so only an explicit `[]`
    /// or `[{}]` clears them.
    pub fn base(sent: Option<Value>, stored: Option<&Value>, subresource: &str) -> Managed {
        match sent {
            Some(sent) if stored == Some(&sent) => Managed::read(sent),
            Some(sent) if subresource.is_empty() && !sent.is_null() => {
                if is_reset(&sent) {
                    return Managed::default();
                }
                Managed::parse(&sent).unwrap_or_else(|_| Managed::stored(stored))
            }
            _ => Managed::stored(stored),
        }
    }

    /// Reads the entries of the stored object. Unreadable entries are dropped.
    pub fn stored(stored: Option<&Value>) -> Managed {
        stored.map(|stored| Managed::read(stored.clone())).unwrap_or_default()
    }

    fn read(entries: Value) -> Managed {
        let Value::Array(entries) = entries else { return Managed::default() };
        Managed(entries.into_iter().map(Entry::read).collect::<Option<_>>().unwrap_or_default())
    }

    fn parse(entries: &Value) -> Result<Managed, String> {
        let entries = entries.as_array().ok_or("managedFields must be a list")?;
        let mut managed = Managed::default();
        for entry in entries {
            let entry = Entry::parse(entry)?;
            managed.0.retain(|other| !other.same_identity(&entry));
            managed.0.push(entry);
        }
        managed.0.retain(|entry| !entry.set.is_empty());
        managed.0.sort_by(|a, b| a.rank().cmp(&b.rank()));
        Ok(managed)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn write(self) -> Value {
        Value::Array(self.0.into_iter().map(Entry::write).collect())
    }

    /// Records an update: the fields it touched belong only to its writer, and the fields it removed to no manager.
    pub fn update(&mut self, diff: Diff, writer: &Writer) {
        let mut own = self.take(writer, Operation::Update);
        own.set.subtract(&diff.removed);
        self.disown(&diff);
        if !diff.touched.is_empty() {
            own.set.unite(diff.touched);
            own.set_time(writer.now);
        }
        if !own.set.is_empty() {
            self.0.push(own);
        }
        self.cap();
        self.sort();
    }

    /// Removes the touched and removed fields of a write from all entries.
    pub fn disown(&mut self, diff: &Diff) {
        self.0.retain_mut(|entry| {
            entry.set.subtract(&diff.touched);
            entry.set.subtract(&diff.removed);
            !entry.set.is_empty()
        });
    }

    /// Removes and returns the writer's entry, or returns an empty new one.
    pub fn take(&mut self, writer: &Writer, operation: Operation) -> Entry {
        match self.0.iter().position(|entry| entry.is_of(writer, operation)) {
            Some(at) => self.0.remove(at),
            None => Entry::new(writer, operation),
        }
    }

    /// Inserts an applier's entry. Its time is that of the last apply that changed anything.
    pub fn put_applied(&mut self, last: Entry, set: Set, writer: &Writer, changed: bool) {
        if set.is_empty() {
            return;
        }
        let mut entry = Entry::new(writer, Operation::Apply);
        let same = !changed && last.set == set && last.api_version() == writer.api_version;
        match last.members.get("time") {
            Some(time) if same => drop(entry.members.insert("time".to_owned(), time.clone())),
            _ => entry.set_time(writer.now),
        }
        entry.set = set;
        self.0.push(entry);
    }

    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| a.rank().cmp(&b.rank()));
    }

    /// Merges the oldest Update entries of each version into one, until at most `UPDATERS_MAX` are left.
    fn cap(&mut self) {
        let mut count = self.0.iter().filter(|entry| entry.operation() == Operation::Update).count();
        if count <= UPDATERS_MAX {
            return;
        }
        self.sort();
        let (applies, updates): (Vec<Entry>, Vec<Entry>) =
            std::mem::take(&mut self.0).into_iter().partition(|entry| entry.operation() == Operation::Apply);
        self.0 = applies;
        let mut oldest: Vec<Entry> = Vec::new();
        for entry in updates {
            let first = oldest.iter_mut().find(|first| first.api_version() == entry.api_version());
            match first {
                Some(first) if count > UPDATERS_MAX => {
                    first.absorb(entry);
                    count -= 1;
                }
                Some(_) => self.0.push(entry),
                None if count > UPDATERS_MAX => oldest.push(entry),
                None => self.0.push(entry),
            }
        }
        for bucket in oldest {
            match self.0.iter_mut().find(|entry| entry.same_identity(&bucket)) {
                Some(older_bucket) => older_bucket.absorb(bucket),
                None => self.0.push(bucket),
            }
        }
    }
}

impl Entry {
    /// Turns this entry into the merged entry of old updates, and adds a newer entry to it.
    fn absorb(&mut self, newer: Entry) {
        self.members.insert("manager".to_owned(), Value::from(OLD_UPDATES));
        self.members.remove("subresource");
        if newer.text("time") > self.text("time") {
            self.members.insert("time".to_owned(), Value::from(newer.text("time")));
        }
        self.set.unite(newer.set);
    }
}

/// Whether the client asked to clear managed fields: `[]` or `[{}]`.
fn is_reset(sent: &Value) -> bool {
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(|members| members.is_empty()),
        _ => false,
    }
}
