//! The limits of all guards.

use crate::count::Allocated;
use std::time::Duration;

/// Below this share of its limit a figure is so low that the limit should be lowered.
const SLACK: f64 = 0.7;

/// Limits of one piece of work: allocations and their bytes.
struct Limit {
    what: &'static str,
    times: u64,
    bytes: u64,
}

const fn limit(what: &'static str, times: u64, bytes: u64) -> Limit {
    Limit { what, times, bytes }
}

/// About 6 % above the figures of November 2026; runs differ by 1 %. (The cost of an event is a small
/// difference of large figures, and has more room.) Debug builds, and so these tests, also compare the
/// server's caches with the store; that is included.
const LIMITS: &[Limit] = &[
    limit("create", 158, 24_000),
    limit("get", 44, 8_150),
    limit("list a page of 100", 83, 153_000),
    limit("patch", 151, 21_700),
    limit("event heard by 20 watchers", 66, 31_000),
    limit("delete", 85, 18_700),
    limit("plan of a settled set of 5", 32, 4_120),
    limit("plan of a settled set of 100", 63, 24_300),
    limit("plan of a set of 100 with a new template", 247, 71_000),
    limit("plan of a claim among 1,000 volumes", 57, 5_730),
    limit("pod of an ordered set created", 3_630, 574_000),
    limit("pod of an ordered set rolled", 3_500, 614_000),
    limit("pair bound", 1_870, 244_000),
    limit("pair released", 1_270, 186_000),
    limit("dependant collected", 278, 44_300),
];

/// Limits of other counts for one piece of work.
const COUNTS: &[(&str, f64)] = &[
    ("pod of an ordered set created: requests of controllers", 7.1),
    ("pod of an ordered set created: writes", 7.0),
    ("pod of an ordered set rolled: requests of controllers", 5.0),
    ("pod of an ordered set rolled: writes", 6.0),
    ("pair bound: requests of controllers", 3.4),
    ("pair bound: writes", 4.2),
    ("pair released: requests of controllers", 4.4),
    ("pair released: writes", 3.2),
    ("dependant collected: requests of controllers", 2.2),
    ("dependant collected: writes", 1.1),
];

/// How many times more one piece of work may cost with 32 times as many objects. The rest of a list is
/// counted for each of its pages; everything else has constant cost. Linear cost would be a factor of 32, so
/// there is room for a busy machine.
const GROWTH: &[(&str, f64)] = &[
    ("a look at a replica", 2.0),
    ("a claim that finds a volume", 2.0),
    ("get", 2.0),
    ("list a page", 5.0),
    ("patch", 2.0),
    ("create and delete", 2.0),
];

/// Checks a figure for each of `count` pieces of work against its limit.
#[track_caller]
pub fn hold(what: &str, count: u64, allocated: Allocated) {
    let limit = LIMITS.iter().find(|limit| limit.what == what);
    let (times, bytes) = (allocated.times / count, allocated.bytes / count);
    println!("{what}: {times} allocations, {bytes} bytes");
    let limit = limit.unwrap_or_else(|| panic!("{what} has no limit in limits.rs; it takes {times} and {bytes} bytes"));
    for (unit, found, most) in [("allocations", times, limit.times), ("bytes", bytes, limit.bytes)] {
        assert!(
            found <= most,
            "{what} takes {found} {unit}, and {most} are allowed: the head of main.rs says what to do"
        );
        if (found as f64) < most as f64 * SLACK {
            println!("  {what}: {found} {unit} are well below the limit of {most}: bring it down");
        }
    }
}

/// Checks a count for each of `count` pieces of work against its limit.
#[track_caller]
pub fn hold_count(what: &str, found: u64, count: u64) {
    let each = found as f64 / count as f64;
    println!("{what}: {each:.2}");
    let limit = COUNTS.iter().find(|limit| limit.0 == what);
    let (_, most) = limit.unwrap_or_else(|| panic!("{what} has no limit in limits.rs; it is {each:.2}"));
    assert!(each <= *most, "{what}: {each:.2}, and {most} is allowed: the head of main.rs says what to do");
    if each < most * SLACK {
        println!("  {what}: {each:.2} is well below the limit of {most}: bring it down");
    }
}

/// Checks the time of work with few and with many objects against its limit.
#[track_caller]
pub fn hold_growth(what: &str, [little, much]: [Duration; 2]) {
    let ratio = much.as_secs_f64() / little.as_secs_f64();
    println!("{what}: {little:?} and {much:?}, {ratio:.2} times as dear");
    let limit = GROWTH.iter().find(|limit| limit.0 == what);
    let (_, most) = limit.unwrap_or_else(|| panic!("{what} has no limit in limits.rs; it is {ratio:.2}"));
    assert!(ratio <= *most, "{what} is {ratio:.2} times as dear where there is much, and {most} is allowed");
}
