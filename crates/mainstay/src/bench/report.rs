//! What was measured, for people and for programs.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// One measured piece of work.
pub struct Row {
    pub name: &'static str,
    pub unit: &'static str,
    pub value: f64,
    pub detail: String,
    latency_us: Option<Histogram<u64>>,
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn figure(&mut self, name: &'static str, value: f64, unit: &'static str, detail: impl Into<String>) {
        self.add(Row { name, unit, value, detail: detail.into(), latency_us: None });
    }

    /// Requests that were answered in `took`, with their latencies.
    pub fn rate(&mut self, name: &'static str, detail: impl Into<String>, took: Duration, latency_us: Histogram<u64>) {
        let value = latency_us.len() as f64 / took.as_secs_f64();
        self.add(Row { name, unit: "/s", value, detail: detail.into(), latency_us: Some(latency_us) });
    }

    fn add(&mut self, row: Row) {
        eprintln!("  {:<28} {:>12} {}", row.name, number(row.value), row.unit);
        self.rows.push(row);
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{:<28} {:>12} {:<6} {:>10} {:>10}  work", "figure", "value", "unit", "p50 ms", "p99 ms");
        for row in &self.rows {
            let quantile = |q: f64| match &row.latency_us {
                Some(latency) => format!("{:.2}", latency.value_at_quantile(q) as f64 / 1000.0),
                None => String::new(),
            };
            let (value, p50, p99) = (number(row.value), quantile(0.5), quantile(0.99));
            let _ = writeln!(out, "{:<28} {value:>12} {:<6} {p50:>10} {p99:>10}  {}", row.name, row.unit, row.detail);
        }
        out
    }

    pub fn json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let mut out = json!({"figure": row.name, "value": row.value, "unit": row.unit, "work": row.detail});
                if let Some(latency) = &row.latency_us {
                    out["p50_ms"] = json!(latency.value_at_quantile(0.5) as f64 / 1000.0);
                    out["p99_ms"] = json!(latency.value_at_quantile(0.99) as f64 / 1000.0);
                    out["count"] = json!(latency.len());
                }
                out
            })
            .collect();
        format!("{}\n", json!({"version": env!("CARGO_PKG_VERSION"), "rows": rows}))
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// A histogram of microseconds from 1 µs to a minute.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are sound")
}
