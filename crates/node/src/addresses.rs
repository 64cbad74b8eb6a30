//! Addresses for nodes and pods, from private ranges; nothing is routed to them.

use std::collections::HashSet;
use std::net::Ipv4Addr;

/// Nodes have addresses in 10.127.0.0/16.
const NODES_FIRST: u32 = 0x0A7F_0001;
pub const NODES_MAX: usize = 0xFFFE;
/// Pods have addresses in 10.128.0.0/9.
const PODS_FIRST: u32 = 0x0A80_0000;
const PODS_COUNT: u32 = 1 << 23;

pub fn of_node(number: usize) -> Ipv4Addr {
    let offset = u32::try_from(number).unwrap_or(u32::MAX).min(0xFFFD);
    Ipv4Addr::from(NODES_FIRST + offset)
}

/// How many pods each of this many nodes has addresses for.
pub fn pods_max(nodes: usize) -> i64 {
    i64::from(part(nodes)) - 2
}

fn part(nodes: usize) -> u32 {
    let nodes = nodes.clamp(1, NODES_MAX).next_power_of_two();
    PODS_COUNT / u32::try_from(nodes).unwrap_or(PODS_COUNT)
}

/// Allocates the addresses of pods. Each node has its own part of the range.
#[derive(Debug)]
pub struct Addresses {
    part: u32,
    /// Where the search for each node starts, so that a freed address is reused as late as possible.
    next: Vec<u32>,
    taken: HashSet<u32>,
}

impl Addresses {
    pub fn new(nodes: usize) -> Addresses {
        Addresses { part: part(nodes), next: vec![1; nodes], taken: HashSet::new() }
    }

    /// Allocates a free address of a node's part; `None` if all are in use.
    pub fn give(&mut self, node: usize) -> Option<Ipv4Addr> {
        let first = PODS_FIRST + self.part * u32::try_from(node).ok()?;
        let next = self.next.get_mut(node)?;
        // The first and the last address of a range are not host addresses.
        for _ in 1..self.part - 1 {
            let address = first + *next;
            *next = if *next + 2 < self.part { *next + 1 } else { 1 };
            if self.taken.insert(address) {
                return Some(Ipv4Addr::from(address));
            }
        }
        None
    }

    /// Marks an address as in use that a pod has already.
    pub fn note(&mut self, address: Ipv4Addr) {
        self.taken.insert(address.into());
    }

    pub fn take_back(&mut self, address: Ipv4Addr) {
        self.taken.remove(&address.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_and_come_back() {
        let mut addresses = Addresses::new(NODES_MAX);
        assert_eq!(addresses.part, 128);
        let mut given = HashSet::new();
        for node in [0, 1, NODES_MAX - 1] {
            for _ in 0..126 {
                assert!(given.insert(addresses.give(node).expect("126 in each part")));
            }
            assert_eq!(addresses.give(node), None);
        }
        let one: Ipv4Addr = "10.128.0.77".parse().expect("an address");
        assert!(given.contains(&one));
        addresses.take_back(one);
        assert_eq!(addresses.give(0), Some(one));
        assert_eq!(of_node(0).to_string(), "10.127.0.1");
        assert_eq!(of_node(NODES_MAX - 1).to_string(), "10.127.255.254");
    }

    #[test]
    fn a_lone_node_has_the_whole_range_and_leaves_what_pods_have() {
        let mut addresses = Addresses::new(1);
        addresses.note("10.128.0.1".parse().expect("an address"));
        assert_eq!(addresses.give(0).expect("many").to_string(), "10.128.0.2");
        assert_eq!(addresses.part, PODS_COUNT);
    }
}
