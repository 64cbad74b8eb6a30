//! `--csi`: where a driver is, and how it is to be used.

use kit::backoff::Backoff;
use plan::csi::Options;
use std::time::Duration;

/// A driver's socket, and options after a question mark: `unix:///run/csi.sock?default-fstype=xfs&timeout=30`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub socket: csi::Endpoint,
    pub options: Options,
    pub pace: Pace,
}

/// How soon a call that failed is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// After the first failure; doubled with each one that follows.
    pub first: Duration,
    pub longest: Duration,
    /// What a driver that is away waits at most: it may be back any moment.
    pub longest_away: Duration,
    /// What a driver calls infeasible rests for so long.
    pub rest: Duration,
    /// Who is at the socket is looked at this often: nobody else may notice that another driver has come, or another version.
    pub look: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            longest_away: Duration::from_secs(10),
            rest: Duration::from_secs(300),
            look: Duration::from_secs(15),
        }
    }
}

impl Pace {
    pub fn after(&self, failures: u32, is_away: bool) -> Duration {
        let max = if is_away { self.longest_away } else { self.longest };
        Backoff { first: self.first, max }.after(failures)
    }
}

impl Endpoint {
    /// The error is one sentence.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let (socket, query) = text.split_once('?').unwrap_or((text, ""));
        let socket = csi::Endpoint::parse(socket).map_err(|error| error.to_string())?;
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
            let on =
                || value.parse::<bool>().map_err(|_| format!("the CSI option {name} is true or false, not {value:?}"));
            match name {
                "default-fstype" => options.default_fs_type = value.to_owned(),
                "extra-create-metadata" => options.extra_create_metadata = on()?,
                "strict-topology" => options.strict_topology = on()?,
                "immediate-topology" => options.immediate_topology = on()?,
                "controller-publish-readonly" => options.publish_read_only = on()?,
                "timeout" => {
                    let seconds = value.strip_suffix('s').unwrap_or(value).parse().ok().filter(|seconds| *seconds > 0);
                    options.timeout_s = seconds
                        .ok_or_else(|| format!("the CSI option timeout is a number of seconds, not {value:?}"))?;
                }
                "monitor-interval" => {
                    let seconds = value.strip_suffix('s').unwrap_or(value).parse().ok();
                    options.monitor_interval_s = seconds.ok_or_else(|| {
                        format!("the CSI option monitor-interval is a number of seconds, not {value:?}")
                    })?;
                }
                _ => {
                    return Err(format!(
                        "there is no CSI option {name:?}; there are default-fstype, extra-create-metadata, strict-topology, \
                         immediate-topology, controller-publish-readonly, timeout, monitor-interval"
                    ));
                }
            }
        }
        Ok(Endpoint { socket, options, pace: Pace::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_a_question_mark_and_bad_ones_get_a_sentence() {
        let plain = Endpoint::parse("unix:///run/csi.sock").unwrap();
        assert_eq!(plain.options, Options::default());
        let full =
            Endpoint::parse("/run/csi.sock?default-fstype=xfs&extra-create-metadata&timeout=30s&monitor-interval=60")
                .unwrap();
        assert_eq!(full.socket.to_string(), "unix:///run/csi.sock");
        assert_eq!((full.options.default_fs_type.as_str(), full.options.timeout_s), ("xfs", 30));
        assert!(full.options.extra_create_metadata && full.options.monitor_interval_s == 60);
        for (bad, want) in [
            ("csi.sock", "absolute path"),
            ("/x?strict-topology=maybe", "true or false"),
            ("/x?timeout=soon", "number of seconds"),
            ("/x?monitor-interval=-1", "number of seconds"),
            ("/x?zzz=1", "there is no CSI option"),
        ] {
            assert!(Endpoint::parse(bad).unwrap_err().contains(want), "{bad}");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let pace = Pace::default();
        let waits: Vec<u64> = (0..10).map(|failures| pace.after(failures, false).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(pace.after(9, true).as_secs(), 10);
    }
}
