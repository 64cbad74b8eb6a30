//! The binary: command line, wiring, backups and `bench`. It starts what the other crates implement.
//!
//! This crate must never know the simulation (`sim`).
//!
//! Begin with `cli` for the commands, and with `up` for the server and its controllers.

mod addresses;
mod announce;
mod backend;
mod bench;
mod cli;
mod connect;
mod controllers;
mod copies;
mod csi;
mod health;
mod kubeconfig;
mod log;
mod nodes;
mod open_files;
mod paths;
mod running;
mod signals;
mod storage;
mod trouble;
mod up;
mod volume_data;

use std::process::ExitCode;

/// Objects are trees of small allocations: with the system's allocator they take a quarter of the CPU time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    server::version::Build::new(env!("MAINSTAY_COMMIT"), env!("MAINSTAY_BUILD_SECONDS")).set();
    let cli::Cli { log, command } = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    log::start(&log);
    open_files::raise_limit();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("mainstay: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match command {
            cli::Command::Up(args) => up::run(args).await,
            cli::Command::Server(args) => up::run_server(*args).await,
            cli::Command::Controllers(args) => controllers::run(args).await,
            cli::Command::Nodes(args) => nodes::run(args).await,
            cli::Command::Csi(args) => crate::csi::run(args).await,
            cli::Command::Store { command } => copies::run(*command).await,
            cli::Command::Kubeconfig(args) => kubeconfig::run(*args).await,
            cli::Command::Example => cli::print_example(),
            cli::Command::Bench(args) => bench::run(args).await,
        }
    });
    log::flush(true);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstay: {}", sentence(&error));
            ExitCode::from(if error.is::<cli::BadInput>() { 2 } else { 1 })
        }
    }
}

/// An error and its causes, without causes that an outer error already contains.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}
