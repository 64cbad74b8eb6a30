//! Metrics in the format that the client requests: OpenMetrics, or the older Prometheus text format.

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::fmt::{Error, Write};

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

impl Format {
    /// The format with the highest weight in `Accept`, or the first of several with the same weight. The default is
    /// the text format, as for other Prometheus endpoints.
    pub fn negotiate(headers: &HeaderMap) -> Format {
        let clauses = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut best = (Format::Text, 0.0);
        for clause in clauses.flat_map(|text| text.split(',')) {
            if let Some((format, weight)) = Format::of_clause(clause)
                && weight > best.1
            {
                best = (format, weight);
            }
        }
        best.0
    }

    /// The format in one clause of `Accept`, and its weight.
    fn of_clause(clause: &str) -> Option<(Format, f64)> {
        let mut parts = clause.split(';').map(|part| part.trim().to_ascii_lowercase());
        let media = parts.next()?;
        let (mut weight, mut version) = (1.0, None);
        for part in parts {
            match part.split_once('=').map(|(key, value)| (key.trim(), value.trim().trim_matches('"'))) {
                Some(("q", text)) => weight = text.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q))?,
                Some(("version", text)) => version = Some(text.to_owned()),
                _ => {}
            }
        }
        let format = match (media.as_str(), version.as_deref()) {
            ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => Format::OpenMetrics,
            ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", None) => Format::Text,
            _ => return None,
        };
        Some((format, weight))
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes all metrics of a registry.
    pub fn write(self, registry: &Registry) -> Result<String, Error> {
        let mut text = String::new();
        encode(&mut text, registry)?;
        match self {
            Format::OpenMetrics => Ok(text),
            Format::Text => to_text(&text),
        }
    }
}

/// Converts OpenMetrics to the text format: counters are declared with the suffix of their samples (`NAME_total`),
/// unknown types are replaced, units and the end mark are removed.
fn to_text(open: &str) -> Result<String, Error> {
    let mut text = String::with_capacity(open.len());
    // HELP precedes TYPE, and TYPE may change the name, so HELP is written later.
    let mut help: Option<(&str, &str)> = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                "stateset" => ("", "gauge"),
                other => ("", other),
            };
            if let Some((_, told)) = help.take().filter(|(helped, _)| *helped == name) {
                writeln!(text, "# HELP {name}{suffix} {told}")?;
            }
            writeln!(text, "# TYPE {name}{suffix} {kind}")?;
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;

    fn negotiated(accept: &[&str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        Format::negotiate(&headers)
    }

    #[test]
    fn the_highest_weight_decides() {
        use Format::{OpenMetrics, Text};
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                          text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let cases: [(&[&str], Format); 12] = [
            (&[], Text),
            (&["*/*"], Text),
            (&["application/json"], Text),
            (&[prometheus], OpenMetrics),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["application/openmetrics-text; version=2.0.0, text/plain;q=0.1"], Text),
            (&["application/openmetrics-text;q=0.2, text/plain; q=0.3"], Text),
            (&["text/plain;version=0.0.4;q=0.3", "Application/OpenMetrics-Text; Q=0.8"], OpenMetrics),
            (&["application/openmetrics-text;q=0"], Text),
            (&["application/openmetrics-text;q=2"], Text),
            (&["text/plain, application/openmetrics-text"], Text),
            (&["application/openmetrics-text, text/plain"], OpenMetrics),
        ];
        for (accept, want) in cases {
            assert_eq!(negotiated(accept), want, "{accept:?}");
        }
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        counter.inc_by(3);
        registry.register("requests", "All of them", counter);
        let gauge = Gauge::<i64>::default();
        gauge.set(5);
        registry.register_with_unit("size", "How large", Unit::Bytes, gauge);
        let histogram = Histogram::new([1.0]);
        histogram.observe(0.5);
        registry.register("latency", "How long", histogram);
        let open = Format::OpenMetrics.write(&registry).unwrap();
        assert!(open.ends_with("# EOF\n") && open.contains("# TYPE requests counter\n"), "{open}");
        let text = Format::Text.write(&registry).unwrap();
        let want = "# HELP requests_total All of them.\n# TYPE requests_total counter\nrequests_total 3\n\
                    # HELP size_bytes How large.\n# TYPE size_bytes gauge\nsize_bytes 5\n\
                    # HELP latency How long.\n# TYPE latency histogram\nlatency_sum 0.5\nlatency_count 1\n\
                    latency_bucket{le=\"1.0\"} 1\nlatency_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(text, want);
        let samples =
            |page: &str| page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(samples(&open), samples(&text));
    }
}
