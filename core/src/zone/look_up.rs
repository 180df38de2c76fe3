//! One question to the zone.

use super::{Host, SUFFIX, Sight, View, Zone, zone_of};
use crate::alloc_address::contains;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the zone says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// These addresses, those on a network of the asker's first; of another family than asked for, there is no data.
    Addresses(Vec<IpAddr>),
    /// An address has this full name.
    Name(String),
    /// A name of ours that has nothing but names below it.
    Empty,
    /// A name of ours that does not exist, as far as the asker is concerned.
    Nothing,
    /// Not ours, unless nobody else knows it: `NAME.NETWORK` where the network's name is also a top-level domain's.
    ForeignFirst,
    /// Not ours.
    Foreign,
}

/// A zone with its names in order.
#[derive(Clone, Debug, Default)]
pub struct Index {
    zone: Zone,
    names: BTreeMap<String, Vec<u32>>,
    addresses: BTreeMap<IpAddr, u32>,
}

impl Index {
    /// Sorts a zone.
    pub fn new(zone: Zone) -> Self {
        let mut names: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for (number, host) in (0_u32..).zip(&zone.hosts) {
            for name in &host.names {
                names.entry(name.clone()).or_default().push(number);
            }
            addresses.extend(host.addresses.iter().map(|address| (*address, number)));
        }
        Self { zone, names, addresses }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// What somebody sees who asks from an address; `None` for one that no workload has.
    pub fn view(&self, asker: IpAddr) -> Option<&View> {
        let number = *self.zone.askers.get(&asker)?;
        self.zone.views.get(number as usize)
    }

    /// Whether an address is a workload's: a server there may itself ask here.
    pub fn is_asker(&self, address: IpAddr) -> bool {
        self.zone.askers.contains_key(&address)
    }

    /// What a name is to whoever has this view. `name` has its labels from left to right, in any case, without the
    /// root's dot.
    pub fn look_up(&self, view: &View, name: &str) -> Found {
        let name = name.to_ascii_lowercase();
        if let Some(address) = arpa(&name) {
            return self.reverse(view, address);
        }
        let inside = match name.strip_suffix(SUFFIX) {
            Some("") => return Found::Empty,
            Some(rest) => rest.strip_suffix('.'),
            None => None,
        };
        let labels: Vec<&str> = inside.unwrap_or(&name).split('.').collect();
        match (labels.as_slice(), inside.is_some()) {
            ([host], ours) => match self.addresses(view, host, None) {
                Found::Nothing if ours && self.sees_network(view, host) => Found::Empty,
                // A name without a dot is nobody's outside: RFC 8499, "global DNS" has no hosts at its top.
                found => found,
            },
            ([host, network], true) => self.addresses(view, host, Some(network)),
            ([host, network], false) => match self.addresses(view, host, Some(network)) {
                Found::Nothing if self.sees_network(view, network) => Found::ForeignFirst,
                Found::Nothing => Found::Foreign,
                found => found,
            },
            (_, true) => Found::Nothing,
            (_, false) => Found::Foreign,
        }
    }

    fn sight(view: &View, host: &Host) -> Option<Sight> {
        let place = view.sees.binary_search_by_key(&host.place, |sight| sight.place).ok()?;
        view.sees.get(place).copied()
    }

    fn network_is(&self, number: u32, name: &str) -> bool {
        self.zone.networks.get(number as usize).is_some_and(|network| network.name == name)
    }

    fn sees_network(&self, view: &View, name: &str) -> bool {
        view.networks.iter().any(|number| self.network_is(*number, name))
            || self
                .zone
                .hosts
                .iter()
                .any(|host| self.network_is(host.network, name) && Self::sight(view, host).is_some())
    }

    fn addresses(&self, view: &View, name: &str, network: Option<&str>) -> Found {
        let numbers = self.names.get(name).into_iter().flatten();
        let hosts = numbers.filter_map(|number| self.zone.hosts.get(*number as usize));
        let mut near = Vec::new();
        let mut far = Vec::new();
        let mut known = false;
        for host in hosts {
            if network.is_some_and(|network| !self.network_is(host.network, network)) {
                continue;
            }
            let Some(sight) = Self::sight(view, host) else { continue };
            known = true;
            let into = if view.networks.contains(&host.network) { &mut near } else { &mut far };
            into.extend(host.addresses.iter().filter(|address| match address {
                IpAddr::V4(_) => sight.ipv4,
                IpAddr::V6(_) => sight.ipv6,
            }));
        }
        near.append(&mut far);
        if known { Found::Addresses(near) } else { Found::Nothing }
    }

    fn reverse(&self, view: &View, address: IpAddr) -> Found {
        let subnets = self.zone.networks.iter().flat_map(|network| &network.subnets);
        if !subnets.into_iter().any(|subnet| contains(*subnet, address)) {
            return Found::Foreign;
        }
        let host = self.addresses.get(&address).and_then(|number| self.zone.hosts.get(*number as usize));
        let seen = host.filter(|host| {
            Self::sight(view, host).is_some_and(|sight| match address {
                IpAddr::V4(_) => sight.ipv4,
                IpAddr::V6(_) => sight.ipv6,
            })
        });
        let full = seen.and_then(|host| {
            let network = self.zone.networks.get(host.network as usize)?;
            Some(alloc::format!("{}.{}", host.names.first()?, zone_of(&network.name)))
        });
        full.map_or(Found::Nothing, Found::Name)
    }
}

/// The address of a name below `in-addr.arpa` (RFC 1035, 3.5) or `ip6.arpa` (RFC 3596, 2.5), if it is one whole.
fn arpa(name: &str) -> Option<IpAddr> {
    if let Some(rest) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = rest.split('.').map(|label| label.parse::<u8>().ok());
        let [d, c, b, a] = [(); 4].map(|()| octets.next().flatten());
        return match octets.next() {
            None => Some(Ipv4Addr::new(a?, b?, c?, d?).into()),
            Some(_) => None,
        };
    }
    let mut number = 0_u128;
    let mut count = 0_u32;
    for label in name.strip_suffix(".ip6.arpa")?.split('.') {
        let digit = u128::from(label.chars().next().filter(|_| label.len() == 1)?.to_digit(16)?);
        number |= digit.checked_shl(count * 4).filter(|_| count < 32)?;
        count += 1;
    }
    (count == 32).then(|| Ipv6Addr::from(number).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::arpa;

    #[test]
    fn reverse_names_are_read_whole_or_not_at_all() {
        assert_eq!(arpa("2.0.89.10.in-addr.arpa"), "10.89.0.2".parse().ok());
        let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
        assert_eq!(arpa(v6), "fd00::1".parse().ok());
        let long = alloc::format!("1.{v6}");
        for foreign in [
            "0.89.10.in-addr.arpa",
            "1.2.0.89.10.in-addr.arpa",
            "256.0.89.10.in-addr.arpa",
            "in-addr.arpa",
            "1.d.f.ip6.arpa",
            "x.ip6.arpa",
            "11.ip6.arpa",
            &long,
            ".in-addr.arpa",
            "web.default",
        ] {
            assert_eq!(arpa(foreign), None, "{foreign}");
        }
    }
}
