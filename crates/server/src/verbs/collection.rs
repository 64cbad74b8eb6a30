//! Deletecollection: lists objects and deletes each of them.

use super::delete::{DeleteOptions, delete_one};
use super::read::{Selection, read_page};
use super::{Answer, Call};
use crate::render;
use crate::request::ListOptions;
use bytes::Bytes;
use futures::future::try_join_all;
use object::Status;
use object::json;
use store::Record;

/// Number of concurrent deletes, which share a disk sync. More would only cause conflicts on a quota that all of them
/// change.
const TOGETHER: usize = 16;

pub async fn delete_collection(call: &Call<'_>) -> Result<Answer, Status> {
    let list_options = ListOptions::for_list(&call.query)?;
    let selection = Selection::new(&call.kind, &list_options, "")?;
    let options = DeleteOptions::read(call)?;
    let page = read_page(call, &list_options, &selection)?;
    let mut deleted: Vec<Bytes> = Vec::new();
    for together in page.records.chunks(TOGETHER) {
        let removed = try_join_all(together.iter().map(|record| delete_listed(call, record, &options))).await?;
        deleted.extend(removed.into_iter().flatten());
    }
    let metadata = json!({"resourceVersion": page.revision.to_string()});
    let form = call.form()?;
    let body = render::list(&call.kind, form, &deleted, metadata, call.now)?;
    Ok(Answer::new(200, body))
}

/// Deletes one object of the list. Returns `None` if another client already deleted it.
async fn delete_listed(call: &Call<'_>, record: &Record, options: &DeleteOptions) -> Result<Option<Bytes>, Status> {
    let object = crate::object_store::parse(record)?;
    let within = call.within(object::access::namespace(&object));
    match delete_one(&within, object::access::name(&object), options).await {
        Ok(removed) => Ok(Some(render::to_bytes(&removed.object))),
        Err(status) if status.code == 404 => Ok(None),
        Err(status) => Err(status),
    }
}
