//! Policy rules: what a rule allows, and which parts of a rule are covered by other rules.

use crate::attributes::Attributes;
use object::access::Access;
use object::{Map, Value, json};
use std::cell::Cell;

const ALL: &str = "*";
/// Limit of comparisons of words of rules for one request. A small body can cause a great many, because a rule allows
/// all combinations of its verbs, groups, resources and names, and each list is compared with another long one.
const COMPARISONS_MAX: usize = 100_000_000;
/// Building a rule with one verb and one resource takes as long as this many comparisons.
const COMPARISONS_PER_SINGLE: usize = 10;
/// A word counts once more for each multiple of this length.
const WORD_BYTES: usize = 64;

/// The remaining number of comparisons.
pub struct Work(Cell<usize>);

impl Work {
    /// The limit for the request of one user.
    pub fn bounded() -> Work {
        Work(Cell::new(COMPARISONS_MAX))
    }

    fn unbounded() -> Work {
        Work(Cell::new(usize::MAX))
    }

    /// Subtracts comparisons. Returns whether enough were left.
    fn spend(&self, comparisons: usize) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(comparisons));
        left > comparisons
    }

    /// Whether the limit was reached. Later results are then wrong.
    pub fn is_spent(&self) -> bool {
        self.0.get() == 0
    }

    /// Subtracts the comparisons of a word with a list. Returns whether enough were left.
    fn looks_for(&self, word: &str, list: &[String]) -> bool {
        self.spend(list.len().saturating_mul(1 + word.len() / WORD_BYTES))
    }
}

/// A PolicyRule of a Role or ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub urls: Vec<String>,
}

impl Rule {
    pub fn from_value(value: &Value) -> Rule {
        let texts = |key: &str| value.items(&[key]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Rule {
            verbs: texts("verbs"),
            groups: texts("apiGroups"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            urls: texts("nonResourceURLs"),
        }
    }

    /// The rules of a Role or ClusterRole.
    pub fn of_role(role: &Value) -> Vec<Rule> {
        role.items(&["rules"]).iter().map(Rule::from_value).collect()
    }

    /// The encoded form, without empty lists.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        let lists = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        for (key, list) in lists {
            if !list.is_empty() {
                out.insert(key.to_owned(), json!(list));
            }
        }
        Value::Object(out)
    }

    /// Whether this rule allows the request.
    pub fn allows(&self, asked: &Attributes) -> bool {
        if !has(&self.verbs, &asked.verb) {
            return false;
        }
        if asked.resource.is_empty() {
            return self.urls.iter().any(|pattern| url_matches(pattern, &asked.path));
        }
        has(&self.groups, &asked.group)
            && self.resources.iter().any(|rule| resource_matches(rule, &asked.resource, &asked.subresource))
            && (self.names.is_empty() || self.names.contains(&asked.name))
    }

    /// Whether this rule allows everything that `single` allows, a rule for URLs or for resources. False if the limit
    /// is reached.
    fn covers(&self, single: &Rule, work: &Work) -> bool {
        let within =
            |own: &[String], theirs: &[String]| theirs.iter().all(|one| work.looks_for(one, own) && has(own, one));
        if !work.spend(1) || !within(&self.verbs, &single.verbs) {
            return false;
        }
        if !single.urls.is_empty() {
            let is_matched = |url: &String| self.urls.iter().any(|pattern| url_matches(pattern, url));
            return single.urls.iter().all(|url| work.looks_for(url, &self.urls) && is_matched(url));
        }
        let has_name = |name: &String| work.looks_for(name, &self.names) && self.names.contains(name);
        let resources_fit = single.resources.iter().all(|theirs| {
            let (resource, subresource) = theirs.split_once('/').unwrap_or((theirs, ""));
            work.looks_for(theirs, &self.resources)
                && self.resources.iter().any(|own| resource_matches(own, resource, subresource))
        });
        within(&self.groups, &single.groups)
            && resources_fit
            && (self.names.is_empty() || (!single.names.is_empty() && single.names.iter().all(has_name)))
    }

    /// Whether this rule alone allows everything that another does. Several rules together may cover more.
    fn covers_whole(&self, other: &Rule, work: &Work) -> bool {
        (other.urls.is_empty() || other.resources.is_empty()) && self.covers(other, work)
    }

    /// The number of words.
    pub fn words(&self) -> usize {
        self.lists().iter().map(|list| list.len()).sum()
    }

    fn bytes(&self) -> usize {
        self.lists().iter().flat_map(|list| list.iter()).map(String::len).sum()
    }

    fn lists(&self) -> [&Vec<String>; 5] {
        [&self.verbs, &self.groups, &self.resources, &self.names, &self.urls]
    }

    /// The equivalent rules with one verb and one resource or URL each. There may be very many, so they are built one
    /// by one.
    fn singles(&self) -> impl Iterator<Item = Rule> {
        self.verbs.iter().flat_map(move |verb| {
            let single = Rule { verbs: vec![verb.clone()], ..Rule::default() };
            let of_urls = single.clone();
            let urls = self.urls.iter().map(move |url| Rule { urls: vec![url.clone()], ..of_urls.clone() });
            let pairs =
                self.groups.iter().flat_map(move |group| self.resources.iter().map(move |resource| (group, resource)));
            let resources = pairs.flat_map(move |(group, resource)| {
                let single = Rule { groups: vec![group.clone()], resources: vec![resource.clone()], ..single.clone() };
                let unnamed = self.names.is_empty().then(|| single.clone());
                let named = self.names.iter().map(move |name| Rule { names: vec![name.clone()], ..single.clone() });
                unnamed.into_iter().chain(named)
            });
            urls.chain(resources)
        })
    }

    /// The rule as refusals show it: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
    pub fn describe(&self) -> String {
        let lists = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let parts = lists.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list in upstream's format: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    let words: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

/// What `wanted` allows and `held` does not, one verb and resource at a time.
pub fn missing(held: &[&Rule], wanted: &[Rule]) -> Vec<Rule> {
    missing_within(held, wanted, &Work::unbounded()).collect()
}

/// Like `missing`, evaluated lazily and within the limit of `work`. It is cheap for a user with one rule that covers
/// everything, such as `*`.
pub fn missing_within<'a>(
    held: &'a [&Rule],
    wanted: &'a [Rule],
    work: &'a Work,
) -> impl Iterator<Item = Rule> + use<'a> {
    let begun = wanted.iter().take_while(|_| !work.is_spent());
    let singles = begun.filter(|rule| !held.iter().any(|held| held.covers_whole(rule, work))).flat_map(Rule::singles);
    singles
        .take_while(|single| work.spend(COMPARISONS_PER_SINGLE + single.bytes() / WORD_BYTES))
        .filter(|single| !held.iter().any(|rule| rule.covers(single, work)))
}

/// Merges rules for the same resource into one rule with all verbs, in order of first appearance.
pub fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    for mut rule in rules {
        let same = |other: &&mut Rule| {
            other.groups == rule.groups
                && other.resources == rule.resources
                && other.names == rule.names
                && other.urls == rule.urls
        };
        match out.iter_mut().find(same) {
            Some(known) => {
                rule.verbs.retain(|verb| !known.verbs.contains(verb));
                known.verbs.append(&mut rule.verbs);
            }
            None => out.push(rule),
        }
    }
    out
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == ALL || one == wanted)
}

/// `*` matches everything, `*/scale` the subresource of every resource, `pods/log` that of pods, `pods` only the
/// objects.
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    match rule.split_once('/') {
        Some((rule_resource, rule_subresource)) => {
            rule_subresource == subresource && (rule_resource == ALL || rule_resource == resource)
        }
        None => false,
    }
}

/// A `*` at the end matches any suffix.
fn url_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(|word| if word == "-" { String::new() } else { word.to_owned() }).collect()
    }

    /// `verbs;groups;resources;names`, with `-` for the core group, or `verbs;urls`.
    fn rule(text: &str) -> Rule {
        let parts: Vec<&str> = text.split(';').collect();
        match parts.as_slice() {
            [verbs, urls] => Rule { verbs: list(verbs), urls: list(urls), ..Rule::default() },
            [verbs, groups, resources, names] => Rule {
                verbs: list(verbs),
                groups: list(groups),
                resources: list(resources),
                names: list(names),
                urls: Vec::new(),
            },
            _ => panic!("{text}"),
        }
    }

    /// `verb group resource/subresource name` or `verb /path`.
    fn asked(text: &str) -> Attributes {
        let words = list(text);
        let mut asked = Attributes { verb: words[0].clone(), ..Attributes::default() };
        if words[1].starts_with('/') {
            asked.path = words[1].clone();
            return asked;
        }
        let (resource, subresource) = words[2].split_once('/').unwrap_or((&words[2], ""));
        asked.group = words[1].clone();
        asked.resource = resource.to_owned();
        asked.subresource = subresource.to_owned();
        asked.name = words.get(3).cloned().unwrap_or_default();
        asked
    }

    #[test]
    fn rules_match_as_documented() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("get list;-;pods;", &["get - pods", "list - pods"], &["watch - pods", "get apps pods", "get - pods/log"]),
            ("*;*;*;", &["get - pods/log x", "any a.b things"], &["get /metrics"]),
            ("get;-;pods/log;", &["get - pods/log"], &["get - pods", "get - pods/status", "get - nodes/log"]),
            ("update;*;*/scale;", &["update apps statefulsets/scale"], &["update apps statefulsets", "update - scale"]),
            ("get;-;pods;a b", &["get - pods a", "get - pods b"], &["get - pods c", "get - pods"]),
            (
                "get;/healthz /livez/*",
                &["get /healthz", "get /livez/ping", "get /livez/"],
                &["get /livez", "post /healthz"],
            ),
            ("get;*", &["get /anything"], &["get - pods"]),
            ("*;-;pods;", &["* - pods"], &["get * pods"]),
            ("get;-;pods;", &[], &["* - pods", "get - *"]),
        ];
        for (text, yes, no) in cases {
            for request in *yes {
                assert!(rule(text).allows(&asked(request)), "{text} allows {request}");
            }
            for request in *no {
                assert!(!rule(text).allows(&asked(request)), "{text} does not allow {request}");
            }
        }
    }

    #[test]
    fn covering_is_by_verb_group_resource_and_name() {
        let cases: &[(&[&str], &str, &[&str])] = &[
            (&["*;*;*;"], "get;apps;statefulsets;x", &[]),
            (&["get;-;pods;", "list;-;pods;"], "get list;-;pods;", &[]),
            (&["get;-;pods;"], "get list;-;pods;", &["list;-;pods;"]),
            (&["get;-;pods;a"], "get;-;pods;", &["get;-;pods;"]),
            (&["get;-;pods;"], "get;-;pods;a", &[]),
            (&["get;-;pods;a b"], "get;-;pods;a", &[]),
            (&["get;*;*/status;"], "get;apps;statefulsets/status statefulsets;", &["get;apps;statefulsets;"]),
            (&["get;-;pods;"], "get;*;pods;", &["get;*;pods;"]),
            (&["get;-;pods;"], "get;-;*;", &["get;-;*;"]),
            (&["get;-;*/status;"], "get;-;*/status;", &[]),
            (&["get;/api/*"], "get;/api/* /api", &["get;/api"]),
            (&["get;/api/v1"], "get;/api/*", &["get;/api/*"]),
            (&["get;*"], "get;/api/*", &[]),
            (&["*;*;*;"], "get;/api", &["get;/api"]),
        ];
        for (held, wanted, lacking) in cases {
            let held: Vec<Rule> = held.iter().map(|text| rule(text)).collect();
            let lacking: Vec<Rule> = lacking.iter().map(|text| rule(text)).collect();
            let (held, wanted_rules) = (held.iter().collect::<Vec<_>>(), [rule(wanted)]);
            assert_eq!(missing(&held, &wanted_rules), lacking, "{wanted}");
        }
    }

    fn words(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("w{at}")).collect()
    }

    fn cube(count: usize) -> Rule {
        Rule { verbs: words(count), groups: words(count), resources: words(count), ..Rule::default() }
    }

    const FEW: usize = 1_000_000;

    /// The number of missing permissions, up to `count`, and the comparisons used; `None` if the limit, which is
    /// lower here, is exceeded.
    fn compared(held: &[&Rule], wanted: &[Rule], count: usize) -> Option<(usize, usize)> {
        let work = Work(Cell::new(FEW));
        let found = missing_within(held, wanted, &work).take(count).count();
        (!work.is_spent()).then(|| (found, FEW - work.0.get()))
    }

    #[test]
    fn comparisons_are_limited() {
        let (all, some, none) = (rule("*;*;*;"), rule("get;-;pods;"), rule("get;-;pods;x"));
        assert_eq!(compared(&[&some, &none], &[cube(400)], usize::MAX), None);
        assert_eq!(compared(&[&some, &none], &[cube(30)], usize::MAX).unwrap().0, 30 * 30 * 30);
        assert_eq!(compared(&[], &vec![cube(30); 20], usize::MAX), None, "all together count");
        let (nothing, verb) = (Rule::default(), Rule { verbs: words(1), ..Rule::default() });
        assert_eq!(compared(&vec![&nothing; 2000], &vec![verb; 2000], usize::MAX), None, "each pair counts");
        // A user with all of it in one rule may grant it, and the check is cheap.
        let (found, work) = compared(&[&some, &all], &[cube(400)], usize::MAX).unwrap();
        assert!(found == 0 && work < 2000, "{work}");
        // Missing permissions are computed lazily.
        let (found, work) = compared(&[&some], &[cube(400)], 3).unwrap();
        assert!(found == 3 && work < 2000, "{work}");
        let mixed = Rule { urls: vec!["/x".to_owned()], ..cube(2) };
        assert_eq!(mixed.singles().count(), 10);
        assert_eq!(missing(&[&rule("*;/x")], &[mixed]).len(), 8);
    }

    /// Two long lists are compared word by word.
    #[test]
    fn long_lists_count_by_both_their_lengths() {
        let long = [
            Rule { names: words(300_000), ..rule("get;-;pods;") },
            Rule { urls: words(300_000), ..rule("get;/") },
            Rule { verbs: words(300_000), ..rule("get;-;pods;") },
            Rule { groups: words(300_000), ..rule("get;-;pods;") },
            Rule { resources: words(300_000), ..rule("get;-;pods;") },
        ];
        for rule in &long {
            assert_eq!(compared(&[rule], std::slice::from_ref(rule), 1), None);
            let mut half = rule.clone();
            half.verbs.truncate(500);
            half.names.truncate(500);
            half.urls.truncate(500);
            half.groups.truncate(500);
            half.resources.truncate(500);
            assert!(compared(&[&half], &[half.clone()], 1).is_some_and(|(found, _)| found == 0));
            let (all, urls) = (super::tests::rule("*;*;*;"), super::tests::rule("*;*"));
            let (found, work) = compared(&[&all, &urls], std::slice::from_ref(rule), 1).unwrap();
            assert!(found == 0 && work < 400_000, "{work}");
        }
        // Long words count too.
        let word = |at: usize| format!("{}{at:06}", "x".repeat(1 << 20));
        let long = Rule { verbs: vec![word(1)], names: words(100_000), ..rule("get;-;pods;") };
        assert_eq!(compared(&[&Rule { verbs: vec![word(2)], ..long.clone() }], &[long], usize::MAX), None);
    }

    #[test]
    fn refusals_show_compact_rules() {
        let singles: Vec<Rule> = rule("get list;-;pods;").singles().collect();
        assert_eq!(singles.len(), 2);
        let compacted = compact(singles);
        assert_eq!(compacted[0].describe(), r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#);
        assert_eq!(rule("get;/a").describe(), r#"{NonResourceURLs:["/a"], Verbs:["get"]}"#);
        assert_eq!(
            rule("get;apps;x;n").describe(),
            r#"{APIGroups:["apps"], Resources:["x"], ResourceNames:["n"], Verbs:["get"]}"#
        );
    }

    #[test]
    fn the_wire_form_round_trips() {
        for text in ["get;-;pods;a", "get;/x"] {
            assert_eq!(Rule::from_value(&rule(text).to_value()), rule(text));
        }
        assert_eq!(Rule::from_value(&json!({"verbs": "get", "resources": null, "apiGroups": [1]})), Rule::default());
    }
}
