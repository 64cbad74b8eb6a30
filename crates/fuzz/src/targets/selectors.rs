//! Selectors: the text form of a parsed selector parses to the same selector, which selects the same objects.

use object::selector::{FieldSelector, LabelSelector};
use object::{Map, json};

pub fn read(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let labels = LabelSelector::parse(&text);
    if let Ok(selector) = &labels {
        let written = selector.to_string();
        let again =
            LabelSelector::parse(&written).unwrap_or_else(|why| panic!("{text:?} is written as {written:?}: {why}"));
        for labels in samples(selector) {
            assert_eq!(
                selector.matches(&labels),
                again.matches(&labels),
                "{text:?}, written as {written:?}, of {labels:?}"
            );
        }
    }
    let fields = FieldSelector::parse(&text);
    if let Ok(selector) = &fields {
        let written = selector.to_string();
        let again =
            FieldSelector::parse(&written).unwrap_or_else(|why| panic!("{text:?} is written as {written:?}: {why}"));
        assert_eq!(selector, &again, "{text:?}, written as {written:?}");
    }
    let labels = labels.map_or_else(|why| why, |selector| format!("{} labels", selector.requirements().len().min(4)));
    let fields = fields.map_or_else(|why| why, |selector| format!("{} fields", selector.requirements().len().min(4)));
    format!("{labels}; {fields}")
}

/// Label sets: an empty one, and some with labels that the selector names.
fn samples(selector: &LabelSelector) -> Vec<Map> {
    let mut samples = vec![Map::new()];
    for pick in 0..3 {
        let mut labels = Map::new();
        for requirement in selector.requirements() {
            let value = requirement.values.get(pick).map_or("other", String::as_str);
            labels.insert(requirement.key.clone(), json!(value));
        }
        samples.push(labels);
    }
    samples
}
