//! How containers use volumes: as mounted files or as raw block devices.

use super::cursor::Cursor;
use super::paths;
use crate::Value;
use crate::access::Access;
use crate::field::Errors;
use std::collections::{BTreeMap, BTreeSet};

type Volumes<'a> = BTreeMap<&'a str, &'a Value>;

/// Validates a container's `volumeMounts` and `volumeDevices` against the pod's volumes.
pub(super) fn validate(container: &Cursor, volumes: &Volumes, errors: &mut Errors) {
    let privileged = container.child("securityContext").child("privileged").flag();
    let (mounts, devices) = (container.child("volumeMounts"), container.child("volumeDevices"));
    validate_mounts(&mounts, &uses(&devices, "devicePath"), volumes, privileged, errors);
    validate_devices(&devices, &uses(&mounts, "mountPath"), volumes, errors);
}

/// Returns the path of each used volume.
fn uses<'a>(list: &Cursor<'a, '_>, path: &str) -> BTreeMap<&'a str, &'a str> {
    list.list().iter().map(|each| (each.text(&["name"]), each.text(&[path]))).collect()
}

fn validate_mounts(
    mounts: &Cursor,
    devices: &BTreeMap<&str, &str>,
    volumes: &Volumes,
    privileged: bool,
    errors: &mut Errors,
) {
    let mut places = BTreeSet::new();
    for mount in mounts.items() {
        let (name, place) = (mount.child("name"), mount.child("mountPath"));
        if name.is_empty() {
            name.required("", errors);
        }
        if !volumes.contains_key(name.text()) {
            name.not_found("", errors);
        }
        if place.is_empty() {
            place.required("", errors);
        }
        if !places.insert(place.text()) {
            place.invalid("must be unique", errors);
        }
        if devices.contains_key(name.text()) {
            name.invalid("must not already exist in volumeDevices", errors);
        }
        if devices.values().any(|device| *device == place.text()) {
            place.invalid("must not already exist as a path in volumeDevices", errors);
        }
        validate_sub_path(mounts, &mount, errors);
        validate_propagation(mounts, &mount, privileged, errors);
        validate_recursive_read_only(mounts, &mount, errors);
    }
}

/// Upstream's errors for these fields name the list, not the element; so do ours.
fn validate_sub_path(mounts: &Cursor, mount: &Cursor, errors: &mut Errors) {
    let (plain, expression) = (mount.child("subPath"), mount.child("subPathExpr"));
    let mut check = |field: &str, path: &Cursor| {
        let place = mounts.path().child(field);
        paths::descending(&Cursor::new(path.value(), &place), errors);
    };
    check("subPath", &plain);
    check("subPathExpr", &expression);
    if !plain.is_empty() && !expression.is_empty() {
        expression.invalid("subPathExpr and subPath are mutually exclusive", errors);
    }
}

fn validate_propagation(mounts: &Cursor, mount: &Cursor, privileged: bool, errors: &mut Errors) {
    let place = mounts.path().child("mountPropagation");
    let mode = mount.child("mountPropagation");
    let propagation = Cursor::new(mode.value(), &place);
    propagation.one_of(&["Bidirectional", "HostToContainer", "None"], errors);
    if propagation.text() == "Bidirectional" && !privileged {
        propagation.forbidden("Bidirectional mount propagation is available only to privileged containers", errors);
    }
}

fn validate_recursive_read_only(mounts: &Cursor, mount: &Cursor, errors: &mut Errors) {
    let place = mounts.path().child("recursiveReadOnly");
    let mode = mount.child("recursiveReadOnly");
    let recursive = Cursor::new(mode.value(), &place);
    recursive.one_of(&["Disabled", "Enabled", "IfPossible"], errors);
    if matches!(recursive.text(), "Enabled" | "IfPossible") {
        if !mount.child("readOnly").flag() {
            recursive.forbidden("may only be specified when readOnly is true", errors);
        }
        if !matches!(mount.child("mountPropagation").text(), "" | "None") {
            recursive.forbidden("may only be specified when mountPropagation is None or not specified", errors);
        }
    }
}

fn validate_devices(devices: &Cursor, mounts: &BTreeMap<&str, &str>, volumes: &Volumes, errors: &mut Errors) {
    let (mut places, mut names) = (BTreeSet::new(), BTreeSet::new());
    for device in devices.items() {
        let (name, place) = (device.child("name"), device.child("devicePath"));
        if name.is_empty() {
            name.required("", errors);
        } else if !names.insert(name.text()) {
            name.invalid("must be unique", errors);
        }
        match volumes.get(name.text()) {
            None => name.not_found("", errors),
            Some(volume) if !volume.has(&["persistentVolumeClaim"]) && !volume.has(&["ephemeral"]) => {
                name.invalid(
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                    errors,
                );
            }
            Some(_) => {}
        }
        if place.is_empty() {
            place.required("", errors);
        }
        if paths::has_backsteps(place.text()) {
            place.invalid("can not contain backsteps ('..')", errors);
        } else if !places.insert(place.text()) {
            place.invalid("must be unique", errors);
        }
        if mounts.contains_key(name.text()) {
            name.invalid("must not already exist in volumeMounts", errors);
        }
        if mounts.values().any(|mount| *mount == place.text()) {
            place.invalid("must not already exist as a path in volumeMounts", errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    fn errors_of(container: Value) -> Vec<String> {
        let (claim, scratch) = (json!({"persistentVolumeClaim": {"claimName": "c"}}), json!({"emptyDir": {}}));
        let volumes = BTreeMap::from([("claim", &claim), ("scratch", &scratch)]);
        let (path, mut errors) = (Path::new("c"), Errors::default());
        validate(&Cursor::new(&container, &path), &volumes, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    fn mount(extra: Value) -> Value {
        let mut mount = json!({"name": "scratch", "mountPath": "/m"});
        for (key, value) in extra.as_object().into_iter().flatten() {
            mount[key] = value.clone();
        }
        json!({"volumeMounts": [mount]})
    }

    #[test]
    fn invalid_mounts_are_refused_with_upstreams_messages() {
        let cases = [
            (
                json!({"volumeMounts": [{}]}),
                vec![
                    "c.volumeMounts[0].name: Required value",
                    "c.volumeMounts[0].name: Not found: \"\"",
                    "c.volumeMounts[0].mountPath: Required value",
                ],
            ),
            (
                json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
                vec!["c.volumeMounts[0].name: Not found: \"x\""],
            ),
            (
                json!({"volumeMounts": [{"name": "claim", "mountPath": "/x"}, {"name": "scratch", "mountPath": "/x"}]}),
                vec!["c.volumeMounts[1].mountPath: Invalid value: \"/x\": must be unique"],
            ),
            (
                mount(json!({"subPath": "/a"})),
                vec!["c.volumeMounts.subPath: Invalid value: \"/a\": must be a relative path"],
            ),
            (
                mount(json!({"subPath": "a/../b"})),
                vec!["c.volumeMounts.subPath: Invalid value: \"a/../b\": must not contain '..'"],
            ),
            (
                mount(json!({"subPath": "a", "subPathExpr": "b"})),
                vec![
                    "c.volumeMounts[0].subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive",
                ],
            ),
            (
                mount(json!({"mountPropagation": "Both"})),
                vec![
                    "c.volumeMounts.mountPropagation: Unsupported value: \"Both\": supported values: \"Bidirectional\", \"HostToContainer\", \"None\"",
                ],
            ),
            (
                mount(json!({"mountPropagation": "Bidirectional"})),
                vec![
                    "c.volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
                ],
            ),
            (
                mount(json!({"recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"})),
                vec![
                    "c.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
                    "c.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified",
                ],
            ),
            (
                mount(json!({"recursiveReadOnly": "Maybe"})),
                vec![
                    "c.volumeMounts.recursiveReadOnly: Unsupported value: \"Maybe\": supported values: \"Disabled\", \"Enabled\", \"IfPossible\"",
                ],
            ),
            (mount(json!({"subPath": "a/b"})), vec![]),
        ];
        for (container, want) in cases {
            assert_eq!(errors_of(container.clone()), want, "{container}");
        }
    }

    #[test]
    fn invalid_devices_are_refused_with_upstreams_messages() {
        let device = |name: &str, path: &str| json!({"volumeDevices": [{"name": name, "devicePath": path}]});
        let twice =
            json!({"volumeDevices": [{"name": "claim", "devicePath": "/d"}, {"name": "claim", "devicePath": "/d"}]});
        let both = json!({"volumeMounts": [{"name": "claim", "mountPath": "/d"}], "volumeDevices": [{"name": "claim", "devicePath": "/d"}]});
        let cases = [
            (device("x", "/d"), vec!["c.volumeDevices[0].name: Not found: \"x\""]),
            (device("claim", ""), vec!["c.volumeDevices[0].devicePath: Required value"]),
            (
                device("scratch", "/d"),
                vec![
                    "c.volumeDevices[0].name: Invalid value: \"scratch\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                ],
            ),
            (
                device("claim", "/../d"),
                vec!["c.volumeDevices[0].devicePath: Invalid value: \"/../d\": can not contain backsteps ('..')"],
            ),
            (
                twice,
                vec![
                    "c.volumeDevices[1].name: Invalid value: \"claim\": must be unique",
                    "c.volumeDevices[1].devicePath: Invalid value: \"/d\": must be unique",
                ],
            ),
            (
                both,
                vec![
                    "c.volumeMounts[0].name: Invalid value: \"claim\": must not already exist in volumeDevices",
                    "c.volumeMounts[0].mountPath: Invalid value: \"/d\": must not already exist as a path in volumeDevices",
                    "c.volumeDevices[0].name: Invalid value: \"claim\": must not already exist in volumeMounts",
                    "c.volumeDevices[0].devicePath: Invalid value: \"/d\": must not already exist as a path in volumeMounts",
                ],
            ),
        ];
        for (container, want) in cases {
            assert_eq!(errors_of(container.clone()), want, "{container}");
        }
    }
}
