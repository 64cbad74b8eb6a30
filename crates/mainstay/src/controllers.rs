//! `mainstay controllers`: the controllers alone, against any Kubernetes API server, with the rights of whoever the kubeconfig names.

use crate::cli::{BadInput, ControllersArgs};
use crate::connect::{self, Greeting, Target};
use crate::health::{Health, Hindrance};
use crate::signals::Signals;
use crate::up;
use anyhow::{Context, Result};
use kit::api::Api;
use kit::lease::{Election, Loss, Standing, Term, Timing};
use kit::{NamespaceScope, fenced_client};
use object::Gates;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use runtime::Controllers;
use server::LEASE_HEADER;
use server::authz::{self, Rule};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub async fn run(args: Box<ControllersArgs>) -> Result<()> {
    // Bad input is refused before anybody is asked anything.
    let setup = setup(&args)?;
    timing(&args)?;
    let target = Target::find(args.kubeconfig.as_deref()).await?;
    let listener = up::listen(args.listen).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    let shutdown = Signals::listen()?.stop();
    let figures = Figures::default();
    let mut registry = Registry::default();
    setup.metrics.register(&mut registry);
    figures.register(&mut registry);
    let (hindrance, seen) = watch::channel(Some("the API server was not reached yet".to_owned()));
    let health = tokio::spawn(Health::new(registry, seen).serve(listener, shutdown.clone()));
    println!("Mainstay {} controllers", env!("CARGO_PKG_VERSION"));
    println!("  API      {}", target.url);
    println!("  metrics  http://{address}/metrics");
    let worked = Program { args, setup, target, hindrance, figures, shutdown: shutdown.clone() }.work().await;
    shutdown.cancel();
    health.await.context("the health endpoint broke down")?;
    worked
}

fn setup(args: &ControllersArgs) -> Result<runtime::Setup, BadInput> {
    let scope = args.namespaces.clone().unwrap_or_default();
    Controllers::check(&args.controllers, &scope).map_err(BadInput)?;
    Ok(runtime::Setup {
        scope,
        root_ca: args.root_ca_file.as_deref().map(certificate).transpose()?,
        gates: Gates::parse(&args.feature_gates).map_err(BadInput)?,
        provisioning: args.provisioning.into(),
        terminated_pod_threshold: args.pod_gc.terminated_pod_gc_threshold,
        drivers: args.drivers.parse()?,
        ..runtime::Setup::new(&args.controllers)
    })
}

fn timing(args: &ControllersArgs) -> Result<Timing, BadInput> {
    let timing = Timing {
        lasts: args.leader_elect_lease_duration,
        renew_within: args.leader_elect_renew_deadline,
        retry: args.leader_elect_retry_period,
    };
    let slow = timing.retry.is_zero() || timing.retry.mul_f64(1.2) >= timing.renew_within;
    if slow || timing.renew_within >= timing.lasts {
        return Err(BadInput(
            "the times of the lease do not fit: the retry period must be well below the renew deadline, and that below the \
             lease duration"
                .to_owned(),
        ));
    }
    Ok(timing)
}

fn certificate(path: &Path) -> Result<Arc<str>, BadInput> {
    let text = store::regular_file::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read the root CA certificate {}: {error}", path.display())))?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(BadInput(format!(
            "{} holds no certificate in PEM form: give the CA's with --root-ca-file",
            path.display()
        )));
    }
    Ok(text.into())
}

/// All that the controllers need.
struct Program {
    args: Box<ControllersArgs>,
    setup: runtime::Setup,
    target: Target,
    hindrance: watch::Sender<Hindrance>,
    figures: Figures,
    shutdown: CancellationToken,
}

impl Program {
    /// Runs the controllers once the server answers, until shutdown.
    async fn work(&self) -> Result<()> {
        let greeting = tokio::select! {
            () = self.shutdown.cancelled() => return Ok(()),
            greeting = self.target.greet() => greeting?,
        };
        introduce(&greeting, &self.setup.scope);
        match self.setup.scope.is_everywhere() {
            true => look_at_rights(&self.target, &self.setup, "kube-system").await?,
            false => {
                for namespace in self.setup.scope.names() {
                    look_at_rights(&self.target, &self.setup, namespace).await?;
                }
            }
        }
        if self.args.leader_elect {
            return self.lead().await;
        }
        let controllers = self.start(&self.target.client);
        self.hindrance.send_replace(None);
        println!("The controllers run. Ctrl-C stops them.");
        self.shutdown.cancelled().await;
        controllers.stop().await;
        Ok(())
    }

    fn start(&self, client: &kube::Client) -> Controllers {
        let client = |account: &str| self.setup.metrics.kit.client_of(account, client.clone());
        Controllers::start(&self.setup, client).expect("the list was checked at the start")
    }

    /// Runs the controllers whenever the lease is ours.
    async fn lead(&self) -> Result<()> {
        let election = self.election();
        println!("  lease    {}, as {}", self.lease(), election.identity);
        let fenced = |term: &Term| fenced_client::client(self.target.client.clone(), LEASE_HEADER, &self.lease(), term);
        let start = |term: &Term| self.start(&fenced(term));
        let led = election.lead(self.shutdown.clone(), |standing| self.tell(standing), start).await;
        if let Err(overdue) = led {
            // Nothing is closed on the way: whatever still works here must not go on for another moment.
            eprintln!("mainstay: {overdue}; ending at once.");
            std::process::abort();
        }
        Ok(())
    }

    fn election(&self) -> Election {
        Election {
            api: Api::new(self.target.client.clone()),
            namespace: self.args.lease_namespace.clone(),
            name: self.args.lease_name.clone(),
            identity: identity(),
            timing: timing(&self.args).expect("it was checked at the start"),
            clock: self.setup.clock.clone(),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.args.lease_namespace, self.args.lease_name)
    }

    /// Tells probes and people how the election stands.
    fn tell(&self, standing: &Standing) {
        let lease = self.lease();
        self.figures.leads(&self.args.lease_name, matches!(standing, Standing::Leading(_)));
        self.hindrance.send_replace(match standing {
            Standing::Unable { why, .. } => Some(format!("the lease {lease} cannot be used: {why}")),
            _ => None,
        });
        match standing {
            Standing::Asking => {}
            Standing::StandingBy { holder } => println!("Standing by: {holder} holds the lease. Ctrl-C stops."),
            Standing::Leading(_) => println!("Leading: the controllers run. Ctrl-C stops them."),
            Standing::Lost(Loss::Late) => eprintln!(
                "mainstay: the lease {lease} could not be renewed in time; the controllers stop until it is ours again."
            ),
            Standing::Lost(Loss::Taken(by)) => {
                let by = if by.is_empty() { "nobody" } else { by };
                eprintln!("mainstay: the lease {lease} was taken away and is held by {by} now; the controllers stop.");
            }
            Standing::Unable { why, code: 403 | 404 } => eprintln!(
                "mainstay: the lease {lease} cannot be used: {why}; give the rights in deploy/controllers.yaml, choose \
                 --lease-namespace, or work alone with --leader-elect=false; trying again."
            ),
            Standing::Unable { why, .. } => {
                eprintln!("mainstay: the lease {lease} cannot be used: {why}; trying again.");
            }
        }
    }
}

/// A name for this process that no other has, and that tells people where it is.
pub fn identity() -> String {
    let host = hostname::get().map(|name| name.to_string_lossy().into_owned());
    format!("{}_{}", host.unwrap_or_else(|_| "unknown-host".to_owned()), uuid::Uuid::new_v4())
}

/// Figures about the process as one of several.
#[derive(Default)]
struct Figures {
    leads: Family<LeaseName, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeaseName {
    name: String,
}

impl Figures {
    fn register(&self, registry: &mut Registry) {
        let help = "Whether this process holds the lease (1) or stands by (0)";
        registry.register("leader_election_master_status", help, self.leads.clone());
    }

    fn leads(&self, lease: &str, leads: bool) {
        self.leads.get_or_create(&LeaseName { name: lease.to_owned() }).set(i64::from(leads));
    }
}

fn introduce(greeting: &Greeting, scope: &NamespaceScope) {
    println!("  server   {}", if greeting.version.is_empty() { "does not say its version" } else { &greeting.version });
    println!("  user     {}", greeting.user);
    if !scope.is_everywhere() {
        println!("  only in  {}", scope.names().collect::<Vec<_>>().join(", "));
    }
    if let Some(doubt) = greeting.doubt() {
        eprintln!("mainstay: {doubt}.");
    }
}

/// Says which controllers lack rights in a namespace. They are started all the same: each takes up its work as soon as it is given its
/// rights.
async fn look_at_rights(target: &Target, setup: &runtime::Setup, namespace: &str) -> Result<()> {
    let held = match connect::own_rights(&target.client, namespace).await {
        Ok(Some(held)) => held,
        Ok(None) => return Ok(()),
        Err(error) => {
            tracing::warn!(%error, "the server does not say what we may do");
            return Ok(());
        }
    };
    let place = if setup.scope.is_everywhere() { String::new() } else { format!(" in {namespace}") };
    for descriptor in Controllers::selected(&setup.list, &setup.scope).map_err(BadInput)? {
        let controller = descriptor.name;
        // Without a driver these do nothing.
        if setup.drivers.is_empty() && controller.starts_with("csi-") {
            continue;
        }
        let held: Vec<&Rule> = held.iter().collect();
        let missing: Vec<Rule> = authz::missing(&held, &Rule::of_role(&descriptor.role()));
        if !missing.is_empty() {
            eprintln!(
                "mainstay: {controller} may not {}{place}: give it the rights in deploy/controllers.yaml, or leave it out with \
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
