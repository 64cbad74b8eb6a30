//! Deletecollection: a list and a delete of each of its objects.

use super::delete::{DeleteOptions, delete_one};
use super::read::{Selection, read_page};
use super::{Answer, Call};
use crate::body::Body;
use crate::render;
use crate::request::ListOptions;
use bytes::Bytes;
use object::Status;
use serde_json::json;

pub async fn delete_collection(call: &Call<'_>) -> Result<Answer, Status> {
    let list_options = ListOptions::for_list(&call.query)?;
    let selection = Selection::new(&call.kind, &list_options, "")?;
    let options = DeleteOptions::read(call)?;
    let page = read_page(call, &list_options, &selection)?;
    let mut deleted: Vec<Bytes> = Vec::new();
    for record in &page.records {
        let object = crate::reader::parse(record)?;
        match delete_one(&call.within(object::access::namespace(&object)), object::access::name(&object), &options)
            .await
        {
            Ok(removed) => deleted.push(render::to_bytes(&removed.object)),
            // Somebody else removed it first: that is what was asked for.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    let metadata = json!({"resourceVersion": page.revision.to_string()});
    let form = call.form()?;
    let body = render::list(&call.kind, form, &deleted, metadata, call.now)?;
    Ok(Answer { code: 200, body: Body::Once(body), warnings: Vec::new() })
}
