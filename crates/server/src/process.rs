//! Metrics of the process, with the names that all Prometheus clients use, and of its build.

use crate::version::{self, Build};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;

/// Reads the metrics of the process from /proc on demand, and omits those that cannot be read.
#[derive(Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let stat = Stat::read();
        let of_stat = |take: fn(&Stat) -> Option<f64>| stat.as_ref().and_then(take);
        if let Some(seconds) = of_stat(Stat::processor_seconds) {
            let help = "CPU time of this process in seconds";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        let gauges = [
            ("process_start_time_seconds", "Start of this process, in seconds since 1970", of_stat(Stat::started)),
            ("process_resident_memory_bytes", "Resident memory of this process", resident_bytes().map(as_float)),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of this process",
                of_stat(|stat| stat.number(VIRTUAL_BYTES)),
            ),
            ("process_threads", "Threads of this process", of_stat(|stat| stat.number(THREADS))),
            ("process_open_fds", "Open file descriptors of this process", open_files()),
            ("process_max_fds", "File descriptors that this process may open", open_files_max().map(as_float)),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        encode_build(&mut encoder)
    }
}

fn encode_build(encoder: &mut DescriptorEncoder) -> Result<(), Error> {
    let build = Build::get();
    let platform = version::platform();
    let labels = [
        ("build_date", build.date.as_str()),
        ("compiler", version::COMPILER),
        ("git_commit", build.commit.as_str()),
        ("git_tree_state", build.tree_state()),
        ("git_version", version::GIT_VERSION),
        ("go_version", version::GO_VERSION),
        ("major", version::MAJOR),
        ("minor", version::MINOR),
        ("platform", platform.as_str()),
    ];
    let help = "The version of this program; the value is 1";
    let mut metric = encoder.encode_descriptor("kubernetes_build_info", help, None, MetricType::Gauge)?;
    metric.encode_family(&labels)?.encode_gauge(&1_i64)
}

/// Linux reports the CPU times of processes in hundredths of a second, independent of the kernel's tick rate.
const TICKS_PER_S: f64 = 100.0;

/// The fields of `/proc/self/stat` after the name, which may contain spaces. The first one is the state.
struct Stat(Vec<String>);

const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const START_TICKS: usize = 19;
const VIRTUAL_BYTES: usize = 20;

impl Stat {
    fn read() -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        Some(Stat(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect()))
    }

    fn number(&self, field: usize) -> Option<f64> {
        self.0.get(field)?.parse().ok()
    }

    fn processor_seconds(&self) -> Option<f64> {
        Some((self.number(USER_TICKS)? + self.number(SYSTEM_TICKS)?) / TICKS_PER_S)
    }

    /// Start time in Unix seconds.
    fn started(&self) -> Option<f64> {
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let booted: f64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(booted + self.number(START_TICKS)? / TICKS_PER_S)
    }
}

/// Resident memory of this process in bytes, if the system reports it.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn open_files() -> Option<f64> {
    // Counting opens the directory itself, so subtract it.
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(as_float(count.saturating_sub(1) as u64))
}

/// Limit of open file descriptors of this process. `None` if there is no limit or it cannot be read.
pub fn open_files_max() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Metrics are floating-point numbers, exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "a metric is a floating-point number")]
fn as_float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 9 0 12345 1048576 300 0";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!(stat.processor_seconds(), Some(3.0));
        assert_eq!((stat.number(THREADS), stat.number(START_TICKS)), (Some(9.0), Some(12345.0)));
        assert_eq!(stat.number(VIRTUAL_BYTES), Some(1_048_576.0));
    }

    #[test]
    fn this_process_has_all_figures() {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(Process));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).parse::<f64>().unwrap()
        };
        let now_s = jiff::Timestamp::now().as_second() as f64;
        let age_s = now_s - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age_s), "started {age_s} s ago");
        assert!(value("process_open_fds") > 2.0 && value("process_open_fds") < value("process_max_fds"));
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_threads") >= 1.0 && value("process_cpu_seconds_total") >= 0.0);
        assert!(
            text.contains("kubernetes_build_info{build_date=\"1970-01-01T00:00:00Z\",compiler=\"rustc\","),
            "{text}"
        );
    }
}
