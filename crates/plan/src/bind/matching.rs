//! Matches volumes to claims.

use super::{PROVISIONED_BY, WITHDRAWN, annotation, is_reserved_for};
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::class_of;
use object::quantity::Quantity;
use object::selector::LabelSelector;
use object::{Value, json};

const MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// The index position of an available volume. Volumes on one shelf differ only in size, and sizes are formatted so that
/// they sort as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub shelf: String,
    pub size: String,
}

/// The index position of a volume that claims may take: available, without `claimRef`, and not being deleted.
pub fn place(volume: &Value) -> Option<Place> {
    if volume.has(&["spec", "claimRef"]) || volume.text(&["status", "phase"]) != "Available" || terminating(volume) {
        return None;
    }
    Some(Place { shelf: shelf(&section(volume), modes(volume)), size: size(capacity(volume)?) })
}

/// What a claim requests.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Class, volume mode and attributes class.
    pub(super) section: String,
    modes: u8,
    pub(super) request: Quantity,
    /// `None`: any labels.
    selector: Option<LabelSelector>,
}

impl Wanted {
    pub fn of(claim: &Value) -> Wanted {
        let selector = claim.at(&["spec", "selector"]);
        // An invalid selector selects nothing.
        let selector =
            selector.map(|text| LabelSelector::from_object(text).unwrap_or_else(|_| LabelSelector::nothing()));
        Wanted { section: section(claim), modes: modes(claim), request: request(claim), selector }
    }

    /// The places to search in order: volumes with few additional access modes first.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let mut sets: Vec<u8> = (0..1 << MODES.len()).filter(|set| set & self.modes == self.modes).collect();
        sets.sort_by_key(|set| set.count_ones());
        let size = size(self.request);
        sets.into_iter().map(move |set| Place { shelf: shelf(&self.section, set), size: size.clone() })
    }

    /// Whether a volume on one of these shelves fits.
    pub(super) fn takes(&self, volume: &Value) -> bool {
        capacity(volume).is_some_and(|capacity| capacity >= self.request)
            && self.selector.as_ref().is_none_or(|selector| selector.matches(volume.members(&["metadata", "labels"])))
    }

    /// Whether any volume fits.
    pub(super) fn suits(&self, volume: &Value) -> bool {
        place(volume).is_some() && section(volume) == self.section && self.has_modes(volume) && self.takes(volume)
    }

    fn has_modes(&self, volume: &Value) -> bool {
        modes(volume) & self.modes == self.modes
    }
}

/// The volume to bind, of those whose `claimRef` has this name. Class, labels and phase do not matter: a user chose it.
pub fn choose_reserved<T: AsRef<Value>>(volumes: Vec<T>, claim: &Value) -> Option<T> {
    let wanted = Wanted::of(claim);
    let suits = |volume: &Value| {
        is_reserved_for(volume, claim)
            && unbindable(volume, claim).is_none()
            && capacity(volume).is_some_and(|capacity| capacity >= wanted.request)
            && volume_mode(volume) == volume_mode(claim)
            && attributes_class(volume) == attributes_class(claim)
            && wanted.has_modes(volume)
    };
    let rank = |volume: &Value| {
        let is_exact = !volume.text(&["spec", "claimRef", "uid"]).is_empty();
        // A volume provisioned for this claim is empty; a volume that a user reserved may not be.
        (
            is_named_for(volume, uid(claim)),
            !is_exact,
            modes(volume).count_ones(),
            capacity(volume),
            name(volume).to_owned(),
        )
    };
    volumes.into_iter().filter(|volume| suits(volume.as_ref())).min_by_key(|volume| rank(volume.as_ref()))
}

/// Whether a provisioner created the volume for the claim with this uid, judging by its name.
pub(super) fn is_named_for(volume: &Value, claim_uid: &str) -> bool {
    let is_named_so = !claim_uid.is_empty() && name(volume).contains(claim_uid);
    is_named_so && volume.has(&["metadata", "annotations", PROVISIONED_BY])
}

/// Whether a provisioner can have created the volume for this claim. A volume older than the claim was created for
/// another one, and a user reserved it for this one since.
pub(super) fn can_be_made_for(volume: &Value, claim: &Value) -> bool {
    let born = |object: &Value| object.text(&["metadata", "creationTimestamp"]).parse::<jiff::Timestamp>().ok();
    let is_older = born(volume).zip(born(claim)).is_some_and(|(volume, claim)| volume < claim);
    volume.has(&["metadata", "annotations", PROVISIONED_BY]) && !is_older
}

/// Why a claim cannot have the volume that it names.
pub fn unfit(volume: &Value, claim: &Value) -> Option<String> {
    let wanted = Wanted::of(claim);
    let size = |quantity: Option<Quantity>| quantity.map_or(0, |quantity| quantity.ceil());
    let why = if let Some(why) = unbindable(volume, claim) {
        return Some(why);
    } else if size(capacity(volume)) < size(Some(wanted.request)) {
        "requested PV is too small"
    } else if class_of(volume).unwrap_or("") != class_of(claim).unwrap_or("") {
        "storageClassName does not match"
    } else if attributes_class(volume) != attributes_class(claim) {
        "volumeAttributesClassName does not match"
    } else if volume_mode(volume) != volume_mode(claim) {
        "incompatible volumeMode"
    } else if !wanted.has_modes(volume) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Why a volume cannot be bound to a claim even if both reference each other: it is being deleted. The claim's
/// annotation [`WITHDRAWN`] may say so before the cache of volumes does.
pub fn unbindable(volume: &Value, claim: &Value) -> Option<String> {
    let is_going = terminating(volume) || (!uid(volume).is_empty() && annotation(claim, WITHDRAWN) == uid(volume));
    is_going.then(|| format!("the volume is marked for deletion {}", json!(name(volume))))
}

pub fn volume_mode(object: &Value) -> &str {
    match object.text(&["spec", "volumeMode"]) {
        "" => "Filesystem",
        mode => mode,
    }
}

pub fn capacity(volume: &Value) -> Option<Quantity> {
    volume.at(&["spec", "capacity", "storage"]).and_then(Quantity::of)
}

fn request(claim: &Value) -> Quantity {
    let request = claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of);
    request.unwrap_or(Quantity::ZERO)
}

fn attributes_class(object: &Value) -> &str {
    object.text(&["spec", "volumeAttributesClassName"])
}

fn modes(object: &Value) -> u8 {
    let bit = |mode: &Value| MODES.iter().position(|known| mode == known).map_or(0, |at| 1 << at);
    object.items(&["spec", "accessModes"]).iter().map(bit).fold(0, |set, bit| set | bit)
}

pub fn section(object: &Value) -> String {
    format!("{}/{}/{}", class_of(object).unwrap_or(""), volume_mode(object), attributes_class(object))
}

fn shelf(section: &str, modes: u8) -> String {
    format!("{section}/{modes:x}")
}

fn size(quantity: Quantity) -> String {
    format!("{:020}", quantity.ceil().max(0))
}
