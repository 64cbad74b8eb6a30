//! What a server says of itself at /metrics: memory, processor time, disk.

use crate::client::Target;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;

/// A page of figures.
pub struct Usage {
    page: String,
}

impl Usage {
    /// Asks on a new connection: servers close those that are silent for long.
    pub async fn ask(target: &Target) -> Result<Usage> {
        let (_, page) = target.connect().await?.answer(Method::GET, "/metrics", "", Bytes::new()).await?;
        Ok(Usage { page: String::from_utf8_lossy(&page).into_owned() })
    }

    pub fn memory_mb(&self) -> Result<f64> {
        Ok(self.figure("process_resident_memory_bytes")? / 1e6)
    }

    pub fn disk_mb(&self) -> Result<f64> {
        Ok(self.figure("apiserver_storage_size_bytes")? / 1e6)
    }

    pub fn cpu_ms(&self) -> Result<f64> {
        Ok(self.figure("process_cpu_seconds_total")? * 1e3)
    }

    fn figure(&self, name: &str) -> Result<f64> {
        let line = self.page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("the server does not tell its {name} at /metrics"))?.trim().parse::<f64>()?)
    }
}
