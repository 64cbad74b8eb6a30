//! `mainstay controllers`: the controllers alone, against any Kubernetes API server, with the rights of whoever the kubeconfig names.

use crate::cli::{BadInput, ControllersArgs};
use crate::connect::{self, Greeting, Target};
use crate::health::{Health, Hindrance};
use crate::up;
use anyhow::{Context, Result};
use object::Gates;
use prometheus_client::registry::Registry;
use server::authz::{self, Rule};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub async fn run(args: Box<ControllersArgs>) -> Result<()> {
    crate::log::start();
    // Bad input is refused before anybody is asked anything.
    let setup = setup(&args)?;
    let target = Target::find(args.kubeconfig.as_deref()).await?;
    let listener = up::listen(args.listen).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    let shutdown = stop_on_signal();
    let mut registry = Registry::default();
    setup.metrics.register(&mut registry);
    let (hindrance, seen) = watch::channel(Some("the API server was not reached yet".to_owned()));
    let health = tokio::spawn(Health::new(registry, seen).serve(listener, shutdown.clone()));
    println!("Mainstay {} controllers", env!("CARGO_PKG_VERSION"));
    println!("  API      {}", target.url);
    println!("  metrics  http://{address}/metrics");
    let worked = work(&target, &setup, &hindrance, &shutdown).await;
    shutdown.cancel();
    health.await.context("the health endpoint broke down")?;
    worked
}

fn setup(args: &ControllersArgs) -> Result<runtime::Setup, BadInput> {
    runtime::Controllers::check(&args.controllers).map_err(BadInput)?;
    Ok(runtime::Setup {
        root_ca: args.root_ca_file.as_deref().map(certificate).transpose()?,
        gates: Gates::parse(&args.feature_gates).map_err(BadInput)?,
        ..runtime::Setup::new(&args.controllers)
    })
}

fn certificate(path: &Path) -> Result<Arc<str>, BadInput> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read the root CA certificate {}: {error}", path.display())))?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(BadInput(format!(
            "{} holds no certificate in PEM form: give the CA's with --root-ca-file",
            path.display()
        )));
    }
    Ok(text.into())
}

/// Cancelled when the process is told to end.
fn stop_on_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        match up::wait_for_signal().await {
            Ok(()) => eprintln!("Stopping."),
            Err(error) => eprintln!("mainstay: {error:#}"),
        }
        told.cancel();
    });
    stop
}

/// Runs the controllers once the server answers, until shutdown.
async fn work(
    target: &Target,
    setup: &runtime::Setup,
    hindrance: &watch::Sender<Hindrance>,
    shutdown: &CancellationToken,
) -> Result<()> {
    let greeting = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        greeting = target.greet() => greeting?,
    };
    introduce(&greeting);
    look_at_rights(target, &setup.list).await?;
    let controllers = runtime::Controllers::start(setup, |_| target.client.clone()).map_err(BadInput)?;
    hindrance.send_replace(None);
    println!("The controllers run. Ctrl-C stops them.");
    shutdown.cancelled().await;
    hindrance.send_replace(Some("the process is stopping".to_owned()));
    controllers.stop().await;
    Ok(())
}

fn introduce(greeting: &Greeting) {
    println!("  server   {}", if greeting.version.is_empty() { "does not say its version" } else { &greeting.version });
    println!("  user     {}", greeting.user);
    if let Some(doubt) = greeting.doubt() {
        eprintln!("mainstay: {doubt}.");
    }
}

/// Says which controllers lack rights. They are started all the same: each takes up its work as soon as it is given its rights.
async fn look_at_rights(target: &Target, list: &str) -> Result<()> {
    let held = match connect::own_rights(&target.client, "kube-system").await {
        Ok(Some(held)) => held,
        Ok(None) => return Ok(()),
        Err(error) => {
            tracing::warn!(%error, "the server does not say what we may do");
            return Ok(());
        }
    };
    for (controller, account) in runtime::Controllers::accounts(list).map_err(BadInput)? {
        let missing = authz::missing(held.iter(), &authz::bootstrap::controller_rules(account));
        if !missing.is_empty() {
            eprintln!(
                "mainstay: {controller} may not {}: give it the rights in deploy/controllers.yaml, or leave it out with \
                 --controllers '*,-{controller}'.",
                in_words(&missing)
            );
        }
    }
    Ok(())
}

/// The first few of these rules; each has one verb and one resource.
fn in_words(rules: &[Rule]) -> String {
    const SAID_MAX: usize = 3;
    let said = rules.iter().take(SAID_MAX).map(|rule| match rule.groups.concat().as_str() {
        "" | "*" => format!("{} {}", rule.verbs.concat(), rule.resources.concat()),
        group => format!("{} {}.{group}", rule.verbs.concat(), rule.resources.concat()),
    });
    let mut text = said.collect::<Vec<_>>().join(", ");
    if rules.len() > SAID_MAX {
        text.push_str(&format!(" and {} more", rules.len() - SAID_MAX));
    }
    text
}
