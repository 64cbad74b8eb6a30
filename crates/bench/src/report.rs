//! What was measured, for people and for programs.

use crate::progress::Progress;
use hdrhistogram::Histogram;
use object::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// One measured piece of work.
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
    pub detail: String,
    latency_us: Option<Histogram<u64>>,
}

/// One cost at several sizes, from the smallest to the largest.
pub struct Curve {
    pub name: &'static str,
    pub unit: &'static str,
    pub points: Vec<(usize, f64)>,
    /// It is of all together, and so grows with the size.
    pub is_total: bool,
}

impl Curve {
    /// How much dearer the largest size is than the smallest: 1 is flat.
    pub fn ratio(&self) -> Option<f64> {
        let ((small, first), (large, last)) = (self.points.first()?, self.points.last()?);
        (!self.is_total && small < large && *first > 0.0).then(|| last / first)
    }
}

pub struct Report {
    pub rows: Vec<Row>,
    pub curves: Vec<Curve>,
    left_out: Vec<(String, String)>,
    progress: Progress,
}

impl Report {
    pub fn new(progress: Progress) -> Report {
        Report { rows: Vec::new(), curves: Vec::new(), left_out: Vec::new(), progress }
    }

    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str, detail: impl Into<String>) {
        self.add(Row { name: name.into(), unit, value, detail: detail.into(), latency_us: None });
    }

    /// Requests that were answered in `took`, with their latencies.
    pub fn rate(&mut self, name: &str, detail: impl Into<String>, took: Duration, latency_us: Histogram<u64>) {
        let value = latency_us.len() as f64 / took.as_secs_f64();
        self.add(Row { name: name.into(), unit: "/s", value, detail: detail.into(), latency_us: Some(latency_us) });
    }

    /// What one thing costs at one size.
    pub fn point(&mut self, name: &'static str, unit: &'static str, size: usize, value: f64) {
        self.add_point(name, unit, (size, value), false);
    }

    /// What all of them cost together at one size.
    pub fn total(&mut self, name: &'static str, unit: &'static str, size: usize, value: f64) {
        self.add_point(name, unit, (size, value), true);
    }

    fn add_point(&mut self, name: &'static str, unit: &'static str, (size, value): (usize, f64), is_total: bool) {
        self.progress.say(&format!("  {size:>7} {name:<44} {:>12} {unit}", number(value)));
        match self.curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((size, value)),
            None => self.curves.push(Curve { name, unit, points: vec![(size, value)], is_total }),
        }
    }

    /// Work that this server cannot be asked for; said once.
    pub fn leave_out(&mut self, work: &str, why: impl Into<String>) {
        let left = (work.to_owned(), why.into());
        if !self.left_out.contains(&left) {
            self.progress.say(&format!("  {} is left out: {}.", left.0, left.1));
            self.left_out.push(left);
        }
    }

    fn add(&mut self, row: Row) {
        self.progress.say(&format!("  {:<44} {:>12} {}", row.name, number(row.value), row.unit));
        self.rows.push(row);
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        if !self.rows.is_empty() {
            let width = self.rows.iter().map(|row| row.name.chars().count()).fold(20, usize::max);
            let _ = writeln!(
                out,
                "{:<width$} {:>12} {:<6} {:>10} {:>10}  work",
                "figure", "value", "unit", "p50 ms", "p99 ms"
            );
            for row in &self.rows {
                let quantile = |q: f64| match &row.latency_us {
                    Some(latency) => format!("{:.2}", quantile_ms(latency, q)),
                    None => String::new(),
                };
                let (value, p50, p99) = (number(row.value), quantile(0.5), quantile(0.99));
                let _ = writeln!(
                    out,
                    "{:<width$} {value:>12} {:<6} {p50:>10} {p99:>10}  {}",
                    row.name, row.unit, row.detail
                );
            }
        }
        if !self.curves.is_empty() {
            self.growth_table(&mut out);
        }
        for (work, why) in &self.left_out {
            let _ = writeln!(out, "{work} is left out: {why}.");
        }
        out
    }

    fn growth_table(&self, out: &mut String) {
        if !out.is_empty() {
            out.push('\n');
        }
        let width = self.curves.iter().map(|curve| curve.name.chars().count()).fold(20, usize::max);
        let mut sizes: Vec<usize> = self.curves.iter().flat_map(|curve| curve.points.iter().map(|at| at.0)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let _ = write!(out, "{:<width$} {:<4}", "cost by size", "unit");
        for size in &sizes {
            let _ = write!(out, " {size:>10}");
        }
        let _ = writeln!(out, " {:>17}", "largest/smallest");
        for curve in &self.curves {
            let _ = write!(out, "{:<width$} {:<4}", curve.name, curve.unit);
            for size in &sizes {
                let value = curve.points.iter().find(|at| at.0 == *size).map_or(String::new(), |at| number(at.1));
                let _ = write!(out, " {value:>10}");
            }
            let ratio = curve.ratio().map_or(String::new(), |ratio| format!("{ratio:.2} ×"));
            let _ = writeln!(out, " {ratio:>17}");
        }
    }

    pub fn json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let mut out = json!({"figure": row.name, "value": row.value, "unit": row.unit, "work": row.detail});
                if let Some(latency) = &row.latency_us {
                    out["p50_ms"] = json!(quantile_ms(latency, 0.5));
                    out["p99_ms"] = json!(quantile_ms(latency, 0.99));
                    out["count"] = json!(latency.len());
                }
                out
            })
            .collect();
        let point = |at: &(usize, f64)| json!({"size": at.0, "value": at.1});
        let curve = |curve: &Curve| {
            let points: Vec<Value> = curve.points.iter().map(point).collect();
            json!({"figure": curve.name, "unit": curve.unit, "points": points, "largest_to_smallest": curve.ratio()})
        };
        let growth: Vec<Value> = self.curves.iter().map(curve).collect();
        let left: Vec<Value> = self.left_out.iter().map(|(work, why)| json!({"work": work, "why": why})).collect();
        let all = json!({"version": env!("CARGO_PKG_VERSION"), "rows": rows, "growth": growth, "left_out": left});
        format!("{all}\n")
    }
}

/// Short, and never so short that nothing of it is left.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 || middle == 0.0 => format!("{value:.1}"),
        small if small >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A histogram of microseconds from 1 µs to a minute.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are sound")
}

pub fn quantile_ms(latency_us: &Histogram<u64>, quantile: f64) -> f64 {
    latency_us.value_at_quantile(quantile) as f64 / 1000.0
}
