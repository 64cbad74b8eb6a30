//! Whether what is measured again and again, while the same things happen over and over, has reached a plateau.
//!
//! Two looks: the most in each third of the time tells of fast growth, in a run of any length. Low-water marks tell of slow growth below the
//! noise: what is used for a moment is given back at some time in each window, and what leaks is not.

use anyhow::{Result, bail};

/// Low-water marks are of so many windows; the first third of them is for what has to fill up.
const WINDOWS: usize = 12;
const FILLING: usize = WINDOWS / 3;

/// How much growth is none: a share of what there is, and megabytes besides.
#[derive(Clone, Copy, Debug)]
struct Slack {
    share: f64,
    mb: f64,
}

impl Slack {
    fn of(self, mb: f64) -> f64 {
        mb * self.share + self.mb
    }
}

/// Of the most, from the second third of the time to the last. In a short run things fill up until its end, so this is wide.
const MOST: Slack = Slack { share: 0.1, mb: 16.0 };

/// What is measured, and how much it may grow.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// Of low-water marks, after what has to fill up.
    low_water: Slack,
    rise: fn(&[f64]) -> f64,
}

/// Pages of memory come in lots, and some are held for long. In an hour of soak 200 bytes that each pod leaves behind are 15 MB between the
/// low-water marks that are compared.
pub const MEMORY: Kind = Kind { name: "memory", low_water: Slack { share: 0.02, mb: 6.0 }, rise: trend };

/// A file has no noise. It grows by doubling, so that a steady leak may be a single step.
pub const DISK: Kind = Kind { name: "disk", low_water: Slack { share: 0.02, mb: 0.5 }, rise: from_first_to_last };

/// What was seen of something.
#[derive(Debug, PartialEq)]
pub struct Seen {
    /// In each third of the time.
    pub most_mb: [f64; 3],
    /// By how much the low-water marks rose.
    pub rise_mb: f64,
}

impl Kind {
    pub fn look(&self, samples_mb: &[f64]) -> Result<Seen> {
        if samples_mb.len() < WINDOWS {
            bail!("the soak was too short to say anything: give it more seconds");
        }
        let (third, most) = (samples_mb.len() / 3, |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max));
        let most_mb = [&samples_mb[..third], &samples_mb[third..2 * third], &samples_mb[2 * third..]].map(most);
        Ok(Seen { most_mb, rise_mb: (self.rise)(&low_water(samples_mb)[FILLING..]) })
    }

    /// Whether it is a plateau. In a short run things fill up all the time, so that only a long one tells of slow growth.
    pub fn judge(&self, seen: &Seen, is_long: bool) -> Result<()> {
        let (name, [_, middle, last], rise) = (self.name, seen.most_mb, seen.rise_mb);
        if last > middle + MOST.of(middle) {
            bail!(
                "the {name} still grows: {middle:.0} MB at most in the second third of the time, {last:.0} MB in the last"
            );
        }
        if is_long && rise > self.low_water.of(middle) {
            let allowed = self.low_water.of(middle);
            bail!(
                "the {name} still grows: its low-water mark rose by {rise:.1} MB in the last two thirds of the time, and may by {allowed:.1} MB"
            );
        }
        Ok(())
    }
}

/// The least in each window.
fn low_water(samples_mb: &[f64]) -> Vec<f64> {
    let at = |window: usize| window * samples_mb.len() / WINDOWS;
    let least = |window: usize| samples_mb[at(window)..at(window + 1)].iter().copied().fold(f64::INFINITY, f64::min);
    (0..WINDOWS).map(least).collect()
}

/// By how much the marks rise from the first to the last as most pairs of them have it: a few that are odd change nothing.
fn trend(marks: &[f64]) -> f64 {
    let mut slopes: Vec<f64> = (1..marks.len())
        .flat_map(|later| (0..later).map(move |earlier| (earlier, later)))
        .map(|(earlier, later)| (marks[later] - marks[earlier]) / (later - earlier) as f64)
        .collect();
    slopes.sort_by(f64::total_cmp);
    let middle = slopes.get(slopes.len() / 2).copied().unwrap_or(0.0);
    middle * marks.len().saturating_sub(1) as f64
}

fn from_first_to_last(marks: &[f64]) -> f64 {
    marks.last().zip(marks.first()).map_or(0.0, |(last, first)| last - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: u32 = 120;

    /// Between 0 and 1, the same in every run, and evenly spread however few are taken: multiples of the golden ratio.
    fn noise(time: f64) -> f64 {
        (time * f64::from(SAMPLES) * 0.618_034).fract()
    }

    /// What is said of samples, each made from the part of the time that is over.
    fn said(kind: Kind, is_long: bool, megabytes: fn(f64) -> f64) -> String {
        let samples: Vec<f64> = (0..SAMPLES).map(|at| megabytes(f64::from(at) / f64::from(SAMPLES))).collect();
        let seen = kind.look(&samples).unwrap();
        kind.judge(&seen, is_long).err().map(|error| error.to_string()).unwrap_or_default()
    }

    type Course = (&'static str, fn(f64) -> f64);

    #[test]
    fn memory_that_is_a_plateau() {
        let plateaus: [Course; 9] = [
            ("flat", |_| 200.0),
            ("a spike while it fills up", |time| if time < 0.3 { 900.0 } else { 200.0 }),
            ("filling up until half of the time", |time| 400.0 * time.min(0.5)),
            ("waves", |time| 200.0 + 100.0 * (40.0 * time).sin()),
            ("falling", |time| 500.0 - 400.0 * time),
            ("a little, in lots", |time| if time < 0.9 { 20.0 } else { 36.0 }),
            ("an hour as measured: at most 129, 125 and 140", |time| {
                105.0
                    + noise(time)
                        * if time < 0.33 {
                            24.0
                        } else if time < 0.66 {
                            20.0
                        } else {
                            35.0
                        }
            }),
            ("another: 182 to 185 from its half on", |time| 170.0 + 24.0 * time.min(0.5) + 3.0 * noise(time)),
            ("noise that becomes more", |time| 110.0 + (10.0 + 10.0 * time) * noise(time)),
        ];
        for (what, megabytes) in plateaus {
            assert_eq!(said(MEMORY, true, megabytes), "", "{what}");
        }
    }

    #[test]
    fn memory_that_grows() {
        let fast: [Course; 4] = [
            ("steadily", |time| 100.0 + 300.0 * time),
            ("faster and faster", |time| 50.0 * (3.0 * time).exp()),
            ("at the very end", |time| if time < 0.98 { 200.0 } else { 240.0 }),
            ("after a spike", |time| if time < 0.1 { 900.0 } else { 600.0 * time }),
        ];
        for (what, megabytes) in fast {
            for is_long in [false, true] {
                let said = said(MEMORY, is_long, megabytes);
                assert!(said.starts_with("the memory still grows: "), "{what}: {said:?}");
            }
        }
        let slow: [Course; 5] = [
            // 36 pods a second, as measured on two cores beside builds, are 130,000 in an hour.
            ("200 bytes for each pod", |time| 105.0 + 26.0 * time + 20.0 * noise(time)),
            ("200 bytes for each pod, and a larger server", |time| 170.0 + 26.0 * time + 20.0 * noise(time)),
            ("from the half on", |time| 105.0 + 52.0 * (time - 0.5).max(0.0) + 20.0 * noise(time)),
            ("below noise that becomes less", |time| 105.0 + 26.0 * time + 30.0 * (1.0 - time) * noise(time)),
            ("a map that doubles", |time| {
                105.0
                    + if time < 0.4 {
                        8.0
                    } else if time < 0.8 {
                        16.0
                    } else {
                        32.0
                    }
            }),
        ];
        for (what, megabytes) in slow {
            let long = said(MEMORY, true, megabytes);
            assert!(long.contains("its low-water mark rose by "), "{what}: {long:?}");
            assert_eq!(said(MEMORY, false, megabytes), "", "{what}: a short run cannot tell it from filling up");
        }
    }

    #[test]
    fn disks() {
        let plateaus: [Course; 3] = [
            ("an hour as measured", |_| 8.4),
            ("a file that is made smaller and larger again", |time| 8.4 + 0.4 * noise(time)),
            ("filling up in the first third", |time| if time < 0.3 { 2.1 } else { 8.4 }),
        ];
        for (what, megabytes) in plateaus {
            assert_eq!(said(DISK, true, megabytes), "", "{what}");
        }
        let growths: [Course; 4] = [
            ("steadily", |time| 8.4 + 2.0 * time),
            ("by doubling once, early", |time| if time < 0.45 { 8.4 } else { 16.8 }),
            ("by doubling once, late", |time| if time < 0.9 { 8.4 } else { 16.8 }),
            ("a file for each pod that is left behind", |time| 60.0 + 12.0 * time),
        ];
        for (what, megabytes) in growths {
            let said = said(DISK, true, megabytes);
            assert!(said.starts_with("the disk still grows: "), "{what}: {said:?}");
        }
    }

    #[test]
    fn too_few_samples_say_nothing() {
        assert!(MEMORY.look(&[1.0; WINDOWS - 1]).unwrap_err().to_string().contains("too short"));
        let rising: Vec<f64> = (1u32..=36).map(f64::from).collect();
        assert_eq!(MEMORY.look(&rising).unwrap(), Seen { most_mb: [12.0, 24.0, 36.0], rise_mb: 21.0 });
        assert_eq!(DISK.look(&rising).unwrap().rise_mb, 21.0);
    }
}
