//! Metrics of claims and PVs: phase, size, class and backend.

use super::Table;
use kit::watcher::Slim;
use object::quantity::Quantity;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde::Deserialize;
use std::fmt::Error;

/// In the order of kube-state-metrics.
const CLAIM_PHASES: [&str; 3] = ["Lost", "Bound", "Pending"];
const VOLUME_PHASES: [&str; 5] = ["Pending", "Available", "Bound", "Released", "Failed"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimSpec {
    storage_class_name: Option<Box<str>>,
    volume_name: Box<str>,
    volume_mode: Option<Box<str>>,
    resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Amounts,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Amounts {
    storage: String,
}

impl Amounts {
    fn bytes(&self) -> Option<i64> {
        self.storage.parse::<Quantity>().ok().map(|size| size.ceil())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeSpec {
    pub(super) claim_ref: Option<ClaimRef>,
    storage_class_name: Box<str>,
    capacity: Amounts,
    csi: Option<Csi>,
    host_path: Option<HostPath>,
    local: Option<HostPath>,
    nfs: Option<Nfs>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimRef {
    pub(super) namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Csi {
    driver: Box<str>,
    volume_handle: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HostPath {
    path: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Nfs {
    server: Box<str>,
    path: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PhaseStatus {
    phase: String,
}

/// The index of an object's phase, if it is a known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase(Option<u8>);

impl Phase {
    fn of(status: &PhaseStatus, phases: &[&str]) -> Phase {
        let at = phases.iter().position(|phase| *phase == status.phase);
        Phase(at.and_then(|at| u8::try_from(at).ok()))
    }
}

/// The fields of a claim that metrics show.
#[derive(Debug)]
pub(super) struct Claim {
    phase: Phase,
    class: Option<Box<str>>,
    volume: Box<str>,
    mode: Option<Box<str>>,
    requested_bytes: Option<i64>,
}

impl Claim {
    pub(super) fn of(claim: Slim<ClaimSpec, PhaseStatus>) -> Claim {
        Claim {
            phase: Phase::of(&claim.status, &CLAIM_PHASES),
            requested_bytes: claim.spec.resources.requests.bytes(),
            class: claim.spec.storage_class_name,
            volume: claim.spec.volume_name,
            mode: claim.spec.volume_mode,
        }
    }
}

#[cfg(test)]
impl Claim {
    pub(super) fn is_lost(&self) -> bool {
        self.phase == Phase(Some(0))
    }
}

/// The fields of a PV that metrics show.
#[derive(Debug)]
pub(super) struct Volume {
    phase: Phase,
    capacity_bytes: Option<i64>,
    class: Box<str>,
    /// Labels of the info metric that depend on the kind of volume.
    backend: Vec<(&'static str, Box<str>)>,
}

impl Volume {
    pub(super) fn of(volume: Slim<VolumeSpec, PhaseStatus>) -> Volume {
        let spec = volume.spec;
        let mut backend = Vec::new();
        if let Some(csi) = spec.csi {
            backend.extend([("csi_driver", csi.driver), ("csi_volume_handle", csi.volume_handle)]);
        }
        backend.extend(spec.host_path.map(|host| ("host_path", host.path)));
        backend.extend(spec.local.map(|local| ("local_path", local.path)));
        if let Some(nfs) = spec.nfs {
            backend.extend([("nfs_server", nfs.server), ("nfs_path", nfs.path)]);
        }
        Volume {
            phase: Phase::of(&volume.status, &VOLUME_PHASES),
            capacity_bytes: spec.capacity.bytes(),
            class: spec.storage_class_name,
            backend,
        }
    }
}

pub(super) fn encode_claims(claims: &Table<Claim>, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
    let help = "The phase that the claim is in (1) and those that it is not in (0)";
    let name = "kube_persistentvolumeclaim_status_phase";
    let phases = claims
        .each()
        .map(|(namespace, name, claim)| ([("namespace", namespace), ("persistentvolumeclaim", name)], claim.phase));
    encode_phases(phases, (name, help), &CLAIM_PHASES, encoder)?;

    let help = "The class, volume and mode of the claim; the value is 1";
    let name = "kube_persistentvolumeclaim_info";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (namespace, name, claim) in claims.each() {
        let labels = [
            ("namespace", namespace),
            ("persistentvolumeclaim", name),
            ("storageclass", claim.class.as_deref().unwrap_or(NONE)),
            ("volumename", &claim.volume),
            ("volumemode", claim.mode.as_deref().unwrap_or(NONE)),
        ];
        metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
    }

    let help = "The bytes that the claim requests";
    let name = "kube_persistentvolumeclaim_resource_requests_storage_bytes";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (namespace, name, claim) in claims.each() {
        if let Some(bytes) = claim.requested_bytes {
            let labels = [("namespace", namespace), ("persistentvolumeclaim", name)];
            metric.encode_family(&labels)?.encode_gauge(&bytes)?;
        }
    }
    Ok(())
}

/// The label value of kube-state-metrics for a missing field.
const NONE: &str = "<none>";

pub(super) fn encode_volumes(volumes: &Table<Option<Volume>>, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
    let each = || volumes.each().filter_map(|(_, name, volume)| Some((name, volume.as_ref()?)));
    let help = "The phase that the volume is in (1) and those that it is not in (0)";
    let name = "kube_persistentvolume_status_phase";
    let phases = each().map(|(name, volume)| ([("persistentvolume", name)], volume.phase));
    encode_phases(phases, (name, help), &VOLUME_PHASES, encoder)?;

    let help = "The class and the backend of the volume; the value is 1";
    let mut metric = encoder.encode_descriptor("kube_persistentvolume_info", help, None, MetricType::Gauge)?;
    for (name, volume) in each() {
        let mut labels = vec![("persistentvolume", name), ("storageclass", &*volume.class)];
        labels.extend(volume.backend.iter().map(|(label, value)| (*label, &**value)));
        metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
    }

    let help = "The bytes of the volume";
    let mut metric =
        encoder.encode_descriptor("kube_persistentvolume_capacity_bytes", help, None, MetricType::Gauge)?;
    for (name, volume) in each() {
        if let Some(bytes) = volume.capacity_bytes {
            metric.encode_family(&[("persistentvolume", name)])?.encode_gauge(&bytes)?;
        }
    }
    Ok(())
}

/// Encodes one sample per phase and object; the labels identify the object.
fn encode_phases<'a, const LABELS: usize>(
    objects: impl Iterator<Item = ([(&'static str, &'a str); LABELS], Phase)>,
    (name, help): (&str, &str),
    phases: &[&'static str],
    encoder: &mut DescriptorEncoder,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, Phase(current)) in objects {
        let Some(current) = current else { continue };
        for (at, phase) in phases.iter().enumerate() {
            let mut labels = labels.to_vec();
            labels.push(("phase", *phase));
            let value = i64::from(at == usize::from(current));
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}
