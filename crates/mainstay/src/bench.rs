//! What `mainstay bench` takes from this binary: its executable, its reading of kubeconfigs and its signals.

use crate::cli::BadInput;
use crate::{connect, signals::Signals};
use anyhow::{Context, Result};
use bench::BenchArgs;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Program;

pub async fn run(args: Box<BenchArgs>) -> Result<()> {
    bench::run(args, Arc::new(Program)).await.map_err(|error| match error.downcast::<bench::BadInput>() {
        Ok(input) => BadInput(input.0).into(),
        Err(error) => error,
    })
}

impl bench::Program for Program {
    fn executable(&self) -> Result<PathBuf> {
        std::env::current_exe().context("cannot find our own binary")
    }

    fn read_kubeconfig<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<kube::Config>> {
        async { Ok(connect::read(path).await?) }.boxed()
    }

    fn stop_signals(&self) -> Result<BoxStream<'static, ()>> {
        let signals = Signals::listen()?;
        let next = async |mut signals: Signals| {
            signals.next().await;
            Some(((), signals))
        };
        Ok(stream::unfold(signals, next).boxed())
    }
}
