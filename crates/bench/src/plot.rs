//! The figures as pictures: throughput as bars, and costs against sizes as curves. SVG, written by hand.

use crate::report::{Curve, Report, Row, number};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const BAR_HEIGHT: f64 = 22.0;
const LABEL_WIDTH: f64 = 330.0;
const VALUE_WIDTH: f64 = 110.0;
const PANEL_HEIGHT: f64 = 190.0;
const PANEL_COLUMNS: usize = 3;
const BLUE: &str = "#2b6cb0";
const GREY: &str = "#cbd5e0";

/// One page: both kinds of pictures, as far as there are figures.
pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    let rates: Vec<&Row> = report.rows.iter().filter(|row| row.unit.ends_with("/s")).collect();
    if !rates.is_empty() {
        y = title(&mut body, y, "Throughput (each step of the grid is ten times the one before)");
        y = bars(&mut body, y, &rates);
    }
    if !report.curves.is_empty() {
        y = title(&mut body, y, "Cost against size (level is good; the grey line is 1.3 times the smallest size)");
        y = curves(&mut body, y, &report.curves);
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn title(out: &mut String, y: f64, text: &str) -> f64 {
    line(out, format!("<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"16\">{}</text>", y + 12.0, escaped(text)));
    y + 30.0
}

/// Bars by powers of ten, for rates differ that much.
fn bars(out: &mut String, top: f64, rates: &[&Row]) -> f64 {
    let room = WIDTH - 2.0 * MARGIN - LABEL_WIDTH - VALUE_WIDTH;
    let left = MARGIN + LABEL_WIDTH;
    let most = rates.iter().map(|row| row.value).fold(10.0, f64::max);
    let decades = most.log10().ceil();
    let bottom = top + BAR_HEIGHT * rates.len() as f64;
    for decade in 0..=decades as usize {
        let x = left + room * decade as f64 / decades;
        line(out, format!("<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{GREY}\"/>"));
    }
    for (at, row) in rates.iter().enumerate() {
        let y = top + BAR_HEIGHT * at as f64;
        let width = (room * row.value.max(1.0).log10() / decades).max(1.0);
        let base = y + 15.0;
        let name = escaped(&row.name);
        line(out, format!("<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{name}</text>", left - 8.0));
        line(
            out,
            format!(
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{BLUE}\"><title>{}</title></rect>",
                y + 3.0,
                BAR_HEIGHT - 6.0,
                escaped(&row.detail)
            ),
        );
        let value = format!("{} {}", number(row.value), row.unit);
        line(out, format!("<text x=\"{:.1}\" y=\"{base:.1}\">{}</text>", left + width + 6.0, escaped(&value)));
    }
    bottom + MARGIN
}

/// One small picture for each cost: sizes by powers of ten, costs from zero.
fn curves(out: &mut String, top: f64, curves: &[Curve]) -> f64 {
    let width = (WIDTH - 2.0 * MARGIN) / PANEL_COLUMNS as f64;
    for (at, curve) in curves.iter().enumerate() {
        let x = MARGIN + width * (at % PANEL_COLUMNS) as f64;
        let y = top + PANEL_HEIGHT * (at / PANEL_COLUMNS) as f64;
        panel(out, (x, y), width - 16.0, curve);
    }
    top + PANEL_HEIGHT * curves.len().div_ceil(PANEL_COLUMNS) as f64
}

fn panel(out: &mut String, (x, y): (f64, f64), width: f64, curve: &Curve) {
    let name = escaped(curve.name);
    line(out, format!("<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"11\">{name}</text>", y + 12.0));
    let (left, right, roof, floor) = (x + 4.0, x + width - 60.0, y + 34.0, y + PANEL_HEIGHT - 40.0);
    let first = curve.points.first().map_or(0.0, |point| point.1);
    let most = curve.points.iter().map(|point| point.1).fold(first * 1.3, f64::max).max(f64::MIN_POSITIVE);
    let logs: Vec<f64> = curve.points.iter().map(|point| (point.0 as f64).log10()).collect();
    let (least, span) = match (logs.first(), logs.last()) {
        (Some(least), Some(last)) if last > least => (*least, last - least),
        (least, _) => (least.copied().unwrap_or(0.0), 1.0),
    };
    let height = |value: f64| floor - (floor - roof) * (value / most).clamp(0.0, 1.0);
    let level = height(first * 1.3);
    line(
        out,
        format!("<line x1=\"{left:.1}\" y1=\"{floor:.1}\" x2=\"{right:.1}\" y2=\"{floor:.1}\" stroke=\"black\"/>"),
    );
    if !curve.is_total {
        line(
            out,
            format!("<line x1=\"{left:.1}\" y1=\"{level:.1}\" x2=\"{right:.1}\" y2=\"{level:.1}\" stroke=\"{GREY}\"/>"),
        );
    }
    let mut path = String::new();
    for ((size, value), log) in curve.points.iter().zip(&logs) {
        let (px, py) = (left + (right - left) * (log - least) / span, height(*value));
        let _ = write!(path, "{px:.1},{py:.1} ");
        line(out, format!("<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{BLUE}\"/>"));
        line(out, format!("<text x=\"{px:.1}\" y=\"{:.1}\" font-size=\"10\">{size}</text>", floor + 13.0));
        let value = escaped(&format!("{} {}", number(*value), curve.unit));
        line(out, format!("<text x=\"{px:.1}\" y=\"{:.1}\" font-size=\"10\">{value}</text>", py - 6.0));
    }
    line(out, format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{BLUE}\"/>", path.trim_end()));
}

fn line(out: &mut String, text: String) {
    out.push_str(&text);
    out.push('\n');
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
