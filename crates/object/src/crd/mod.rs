//! CustomResourceDefinitions: from a definition to a [`crate::Kind`] with schema, pruning, defaults, validation and
//! columns.
//!
//! `definition` validates a definition (with `check`, `schema_check`, `structural` and `cel::check`). [`establish`]
//! sets its status, and [`kinds_of`] returns the kinds it serves. The schema of a kind is parsed once into a
//! `node::Node`. Its objects are pruned and defaulted (`defaulting`), validated (`validation`, `cel`) and printed
//! (`columns`) by walking that tree.

use crate::kind::Kind;
use crate::kinds::row;

mod arena;
mod cel;
mod check;
mod columns;
mod custom;
mod defaulting;
mod definition;
mod formats;
mod jsonpath;
mod names;
mod node;
mod openapi;
mod paths;
mod re2;
mod schema_check;
mod structural;
#[cfg(test)]
mod tests;
mod validation;

pub use custom::{edition, kinds_of, stored_kind_of};
pub use jsonpath::JsonPath;
pub use names::{CLEANUP_FINALIZER, Cleanup, cleanup, establish, finish, mark_deleted, owns_objects, refuses_create};
pub use openapi::{definition_name, openapi};

pub fn rows() -> Vec<Kind> {
    vec![
        row(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        )
        .cluster_scoped()
        .short(&["crd", "crds"])
        .category("api-extensions")
        .with_status()
        .rules(definition::Definition),
    ]
}
