//! A watch, line by line.

use crate::client::Target;
use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use object::Value;
use serde::Deserialize;

/// One change of an object.
pub struct Change {
    pub gone: bool,
    pub object: Seen,
}

/// What is looked at of an object. The rest is skipped where it is read: the load shall cost as little as it can.
#[derive(Default, Deserialize)]
pub struct Seen {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Value,
    #[serde(default)]
    pub message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Of claims and volumes.
    pub storage_class_name: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Seen,
}

/// A watch of a collection from its state now.
pub struct Follow {
    body: Incoming,
    unread: BytesMut,
}

impl Follow {
    pub async fn start(target: &Target, collection: &str) -> Result<Follow> {
        Follow::start_at(target, collection, &version(target, collection).await?).await
    }

    /// The same from this version on.
    pub async fn start_at(target: &Target, collection: &str, version: &str) -> Result<Follow> {
        let mut connection = target.connect().await?;
        let body = connection.watch(&format!("{collection}?watch=1&resourceVersion={version}")).await?;
        Ok(Follow { body, unread: BytesMut::new() })
    }

    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(end);
                self.unread.advance(1);
                let event: Event = serde_json::from_slice(&line).context("a watch event cannot be read")?;
                match event.r#type.as_str() {
                    "ERROR" => bail!("the watch broke: {}", event.object.message),
                    "BOOKMARK" => continue,
                    kind => return Ok(Change { gone: kind == "DELETED", object: event.object }),
                }
            }
            let frame = self.body.frame().await.context("the server ended a watch")??;
            if let Some(data) = frame.data_ref() {
                self.unread.extend_from_slice(data);
            }
        }
    }
}

/// The collection's current version.
pub async fn version(target: &Target, collection: &str) -> Result<String> {
    let mut connection = target.connect().await?;
    let (_, bytes) = connection.answer(Method::GET, &format!("{collection}?limit=1"), "", Bytes::new()).await?;
    let list: Value = serde_json::from_slice(&bytes)?;
    Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned())
}
