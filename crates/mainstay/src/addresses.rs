//! The addresses of this machine, for a server that listens on all of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All addresses of this machine's interfaces; empty where the system has no /proc.
pub fn of_this_machine() -> Vec<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    ipv4(&read("/proc/net/fib_trie")).into_iter().chain(ipv6(&read("/proc/net/if_inet6"))).collect()
}

/// The kernel's routing trie names each local address as a leaf, and the next line says that it is one.
fn ipv4(trie: &str) -> BTreeSet<IpAddr> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let leaves = lines.windows(2).filter(|pair| pair[1] == "/32 host LOCAL");
    leaves.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse::<Ipv4Addr>().ok().map(IpAddr::from)).collect()
}

fn ipv6(table: &str) -> BTreeSet<IpAddr> {
    let addresses = table.lines().filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok());
    // Link-local addresses cannot be used without the name of an interface.
    addresses.map(Ipv6Addr::from_bits).filter(|address| !address.is_unicast_link_local()).map(IpAddr::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_read_from_the_kernels_tables() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 192.0.2.7\n        /32 host LOCAL\n\
            \x20    |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let found: Vec<String> = ipv4(trie).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.1", "192.0.2.7"]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80 eth0\n\
            20010db8000000000000000000000007 02 40 00 80 eth0\nrubbish\n";
        let found: Vec<String> = ipv6(table).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["::1", "2001:db8::7"]);
    }
}
