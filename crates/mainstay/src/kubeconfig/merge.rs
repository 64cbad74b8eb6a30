//! Merges one cluster, user and context into the text of an existing kubeconfig.

use super::yaml;
use base64::Engine;
use serde_json::{Map, Value, json};
use server::authn::certs;

/// The entries to merge.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The names of the three entries.
    pub cluster_name: String,
    pub user_name: String,
    pub context_name: String,
    pub cluster: Map<String, Value>,
    pub user: Map<String, Value>,
}

#[derive(Debug)]
pub struct Merged {
    pub text: String,
    /// Whether kubectl uses the context by default.
    pub is_current: bool,
    /// Whether the meaning of the text changed.
    pub changed: bool,
}

impl Entries {
    /// A kubeconfig with these entries only.
    pub fn alone(&self) -> String {
        yaml::to_text(&json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.cluster_name, "cluster": self.cluster}],
            "users": [{"name": self.user_name, "user": self.user}],
            "contexts": [{"name": self.context_name, "context": self.context()}],
            "current-context": self.context_name,
        }))
    }

    fn context(&self) -> Map<String, Value> {
        let names = [("cluster", &self.cluster_name), ("user", &self.user_name)];
        names.into_iter().map(|(key, name)| (key.to_owned(), Value::from(name.as_str()))).collect()
    }

    /// The text with these entries. All other entries and fields stay. Entries of the same names are updated if they
    /// are for the same server, and otherwise only with `replace`. The error says why nothing can be merged.
    pub fn merge_into(&self, text: &str, replace: bool) -> Result<Merged, String> {
        let before = parse(text)?;
        let mut config = before.clone();
        for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
            match config.get(key) {
                None | Some(Value::Null) => drop(config.insert(key.to_owned(), value.into())),
                Some(found) if found == value => {}
                Some(found) => return Err(format!("its {key} is {found}, not {value}")),
            }
        }
        let ca = self.cluster.get("certificate-authority-data").cloned().unwrap_or_default();
        let has_our_ca = |cluster: &Value| cluster.get("certificate-authority-data") == Some(&ca);
        put(&mut config, ("clusters", "cluster"), &self.cluster_name, &self.cluster, has_our_ca, replace)?;
        let ca = pem(&ca);
        let is_our_user = |user: &Value| {
            let certificate = user.get("client-certificate-data").map(pem).unwrap_or_default();
            certs::is_signed_by(&ca, &certificate) || user.as_object() == Some(&self.user)
        };
        put(&mut config, ("users", "user"), &self.user_name, &self.user, is_our_user, replace)?;
        let context = self.context();
        let names_ours = |found: &Value| context.iter().all(|(key, name)| found.get(key) == Some(name));
        put(&mut config, ("contexts", "context"), &self.context_name, &context, names_ours, replace)?;
        let current = config.get("current-context").and_then(Value::as_str).unwrap_or_default();
        if current.is_empty() {
            config.insert("current-context".to_owned(), self.context_name.as_str().into());
        }
        let is_current = config["current-context"] == self.context_name.as_str();
        let changed = config != before;
        let text = yaml::to_text(&Value::Object(config.clone()));
        if parse(&text)? != config {
            return Err("it cannot be rewritten without changing its other entries".to_owned());
        }
        Ok(Merged { text, is_current, changed })
    }
}

/// The PEM text of a base64 field; empty if it is not valid.
fn pem(data: &Value) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap_or_default());
    bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Whether the text has comments, which rewriting loses. May be wrong about `#` in a string.
pub fn has_comments(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with('#') || line.contains(" #"))
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#') || line.trim() == "---";
    if text.lines().all(is_blank) {
        return Ok(Map::new());
    }
    let decoded = object::decode::yaml(text.as_bytes()).map_err(|status| status.message)?;
    if !decoded.duplicates.is_empty() {
        return Err("it sets a field twice, and only one of the values can be kept".to_owned());
    }
    match serde_json::to_value(decoded.value) {
        Ok(Value::Object(config)) => Ok(config),
        Ok(_) => Err("it is not a YAML mapping".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Adds an entry to a list, or sets its fields in the entry of that name.
fn put(
    config: &mut Map<String, Value>,
    (list, field): (&str, &str),
    name: &str,
    new: &Map<String, Value>,
    is_ours: impl Fn(&Value) -> bool,
    replace: bool,
) -> Result<(), String> {
    let entries = config.entry(list).or_insert_with(|| json!([]));
    if entries.is_null() {
        *entries = json!([]);
    }
    let Value::Array(entries) = entries else { return Err(format!("its {list} are not a list")) };
    if !entries.iter().all(|entry| entry.get("name").is_some_and(Value::is_string)) {
        return Err(format!("one of its {list} has no name"));
    }
    let mut found = entries.iter_mut().filter(|entry| entry["name"] == name);
    let Some(entry) = found.next() else {
        let mut entry = Map::new();
        entry.insert("name".to_owned(), name.into());
        entry.insert(field.to_owned(), Value::Object(new.clone()));
        entries.push(Value::Object(entry));
        return Ok(());
    };
    if found.next().is_some() {
        return Err(format!("it has two {list} of the name {name}"));
    }
    match &mut entry[field] {
        Value::Object(old) if is_ours(&Value::Object(old.clone())) => {
            old.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        old if replace => *old = Value::Object(new.clone()),
        _ => {
            return Err(format!(
                "its {field} {name} is of another server, or of this one with other certificates; choose other names with --name, \
                 or overwrite it with --replace"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::authn::Identity;

    fn data(pem: &str) -> Value {
        base64::engine::general_purpose::STANDARD.encode(pem).into()
    }

    fn entries(identity: &Identity, url: &str) -> Entries {
        let map = |value: Value| value.as_object().cloned().unwrap();
        Entries {
            cluster_name: "mainstay".to_owned(),
            user_name: "mainstay-admin".to_owned(),
            context_name: "mainstay".to_owned(),
            cluster: map(json!({"server": url, "certificate-authority-data": data(&identity.ca.certificate_pem)})),
            user: map(json!({"client-certificate-data": data(&identity.admin.certificate_pem),
                "client-key-data": data(&identity.admin.key_pem)})),
        }
    }

    fn identity() -> Identity {
        Identity::make(&[], jiff::Timestamp::now()).unwrap()
    }

    const OTHERS: &str = "apiVersion: v1\nkind: Config\npreferences: {colors: true}\ncurrent-context: prod\nclusters:\n\
        - name: prod\n  cluster: {server: 'https://prod', certificate-authority: ca.crt, proxy-url: http://p}\n\
        contexts:\n- {name: prod, context: {cluster: prod, user: me, namespace: '0123'}}\n\
        users:\n- name: me\n  user:\n    exec: {command: aws, args: [a, '1'], env: null}\nextensions: [{name: x, extension: {y: 1.5}}]\n";

    #[test]
    fn other_entries_stay_and_ours_are_updated() {
        let identity = identity();
        let first = entries(&identity, "https://one").merge_into(OTHERS, false).unwrap();
        assert!(first.changed && !first.is_current);
        let again = entries(&identity, "https://one").merge_into(&first.text, false).unwrap();
        assert!(!again.changed && again.text == first.text);
        let before = parse(OTHERS).unwrap();
        // A namespace that the user set, and fields that we do not write.
        let mut chosen = parse(&first.text).unwrap();
        chosen["contexts"][1]["context"]["namespace"] = json!("shop");
        chosen["clusters"][1]["cluster"]["proxy-url"] = json!("http://q");
        let chosen = yaml::to_text(&Value::Object(chosen));
        let renewed = Identity { admin: self::identity().admin, ..identity };
        let moved = entries(&renewed, "https://two").merge_into(&chosen, false).unwrap();
        let after = parse(&moved.text).unwrap();
        for list in ["clusters", "users", "contexts"] {
            assert_eq!(after[list][0], before[list][0]);
            assert_eq!(after[list].as_array().unwrap().len(), 2);
        }
        for field in ["preferences", "current-context", "extensions"] {
            assert_eq!(after[field], before[field]);
        }
        assert_eq!(after["clusters"][1]["cluster"]["server"], "https://two");
        assert_eq!(after["clusters"][1]["cluster"]["proxy-url"], "http://q");
        assert_eq!(
            after["contexts"][1]["context"],
            json!({"cluster": "mainstay", "user": "mainstay-admin", "namespace": "shop"})
        );
        assert_eq!(after["users"][1]["user"]["client-key-data"], data(&renewed.admin.key_pem));
    }

    #[test]
    fn empty_files_become_kubeconfigs() {
        let entries = entries(&identity(), "https://one");
        for text in ["", "# mine\n", "---\n", "{}", "clusters: null\ncurrent-context: ''\n"] {
            let merged = entries.merge_into(text, false).unwrap();
            assert!(merged.is_current && merged.changed, "{text}");
            kube::config::Kubeconfig::from_yaml(&merged.text).unwrap();
            assert_eq!(parse(&merged.text).unwrap(), parse(&entries.alone()).unwrap(), "{text}");
        }
    }

    #[test]
    fn entries_of_other_servers_and_other_files_are_refused() {
        let ours = entries(&identity(), "https://one");
        let other = entries(&identity(), "https://one").alone();
        let only = |list: &str| {
            let all = parse(&other).unwrap();
            yaml::to_text(&json!({list: all[list]}))
        };
        let foreign = "contexts: [{name: mainstay, context: {cluster: prod, user: me}}]".to_owned();
        for (text, wanted) in [
            (only("clusters"), "its cluster mainstay is of another server"),
            (only("users"), "its user mainstay-admin is of another server"),
            (foreign, "its context mainstay is of another server"),
            ("users: [{name: mainstay-admin}]".to_owned(), "its user mainstay-admin is of another server"),
            ("clusters: {a: 1}".to_owned(), "its clusters are not a list"),
            ("users: [{user: {}}]".to_owned(), "one of its users has no name"),
            ("users: [x]".to_owned(), "one of its users has no name"),
            ("kind: Secret".to_owned(), "its kind is \"Secret\", not Config"),
            ("apiVersion: v2".to_owned(), "its apiVersion is \"v2\", not v1"),
            ("a: 1\na: 2".to_owned(), "it sets a field twice"),
            ("a: [".to_owned(), "error converting YAML to JSON"),
            ("just text".to_owned(), "couldn't get version/kind"),
            ("a: 1\n---\nb: 1\n".to_owned(), "error converting YAML to JSON"),
            ("clusters: [{name: mainstay}, {name: mainstay}]".to_owned(), "it has two clusters of the name mainstay"),
        ] {
            let error = ours.merge_into(&text, false).unwrap_err();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
        let replaced = ours.merge_into(&other, true).unwrap();
        assert_eq!(parse(&replaced.text).unwrap(), parse(&ours.alone()).unwrap());
    }
}
