//! Log lines, to stderr: warnings and errors unless `MAINSTAY_LOG` asks for more (`info`, `server=debug`).

use tracing_subscriber::EnvFilter;

pub fn start() {
    let filter = EnvFilter::try_from_env("MAINSTAY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true).init();
}
