//! Compares strategic merge patches with a model: labels, finalizers, and containers with an image and arguments.
//!
//! The input's bytes choose the pod and the patch. The model does not read the patch's JSON: it uses the choices, and
//! applies the rules of Kubernetes to give the result or a refusal.

use object::access::Access;
use object::schema::builtin_type;
use object::{Map, Value, json, patch};
use std::collections::BTreeMap;

type Word = &'static str;
type Words = Vec<Word>;
type Labels = BTreeMap<Word, Word>;

const NAMES: [Word; 4] = ["a", "b", "c", "d"];
const MEMBERS: [Word; 3] = ["name", "image", "args"];

/// What a patch does to a member.
#[derive(Clone, Debug, PartialEq)]
enum Change<T> {
    Leave,
    Remove,
    Set(T),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Directive {
    None,
    Replace,
    Delete,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Container {
    name: Word,
    image: Option<Word>,
    args: Option<Words>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Pod {
    labels: Option<Labels>,
    finalizers: Option<Words>,
    containers: Option<Vec<Container>>,
}

/// An element of the patch's list of containers.
#[derive(Debug)]
struct Element {
    name: Word,
    directive: Directive,
    image: Change<Word>,
    args: Change<Words>,
    retained: Option<Words>,
}

#[derive(Debug)]
struct Patch {
    labels: Change<(Directive, BTreeMap<Word, Change<Word>>)>,
    finalizers: Change<Words>,
    finalizers_gone: Words,
    finalizers_order: Option<Words>,
    containers: Change<Vec<Element>>,
    containers_order: Option<Words>,
}

pub fn read(input: &[u8]) -> String {
    let mut choices = Choices(input.iter());
    let (pod, chosen) = (choices.pod(), choices.patch());
    let expected = patched(&pod, &chosen);
    let (document, change) = (pod.document(), chosen.document());
    let ty = builtin_type("io.k8s.api.core.v1.Pod");
    match (patch::strategic(&ty, &document, &change), expected) {
        (Ok(found), Some(expected)) => {
            assert_eq!(found, expected.document(), "{document} patched by {change}");
            let lists = [expected.finalizers.map(|list| list.len()), expected.containers.map(|list| list.len())];
            format!("patched: {} {}", "l".repeat(lists[0].unwrap_or(9)), "c".repeat(lists[1].unwrap_or(9)))
        }
        (Err(status), None) => {
            assert!(matches!(status.code, 400 | 422), "{} {}", status.code, status.message);
            status.message
        }
        (Ok(found), None) => panic!("{document} patched by {change} must be refused, and is {found}"),
        (Err(status), Some(_)) => panic!("{document} patched by {change}: {}", status.message),
    }
}

/// Reads choices from the input. At its end, every choice is the first one.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % end
    }

    /// Some of the names, in some order.
    fn names(&mut self) -> Words {
        let (mut left, mut names, mut number) = (NAMES.to_vec(), Vec::new(), self.below(120));
        while !left.is_empty() {
            let (pick, end) = (number % (left.len() + 1), left.len() + 1);
            number /= end;
            if pick == 0 {
                break;
            }
            names.push(left.remove(pick - 1));
        }
        names
    }

    fn value(&mut self) -> Word {
        ["x", "y"][self.below(2)]
    }

    fn change<T>(&mut self, set: impl FnOnce(&mut Self) -> T) -> Change<T> {
        match self.below(4) {
            0 => Change::Leave,
            1 => Change::Remove,
            _ => Change::Set(set(self)),
        }
    }

    fn maybe<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(3) > 0).then(|| some(self))
    }

    fn directive(&mut self) -> Directive {
        [Directive::None, Directive::None, Directive::None, Directive::Replace, Directive::Delete][self.below(5)]
    }

    fn pod(&mut self) -> Pod {
        let container =
            |at: &mut Self, name| Container { name, image: at.maybe(Self::value), args: at.maybe(Self::names) };
        Pod {
            labels: self.maybe(|at| at.names().into_iter().map(|key| (key, at.value())).collect()),
            finalizers: self.maybe(Self::names),
            containers: self.maybe(|at| at.names().into_iter().map(|name| container(at, name)).collect()),
        }
    }

    fn patch(&mut self) -> Patch {
        let labels = self.change(|at| {
            let directive = at.directive();
            (directive, at.names().into_iter().map(|key| (key, at.change(Self::value))).collect())
        });
        let (finalizers, finalizers_order) = (self.change(Self::names), self.maybe(Self::names));
        let mut finalizers_gone = self.names();
        let containers = self.change(|at| at.names().into_iter().map(|name| at.element(name)).collect());
        let containers_order = self.maybe(Self::names);
        if let (Change::Set(united), None) = (&finalizers, &finalizers_order) {
            // If a name is both added and removed, upstream's result is random unless the list has an order.
            finalizers_gone.retain(|name| !united.contains(name));
        }
        Patch {
            labels,
            // A removed list has no order.
            finalizers_order: finalizers_order.filter(|_| finalizers != Change::Remove),
            finalizers,
            finalizers_gone,
            containers_order: containers_order.filter(|_| !matches!(containers, Change::Remove)),
            containers,
        }
    }

    fn element(&mut self, name: Word) -> Element {
        let bits = self.below(32);
        let retained =
            MEMBERS.into_iter().enumerate().filter(|(at, _)| bits >> at & 1 == 0).map(|(_, it)| it).collect();
        Element {
            name,
            directive: self.directive(),
            image: self.change(Self::value),
            args: self.change(Self::names),
            retained: (bits >= 24).then_some(retained),
        }
    }
}

impl Pod {
    fn document(&self) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n"}});
        if let Some(labels) = &self.labels {
            pod.put(&["metadata", "labels"], json!(labels));
        }
        if let Some(finalizers) = &self.finalizers {
            pod.put(&["metadata", "finalizers"], json!(finalizers));
        }
        if let Some(containers) = &self.containers {
            pod.put(&["spec", "containers"], containers.iter().map(Container::document).collect::<Vec<_>>());
        }
        pod
    }
}

impl Container {
    fn document(&self) -> Value {
        let mut container = json!({"name": self.name});
        if let Some(image) = self.image {
            container["image"] = json!(image);
        }
        if let Some(args) = &self.args {
            container["args"] = json!(args);
        }
        container
    }
}

impl Directive {
    fn write(self, into: &mut Map) {
        match self {
            Directive::None => {}
            Directive::Replace => drop(into.insert("$patch".to_owned(), json!("replace"))),
            Directive::Delete => drop(into.insert("$patch".to_owned(), json!("delete"))),
        }
    }
}

fn write<T>(into: &mut Map, name: &str, change: &Change<T>, value: impl FnOnce(&T) -> Value) {
    match change {
        Change::Leave => {}
        Change::Remove => drop(into.insert(name.to_owned(), Value::Null)),
        Change::Set(set) => drop(into.insert(name.to_owned(), value(set))),
    }
}

impl Patch {
    fn document(&self) -> Value {
        let (mut metadata, mut spec) = (Map::new(), Map::new());
        write(&mut metadata, "labels", &self.labels, |(directive, changes)| {
            let mut labels = Map::new();
            directive.write(&mut labels);
            changes.iter().for_each(|(key, change)| write(&mut labels, key, change, |value| json!(value)));
            Value::Object(labels)
        });
        write(&mut metadata, "finalizers", &self.finalizers, |names| json!(names));
        if !self.finalizers_gone.is_empty() {
            metadata.insert("$deleteFromPrimitiveList/finalizers".to_owned(), json!(self.finalizers_gone));
        }
        if let Some(order) = &self.finalizers_order {
            metadata.insert("$setElementOrder/finalizers".to_owned(), json!(order));
        }
        write(&mut spec, "containers", &self.containers, |elements| {
            Value::Array(elements.iter().map(Element::document).collect())
        });
        if let Some(order) = &self.containers_order {
            let order: Vec<Value> = order.iter().map(|name| json!({"name": name})).collect();
            spec.insert("$setElementOrder/containers".to_owned(), Value::Array(order));
        }
        json!({"metadata": Value::Object(metadata), "spec": Value::Object(spec)})
    }
}

impl Element {
    fn document(&self) -> Value {
        let mut element = Map::new();
        element.insert("name".to_owned(), json!(self.name));
        self.directive.write(&mut element);
        write(&mut element, "image", &self.image, |image| json!(image));
        write(&mut element, "args", &self.args, |args| json!(args));
        if let Some(retained) = &self.retained {
            element.insert("$retainKeys".to_owned(), json!(retained));
        }
        Value::Object(element)
    }
}

impl<T: Clone> Change<T> {
    fn of(&self, before: Option<T>) -> Option<T> {
        match self {
            Change::Leave => before,
            Change::Remove => None,
            Change::Set(value) => Some(value.clone()),
        }
    }
}

/// The expected result, or `None` if the patch must be refused.
fn patched(pod: &Pod, patch: &Patch) -> Option<Pod> {
    Some(Pod {
        labels: patched_labels(pod.labels.clone(), patch),
        finalizers: patched_finalizers(pod.finalizers.as_ref(), patch)?,
        containers: patched_containers(pod.containers.as_ref(), patch)?,
    })
}

fn patched_labels(before: Option<Labels>, patch: &Patch) -> Option<Labels> {
    let (directive, changes) = match &patch.labels {
        Change::Leave => return before,
        Change::Remove => return None,
        Change::Set(set) => set,
    };
    let mut labels = match directive {
        // An existing map stays as an empty one.
        Directive::Delete => return before.map(|_| Labels::new()),
        Directive::Replace => Labels::new(),
        Directive::None => before.unwrap_or_default(),
    };
    for (key, change) in changes {
        match change {
            Change::Leave => {}
            Change::Remove => drop(labels.remove(key)),
            Change::Set(value) => drop(labels.insert(key, value)),
        }
    }
    Some(labels)
}

fn patched_finalizers(before: Option<&Words>, patch: &Patch) -> Option<Option<Words>> {
    let no_words = Words::new();
    let named = match &patch.finalizers {
        Change::Leave => None,
        Change::Remove => return Some(None),
        Change::Set(names) => Some(names),
    };
    if !follows_order(named.unwrap_or(&no_words).iter().copied(), patch.finalizers_order.as_ref()) {
        return None;
    }
    if before.is_none() && named.is_none() {
        return Some(None);
    }
    let live = before.unwrap_or(&no_words);
    let mut united = live.clone();
    united.extend(named.into_iter().flatten().filter(|name| !live.contains(name)));
    let order = patch.finalizers_order.as_ref().or(named).unwrap_or(&no_words);
    let mut interleaved = interleaved(&united, order, live);
    interleaved.retain(|name| !patch.finalizers_gone.contains(name));
    Some(Some(interleaved))
}

fn patched_containers(before: Option<&Vec<Container>>, patch: &Patch) -> Option<Option<Vec<Container>>> {
    let elements = match &patch.containers {
        Change::Leave => None,
        Change::Remove => return Some(None),
        Change::Set(elements) => Some(elements),
    };
    let is_plain = |element: &&Element| element.directive == Directive::None;
    let plain = || elements.into_iter().flatten().filter(is_plain);
    if !follows_order(plain().map(|element| element.name), patch.containers_order.as_ref()) {
        return None;
    }
    if before.is_none() && elements.is_none() {
        return Some(None);
    }
    let has = |directive: Directive| elements.into_iter().flatten().filter(move |it| it.directive == directive);
    let live: Words = before.into_iter().flatten().map(|container| container.name).collect();
    let mut containers =
        if has(Directive::Replace).next().is_some() { None } else { before.cloned() }.unwrap_or_default();
    containers.retain(|container| !has(Directive::Delete).any(|element| element.name == container.name));
    for element in plain() {
        match containers.iter_mut().find(|container| container.name == element.name) {
            Some(container) => *container = merged(container, element)?,
            None => containers.push(made(element)),
        }
    }
    let names: Words = containers.iter().map(|container| container.name).collect();
    let mentioned: Words = plain().map(|element| element.name).collect();
    let order = patch.containers_order.as_ref().unwrap_or(&mentioned);
    let interleaved = interleaved(&names, order, &live);
    Some(Some(interleaved.iter().flat_map(|name| containers.iter().find(|it| it.name == *name)).cloned().collect()))
}

fn merged(before: &Container, element: &Element) -> Option<Container> {
    let mut container = before.clone();
    if let Some(retained) = &element.retained {
        let is_set = |member: &str| match member {
            "image" => matches!(element.image, Change::Set(_)),
            "args" => matches!(element.args, Change::Set(_)),
            _ => true,
        };
        if MEMBERS.iter().any(|member| is_set(member) && !retained.contains(member)) {
            return None;
        }
        container.image = container.image.filter(|_| retained.contains(&"image"));
        container.args = container.args.filter(|_| retained.contains(&"args"));
    }
    container.image = element.image.of(container.image);
    container.args = element.args.of(container.args);
    Some(container)
}

/// A new container: there is nothing to merge with.
fn made(element: &Element) -> Container {
    Container { name: element.name, image: element.image.of(None), args: element.args.of(None) }
}

/// Whether the order contains all named elements, in the same sequence.
fn follows_order(named: impl Iterator<Item = Word>, order: Option<&Words>) -> bool {
    let Some(order) = order else { return true };
    let places: Option<Vec<usize>> = named.map(|name| order.iter().position(|it| *it == name)).collect();
    places.is_some_and(|places| places.is_sorted())
}

/// Names in `order` come in that order. Each other name keeps its place relative to its neighbours in `live`: it
/// comes before the first ordered name that followed it.
fn interleaved(names: &[Word], order: &[Word], live: &[Word]) -> Words {
    let lived = |name: &Word| live.iter().position(|it| it == name);
    let mut interleaved: Words = order.iter().filter(|name| names.contains(name)).copied().collect();
    let mut from = 0;
    for name in live.iter().filter(|name| names.contains(name) && !order.contains(name)) {
        let is_after = |other: &Word| lived(other).is_some_and(|at| Some(at) > lived(name));
        let place = interleaved[from..].iter().position(is_after).map_or(interleaved.len(), |at| from + at);
        interleaved.insert(place, name);
        from = place + 1;
    }
    interleaved
}
