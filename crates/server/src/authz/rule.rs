//! One policy rule: what it allows, and what a set of rules covers of another.

use crate::attributes::Attributes;
use object::access::Access;
use object::{Map, Value, json};

const ALL: &str = "*";
/// How many rules are compared with one another, one verb and resource at a time, for one request. A small body can name a great many:
/// all pairs of its verbs, groups, resources and names.
const COMPARISONS_MAX: usize = 10_000_000;

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

    /// The wire form; empty lists are left out.
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

    /// Whether this rule allows all that `single`, a rule about URLs or about resources, allows.
    fn covers(&self, single: &Rule) -> bool {
        let within = |own: &[String], theirs: &[String]| theirs.iter().all(|one| has(own, one));
        if !within(&self.verbs, &single.verbs) {
            return false;
        }
        if !single.urls.is_empty() {
            return single.urls.iter().all(|url| self.urls.iter().any(|pattern| url_matches(pattern, url)));
        }
        let names_fit = self.names.is_empty()
            || (!single.names.is_empty() && single.names.iter().all(|name| self.names.contains(name)));
        let resources_fit = single.resources.iter().all(|theirs| {
            let (resource, subresource) = theirs.split_once('/').unwrap_or((theirs, ""));
            self.resources.iter().any(|own| resource_matches(own, resource, subresource))
        });
        within(&self.groups, &single.groups) && resources_fit && names_fit
    }

    /// Whether this rule alone allows all that another does. Others may together do so as well.
    fn covers_whole(&self, other: &Rule) -> bool {
        (other.urls.is_empty() || other.resources.is_empty()) && self.covers(other)
    }

    /// How many [`Rule::singles`] there are.
    fn singles_count(&self) -> usize {
        let product = |counts: &[usize]| counts.iter().fold(1, |all: usize, count| all.saturating_mul(*count));
        let urls = product(&[self.verbs.len(), self.urls.len()]);
        urls.saturating_add(product(&[
            self.verbs.len(),
            self.groups.len(),
            self.resources.len(),
            self.names.len().max(1),
        ]))
    }

    /// The rules with one verb and one resource or URL each that together say the same. There may be very many: they are made one by one.
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

    /// How refusals write a rule: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
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

/// A list as upstream's texts write it: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    let words: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

/// What `wanted` allows and `held` does not, one verb and resource at a time.
pub fn missing<'a>(held: &'a [&Rule], wanted: &'a [Rule]) -> impl Iterator<Item = Rule> + 'a {
    let singles = wanted.iter().filter(|rule| !held.iter().any(|held| held.covers_whole(rule))).flat_map(Rule::singles);
    singles.filter(|single| !held.iter().any(|rule| rule.covers(single)))
}

/// Whether to find out what is [`missing`] takes too long to do it for whoever asks. What one held rule covers as a whole does not.
pub fn is_too_much(held: &[&Rule], wanted: &[Rule]) -> bool {
    // To make one to compare takes as long as some comparisons.
    let too_much = |rules: usize| rules.saturating_mul(held.len() + 10) > COMPARISONS_MAX;
    if too_much(wanted.len()) {
        return true;
    }
    let rest = wanted.iter().filter(|rule| !held.iter().any(|held| held.covers_whole(rule)));
    too_much(rest.map(Rule::singles_count).fold(0, usize::saturating_add))
}

/// Rules for the same resource as one rule with all their verbs, in the order of first appearance.
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

/// `*` is everything, `*/scale` one subresource of everything, `pods/log` one of one, `pods` the objects themselves.
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

/// `*` at the end stands for any rest.
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
            assert!(!is_too_much(&held, &wanted_rules));
            assert_eq!(missing(&held, &wanted_rules).collect::<Vec<_>>(), lacking, "{wanted}");
        }
    }

    #[test]
    fn what_takes_too_long_to_compare_is_known_before() {
        let words = |count: usize| (0..count).map(|at| format!("w{at}")).collect::<Vec<_>>();
        let cube = |count: usize| Rule {
            verbs: words(count),
            groups: words(count),
            resources: words(count),
            ..Rule::default()
        };
        let (all, some, none) = (rule("*;*;*;"), rule("get;-;pods;"), rule("get;-;pods;x"));
        assert_eq!(cube(400).singles_count(), 64_000_000);
        assert!(is_too_much(&[], &[cube(400)]) && is_too_much(&[&some, &none], &[cube(100)]));
        assert!(!is_too_much(&[], &[cube(100)]) && !is_too_much(&[&some, &none], &[cube(90)]));
        assert!(is_too_much(&[&some, &none], &[cube(90), cube(90)]), "all together count");
        assert!(is_too_much(&vec![&some; 10_000], &vec![some.clone(); 10_000]));
        // Who holds it whole may give it on, and pays for nothing.
        assert!(!is_too_much(&[&some, &all], &[cube(400)]));
        assert_eq!(missing(&[&some, &all], &[cube(400)]).next(), None);
        // What is missing is looked for as far as somebody asks.
        assert_eq!(missing(&[&some], &[cube(400)]).take(3).count(), 3);
        let mixed = Rule { urls: vec!["/x".to_owned()], ..cube(2) };
        assert_eq!((mixed.singles_count(), mixed.singles().count()), (10, 10));
        assert_eq!(missing(&[&rule("*;/x")], &[mixed]).count(), 8);
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
