//! VolumeAttachment.

use super::{check, name};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::kinds::volumes::validate_volume_spec;
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};
use check::member;

pub(super) struct Attachments;

impl Rules for Attachments {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        object.default_to(&["status", "attached"], false);
    }
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({"attached": false}));
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (spec, path) = (member(object, "spec"), Path::new("spec"));
        check::csi_driver_name(spec.text(&["attacher"]), &path.child("attacher"), errors);
        validate_source(member(spec, "source"), &path.child("source"), errors);
        check::subdomain(spec.text(&["nodeName"]), &path.child("nodeName"), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (new, old) = (member(new, "spec"), member(old, "spec"));
        if !check::same("io.k8s.api.storage.v1.VolumeAttachmentSpec", new, old) {
            errors.invalid(&Path::new("spec"), new.clone(), "field is immutable");
        }
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("status");
        super::validate_parameters(
            new.members(&["status", "attachmentMetadata"]),
            &path.child("attachmentMetadata"),
            errors,
        );
        for field in ["attachError", "detachError"] {
            if new.text(&["status", field, "message"]).len() > ERROR_BYTES_MAX {
                errors.too_long(&path.child(field).child("message"), ERROR_BYTES_MAX);
            }
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Attacher", "string", "Who attaches the volume"),
            column("PV", "string", "The volume"),
            column("Node", "string", "The node it is attached to"),
            column("Attached", "boolean", "Whether it is attached"),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![
            json!(name(object)),
            json!(object.text(&["spec", "attacher"])),
            json!(object.text(&["spec", "source", "persistentVolumeName"])),
            json!(object.text(&["spec", "nodeName"])),
            json!(object.flag(&["status", "attached"])),
            json!(age(object, now)),
        ]
    }
}

const ERROR_BYTES_MAX: usize = 1024;

fn validate_source(source: &Value, path: &Path, errors: &mut Errors) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source.at(&["inlineVolumeSpec"]), source.at(&["persistentVolumeName"])) {
        (None, None) => errors.required(path, ONE),
        (Some(_), Some(_)) => errors.forbidden(path, ONE),
        (Some(inline), None) => validate_volume_spec(inline, &path.child("inlineVolumeSpec"), errors),
        (None, Some(volume)) => {
            check::required_subdomain(volume.as_str().unwrap_or(""), &path.child("persistentVolumeName"), errors);
        }
    }
}
