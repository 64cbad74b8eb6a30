use super::encode::{self, bytes_field, varint_field};
use super::numbers::{self, Entry, Form, Shape};
use super::*;
use crate::json;
use crate::schema::{Scalar, Type};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeSet;

/// Fields that are newer than the release of the table. They are skipped, as an older Kubernetes does.
const NEWER: &[&str] = &[
    "apps.v1.StatefulSetSpec volumeClaimUpdatePolicy",
    "authentication.v1.TokenRequestSpec attestations",
    "core.v1.ClusterTrustBundleProjection user",
    "core.v1.ConfigMapVolumeSource defaultUser",
    "core.v1.DownwardAPIVolumeFile user",
    "core.v1.DownwardAPIVolumeSource defaultUser",
    "core.v1.EmptyDirVolumeSource mode",
    "core.v1.GRPCAction mode",
    "core.v1.HTTPGetAction protocol",
    "core.v1.KeyToPath user",
    "core.v1.NodeSpec podPreemptionPolicy",
    "core.v1.NodeSystemInfo runningInUserNamespace",
    "core.v1.PersistentVolumeClaimStatus healthStatus",
    "core.v1.PodCertificateProjection user",
    "core.v1.PodSpec evictionResponders",
    "core.v1.PodSpec schedulingGroup",
    "core.v1.PodStatus nodeAllocatableResourceClaimStatuses",
    "core.v1.PodStatus volumeHealth",
    "core.v1.ProjectedVolumeSource defaultUser",
    "core.v1.ResourceHealth message",
    "core.v1.SecretVolumeSource defaultUser",
    "core.v1.ServiceAccountTokenProjection user",
    "core.v1.VolumeMount bindMountOptions",
    "core.v1.VolumeMountStatus volumeStatus",
    "storage.v1.CSIDriverSpec preventPodSchedulingIfMissing",
    "storage.v1.CSINode status",
];

fn lookup(api_version: &str, kind: &str) -> Result<TypeId, Status> {
    type_of(&Kinds::builtin(), api_version, kind).ok_or_else(|| Status::unsupported_media_type("no"))
}

fn read(bytes: &[u8]) -> Result<Value, Status> {
    decode(bytes, lookup)
}

/// Every kind of body, as `apiVersion` and `kind`.
fn bodies() -> Vec<(String, String)> {
    let others = [
        ("v1", "Binding"),
        ("policy/v1", "Eviction"),
        ("authentication.k8s.io/v1", "TokenRequest"),
        ("autoscaling/v1", "Scale"),
        ("apps/v1", "DeleteOptions"),
    ];
    let kinds = Kinds::builtin();
    let served = kinds.iter().map(|kind| (kind.api_version(), kind.kind.to_string()));
    served.chain(others.iter().map(|(version, kind)| ((*version).to_owned(), (*kind).to_owned()))).collect()
}

/// Returns a body with the message `raw`.
fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    bytes_field(&mut type_meta, 1, api_version.as_bytes());
    bytes_field(&mut type_meta, 2, kind.as_bytes());
    let mut out = MAGIC.to_vec();
    bytes_field(&mut out, 1, &type_meta);
    bytes_field(&mut out, 2, raw);
    out
}

fn names<'a>(shape: &'a Shape, found: &mut BTreeSet<&'a str>) {
    for entry in shape.values() {
        match entry {
            Entry::Field(field) => drop(found.insert(&field.name)),
            Entry::Inline(inner) => names(inner, found),
        }
    }
}

#[test]
fn every_field_of_every_body_has_a_number() {
    let (schema, table) = (schema::builtin(), numbers::get());
    let mut todo: Vec<TypeId> = bodies().iter().map(|(version, kind)| lookup(version, kind).unwrap()).collect();
    let tops: BTreeSet<TypeId> = todo.iter().copied().collect();
    let (mut seen, mut without) = (BTreeSet::new(), Vec::new());
    while let Some(ty) = todo.pop() {
        if !seen.insert(ty) {
            continue;
        }
        match schema.get(ty) {
            Type::List { item: inner, .. } | Type::Map { value: inner, .. } => todo.push(*inner),
            Type::Any => {
                assert!(
                    table.forms.contains_key(&ty),
                    "a type without fields and without a known form: {:?}",
                    schema.name_of(ty)
                )
            }
            Type::Scalar(_) => {}
            Type::Struct(shape) => {
                let mut numbered = BTreeSet::new();
                if let Some(shape) = table.shapes.get(&ty) {
                    names(shape, &mut numbered);
                }
                for (name, field) in &shape.fields {
                    if numbered.contains(name.as_str()) {
                        todo.push(field.ty);
                    } else if !(tops.contains(&ty) && matches!(name.as_str(), "apiVersion" | "kind")) {
                        let full = schema.name_of(ty).unwrap_or("unnamed");
                        without.push(format!("{} {name}", full.trim_start_matches("io.k8s.api.")));
                    }
                }
            }
        }
    }
    without.sort();
    assert_eq!(without, NEWER);
}

#[test]
fn bodies_that_kubectl_sent_decode_to_the_json_it_prints() {
    let mut blocks = 0;
    for block in include_str!("testdata/kubectl.txt").split("\n\n") {
        let mut lines = block.lines();
        let [command, hex, json] = [(); 3].map(|()| lines.next().expect("three lines in each block"));
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        assert_eq!(read(&bytes).expect(command), serde_json::from_str::<Value>(json).unwrap(), "{command}");
        blocks += 1;
    }
    assert!(blocks >= 25, "only {blocks} commands");
}

#[test]
fn zeros_are_kept_in_pointer_fields() {
    let cases = [
        ("apps.v1.StatefulSetSpec", json!({"replicas": 0, "serviceName": ""}), json!({"minReadySeconds": 0})),
        ("apps.v1.RollingUpdateStatefulSetStrategy", json!({"partition": 0}), json!({})),
        (
            "core.v1.PodSpec",
            json!({
                "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "enableServiceLinks": false,
                "priority": 0, "runtimeClassName": "",
            }),
            json!({"hostNetwork": false, "nodeName": "", "restartPolicy": "", "serviceAccountName": ""}),
        ),
        (
            "core.v1.PersistentVolumeClaimSpec",
            json!({"storageClassName": "", "volumeMode": ""}),
            json!({"volumeName": ""}),
        ),
        (
            "core.v1.PersistentVolumeSpec",
            json!({}),
            json!({"storageClassName": "", "persistentVolumeReclaimPolicy": ""}),
        ),
        ("core.v1.SecurityContext", json!({"runAsUser": 0, "runAsNonRoot": false, "privileged": false}), json!({})),
        ("core.v1.Container", json!({"name": ""}), json!({"image": "", "tty": false, "workingDir": ""})),
        ("core.v1.EnvVar", json!({"name": ""}), json!({"value": ""})),
        ("core.v1.ContainerPort", json!({"containerPort": 0}), json!({"hostPort": 0, "protocol": ""})),
        (
            "core.v1.Probe",
            json!({"terminationGracePeriodSeconds": 0}),
            json!({"failureThreshold": 0, "periodSeconds": 0}),
        ),
        ("core.v1.SecretKeySelector", json!({"key": "", "optional": false}), json!({"name": ""})),
        ("core.v1.Secret", json!({"immutable": false}), json!({"type": ""})),
        ("core.v1.ServiceAccount", json!({"automountServiceAccountToken": false}), json!({})),
        (
            "core.v1.ServiceSpec",
            json!({"allocateLoadBalancerNodePorts": false, "internalTrafficPolicy": ""}),
            json!({"clusterIP": "", "healthCheckNodePort": 0, "publishNotReadyAddresses": false, "type": ""}),
        ),
        ("coordination.v1.LeaseSpec", json!({"holderIdentity": "", "leaseTransitions": 0}), json!({})),
        (
            "storage.v1.StorageClass",
            json!({"provisioner": "", "allowVolumeExpansion": false, "reclaimPolicy": ""}),
            json!({}),
        ),
        ("storage.v1.CSIDriverSpec", json!({"attachRequired": false, "podInfoOnMount": false}), json!({})),
        ("authentication.v1.TokenRequestSpec", json!({"expirationSeconds": 0}), json!({})),
        ("rbac.v1.Subject", json!({"kind": "", "name": ""}), json!({"apiGroup": "", "namespace": ""})),
        ("policy.v1.PodDisruptionBudgetStatus", json!({"disruptionsAllowed": 0}), json!({"observedGeneration": 0})),
    ];
    for (name, kept, dropped) in cases {
        let ty = schema::builtin().named(&format!("io.k8s.api.{name}")).expect(name);
        let mut sent = kept.clone();
        sent.as_object_mut().unwrap().extend(dropped.as_object().unwrap().clone());
        let mut found = Map::new();
        message::read(ty, &encode::message(ty, &sent), DEPTH_MAX, &mut found).unwrap();
        assert_eq!(Value::Object(found), kept, "{name}");
    }
}

#[test]
fn scalars_are_decoded_from_their_wire_forms() {
    let spec = |number, bytes: &[u8]| {
        let (mut inner, mut raw) = (Vec::new(), Vec::new());
        bytes_field(&mut inner, number, bytes);
        bytes_field(&mut raw, 2, &inner);
        read(&wrap("coordination.k8s.io/v1", "Lease", &raw)).map(|lease| lease["spec"].clone())
    };
    let time = |seconds: i64, nanos: i64| {
        let mut out = Vec::new();
        varint_field(&mut out, 1, seconds as u64);
        varint_field(&mut out, 2, nanos as u64);
        out
    };
    assert_eq!(spec(3, &time(0, 1_234_567)).unwrap(), json!({"acquireTime": "1970-01-01T00:00:00.001234Z"}));
    assert_eq!(spec(3, &time(-1, 500_000_000)).unwrap(), json!({"acquireTime": "1969-12-31T23:59:59.500000Z"}));
    assert_eq!(spec(3, &[]).unwrap(), json!({}));
    for (seconds, nanos) in [(i64::MAX, 0), (i64::MIN, 0), (0, i64::from(i32::MAX))] {
        assert_eq!(spec(3, &time(seconds, nanos)).unwrap_err().code, 400, "{seconds} {nanos}");
    }
}

#[test]
fn packed_and_unpacked_numbers_and_split_messages_are_decoded() {
    // Field numbers: Pod.spec 2, PodSpec.securityContext 14, supplementalGroups 4.
    let pod = |contexts: &[Vec<u8>]| {
        let (mut spec, mut raw) = (Vec::new(), Vec::new());
        contexts.iter().for_each(|context| bytes_field(&mut spec, 14, context));
        bytes_field(&mut raw, 2, &spec);
        read(&wrap("v1", "Pod", &raw)).unwrap()["spec"]["securityContext"].clone()
    };
    let (mut packed, mut single, mut user) = (Vec::new(), Vec::new(), Vec::new());
    bytes_field(&mut packed, 4, &[1, 0x80, 0x01]);
    varint_field(&mut single, 4, u64::MAX);
    varint_field(&mut user, 2, 7);
    assert_eq!(pod(&[packed.clone()]), json!({"supplementalGroups": [1, 128]}));
    assert_eq!(pod(&[packed, user, single]), json!({"runAsUser": 7, "supplementalGroups": [1, 128, -1]}));
}

#[test]
fn the_last_of_two_scalars_counts_even_if_it_is_zero() {
    let mut meta = Vec::new();
    bytes_field(&mut meta, 1, b"first");
    bytes_field(&mut meta, 1, b"");
    bytes_field(&mut meta, 999, b"unknown");
    varint_field(&mut meta, 998, 1);
    let mut raw = Vec::new();
    bytes_field(&mut raw, 1, &meta);
    assert_eq!(read(&wrap("v1", "ConfigMap", &raw)).unwrap()["metadata"], json!({}));
}

#[test]
fn invalid_bodies_are_refused_with_one_sentence() {
    let code = |bytes: &[u8]| read(bytes).map_err(|status| (status.code, status.message));
    let refused = |why: &str| Err((400, format!("the body of the request is not an object in protobuf: {why}")));
    assert_eq!(code(b"{}"), refused("it does not begin with the bytes that mark one"));
    assert_eq!(code(MAGIC), refused("Object 'Kind' is missing"));
    assert_eq!(code(&[MAGIC, &[0x0a, 200]].concat()), refused("unexpected EOF"));
    let mut encoded = wrap("v1", "Pod", b"");
    bytes_field(&mut encoded, 3, b"gzip");
    assert_eq!(code(&encoded), refused("its content is encoded"));
    let pod = |why: &str| Err((400, format!("Pod in version \"v1\" cannot be handled as a Pod: {why}")));
    assert_eq!(code(&wrap("v1", "Pod", &[0x0a, 9])), pod("unexpected EOF"));
    assert_eq!(code(&wrap("v1", "Pod", &[0x08, 1])), pod("proto: wrong wireType = 0 for field metadata"));
    assert_eq!(code(&wrap("v1", "Pod", &[0x0a, 3, 0x0a, 1, 0xff])), pod("field name is not valid UTF-8"));
    let revision = code(&wrap("apps/v1", "ControllerRevision", &[0x12, 3, 0x0a, 1, b'{'])).unwrap_err();
    assert!(revision.1.contains("field data: "), "{revision:?}");
    for (version, kind) in [("v1", "Nonsense"), ("apps/v1", "Pod"), ("example.org/v1", "Widget")] {
        assert_eq!(code(&wrap(version, kind, b"")).unwrap_err().0, 415);
    }
}

#[test]
fn nesting_is_bounded() {
    // JSONSchemaProps.not is field 28: JSONSchemaProps is the only recursive type.
    let crd = |levels: usize| {
        let mut schema = Vec::new();
        for _ in 0..levels {
            let inner = std::mem::take(&mut schema);
            bytes_field(&mut schema, 28, &inner);
        }
        // Field numbers: CustomResourceDefinition.spec 2, versions 7, schema 4, openAPIV3Schema 1.
        let wrapped = [1, 4, 7, 2].iter().fold(schema, |inner, number| {
            let mut outer = Vec::new();
            bytes_field(&mut outer, *number, &inner);
            outer
        });
        read(&wrap("apiextensions.k8s.io/v1", "CustomResourceDefinition", &wrapped))
    };
    let found = crd(3).unwrap();
    assert_eq!(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"], json!({"not": {"not": {"not": {}}}}));
    assert!(crd(90).is_ok());
    let refused = crd(20_000).unwrap_err();
    assert_eq!((refused.code, refused.message.ends_with("exceeded max depth")), (400, true), "{refused:?}");
}

/// Generates objects as Go's JSON writes them: no empty lists, no nulls, and zeros only in pointer fields.
struct Maker(TestRng);

impl Maker {
    fn new(seed: [u8; 32]) -> Maker {
        Maker(TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }
    fn text(&mut self) -> String {
        ["a", "web-0", "Grüße", "k8s\0", "\"{\\", "x".repeat(200).as_str()][self.below(6) as usize].to_owned()
    }
    fn object(&mut self, ty: TypeId, depth: u64) -> Value {
        let mut members = Map::new();
        if let Some(shape) = numbers::get().shapes.get(&ty) {
            self.fill(shape, depth, &mut members);
        }
        Value::Object(members)
    }
    fn fill(&mut self, shape: &Shape, depth: u64, members: &mut Map) {
        for entry in shape.values() {
            match entry {
                Entry::Inline(inner) => self.fill(inner, depth, members),
                Entry::Field(_) if self.below(4 + 2 * depth) > 2 => {}
                Entry::Field(field) => {
                    let value = self.value(field.ty, field.keeps_zero, depth + 1);
                    members.insert(field.name.clone(), value);
                }
            }
        }
    }
    fn value(&mut self, ty: TypeId, may_be_zero: bool, depth: u64) -> Value {
        match schema::builtin().get(ty) {
            Type::Scalar(of) => self.scalar(*of, may_be_zero),
            Type::Struct(_) => self.object(ty, depth),
            Type::List { item, .. } => (0..=self.below(2)).map(|_| self.value(*item, true, depth)).collect(),
            Type::Map { value, .. } => {
                let entries = (0..=self.below(2)).map(|_| (self.text(), self.value(*value, true, depth)));
                Value::Object(entries.collect())
            }
            Type::Any => self.any(ty, depth),
        }
    }
    fn scalar(&mut self, of: Scalar, may_be_zero: bool) -> Value {
        let zero = may_be_zero && self.below(3) == 0;
        match of {
            Scalar::String if zero => json!(""),
            Scalar::String => json!(self.text()),
            Scalar::Int32 | Scalar::Int64 if zero => json!(0),
            Scalar::Int32 => json!([1, -1, 8080, i32::MIN, i32::MAX][self.below(5) as usize]),
            Scalar::Int64 => json!([1, -1, 1 << 40, i64::MIN, i64::MAX][self.below(5) as usize]),
            Scalar::Float => json!([0.5, -2.25e9][self.below(2) as usize]),
            Scalar::Bool => json!(!zero),
            Scalar::Quantity => json!(["0", "10Gi", "500m", "-1"][self.below(4) as usize]),
            Scalar::IntOrString => [json!(0), json!(-7), json!(""), json!("50%")][self.below(4) as usize].clone(),
            Scalar::Time => json!(["1970-01-01T00:00:00Z", "2026-11-15T22:16:00Z"][self.below(2) as usize]),
            Scalar::MicroTime => {
                json!(["1969-12-31T23:59:59.999999Z", "2026-11-15T22:16:00.000001Z"][self.below(2) as usize])
            }
            Scalar::Bytes => json!(["AA==", "czNjcmV0"][self.below(2) as usize]),
        }
    }
    fn any(&mut self, ty: TypeId, depth: u64) -> Value {
        let table = numbers::get();
        let props = table.schema_props.unwrap();
        match (table.forms[&ty], self.below(2)) {
            (Form::Empty, _) => json!({}),
            (Form::Raw, 0) => json!({"f:spec": {"f:replicas": {}}, "n": [1, null, 2.5, "x"]}),
            (Form::Raw, _) => json!("text"),
            (Form::SchemaOrBool, 0) => json!(self.below(2) == 0),
            (Form::SchemaOrTexts, 0) => json!([self.text(), self.text()]),
            (Form::SchemaOrArray, 0) => json!([self.object(props, depth), self.object(props, depth)]),
            _ => self.object(props, depth),
        }
    }
    /// Returns a body of a random kind.
    fn body(&mut self) -> (TypeId, Value) {
        let bodies = bodies();
        let (api_version, kind) = &bodies[self.below(bodies.len() as u64) as usize];
        let ty = lookup(api_version, kind).unwrap();
        let mut object = self.object(ty, 0);
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        (ty, object)
    }
}

proptest! {
    #[test]
    fn a_decoded_body_equals_the_encoded_object(seed: [u8; 32]) {
        let (ty, object) = Maker::new(seed).body();
        prop_assert_eq!(read(&encode::body(ty, &object)).unwrap(), object);
    }

    #[test]
    fn arbitrary_bytes_never_panic(raw in prop::collection::vec(any::<u8>(), 0..200), seed: [u8; 32]) {
        let _ = read(&raw);
        let (_, object) = Maker::new(seed).body();
        let _ = read(&wrap(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap(), &raw));
    }

    #[test]
    fn damaged_bodies_never_panic_and_give_client_errors(
        seed: [u8; 32], damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut: prop::sample::Index,
    ) {
        let (ty, object) = Maker::new(seed).body();
        let mut bytes = encode::body(ty, &object);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for body in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            if let Err(status) = read(body) {
                prop_assert!(matches!(status.code, 400 | 415), "{:?}", status);
                prop_assert!(!status.message.contains('\n'));
            }
        }
    }
}
