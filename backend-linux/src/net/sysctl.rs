//! Sysctls of the calling thread's network namespace: ip-sysctl.rst in the kernel's documentation.
//!
//! A new network namespace inherits some values from the first one and some not, so everything that matters
//! is set, and read back.

use super::error::io;
use holdfast_core::error::{Class, RouterError};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

/// A sysctl below `/proc/sys/net` with its value.
pub(crate) struct Sysctl {
    name: String,
    value: String,
    optional: bool,
}

impl Sysctl {
    /// One that must take.
    pub fn new(name: impl Into<String>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string(), optional: false }
    }

    /// One that kernels may lack, or keep from a namespace.
    pub fn optional(name: impl Into<String>, value: impl ToString) -> Self {
        Self { optional: true, ..Self::new(name, value) }
    }

    fn set(&self) -> Result<(), RouterError> {
        let path = Path::new("/proc/sys/net").join(&self.name);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if self.optional => {
                tracing::debug!(sysctl = self.name, %error, "not there");
                return Ok(());
            }
            Err(error) => return Err(io("open sysctl", &self.name, &error)),
        };
        // One open for all of it: in a new namespace the path's look-up is what costs.
        let found = read(&file).map_err(|error| io("read sysctl", &self.name, &error))?;
        if self.is(&found) {
            return Ok(());
        }
        if let Err(error) = file.write_all_at(self.value.as_bytes(), 0) {
            if self.optional {
                tracing::debug!(sysctl = self.name, %error, "the kernel keeps its value");
                return Ok(());
            }
            return Err(io("set sysctl", &self.name, &error));
        }
        let found = read(&file).map_err(|error| io("read sysctl", &self.name, &error))?;
        if !self.is(&found) {
            let cause = format!("is {:?} after {:?} was written", found.trim(), self.value);
            return Err(RouterError::new(Class::Fatal, "set sysctl", &self.name, cause));
        }
        Ok(())
    }

    fn is(&self, found: &str) -> bool {
        found.split_whitespace().eq(self.value.split_whitespace())
    }
}

/// The values set here are a few bytes long.
fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = [0; 128];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Sets all of them, in order.
pub(crate) fn set_all(sysctls: &[Sysctl]) -> Result<(), RouterError> {
    sysctls.iter().try_for_each(Sysctl::set)
}

/// What the router's namespace needs.
pub(crate) fn router() -> Vec<Sysctl> {
    let mut sysctls = vec![
        Sysctl::new("ipv4/ip_forward", 1),
        // A stream whose middle is the first packet that a rebuilt router sees goes on.
        Sysctl::optional("netfilter/nf_conntrack_tcp_loose", 1),
        Sysctl::optional("netfilter/nf_conntrack_tcp_be_liberal", 1),
        Sysctl::optional("bridge/bridge-nf-call-iptables", 0),
        Sysctl::optional("bridge/bridge-nf-call-ip6tables", 0),
        Sysctl::optional("bridge/bridge-nf-call-arptables", 0),
    ];
    for scope in ["all", "default"] {
        sysctls.extend(router_interface(scope));
    }
    sysctls
}

/// What a bridge of the router needs, and what `all` and `default` are set to.
pub(crate) fn router_interface(name: &str) -> Vec<Sysctl> {
    let v4 = |key: &str| format!("ipv4/conf/{name}/{key}");
    let v6 = |key: &str| format!("ipv6/conf/{name}/{key}");
    vec![
        // Workloads on one bridge reach one another through the router: it must not tell them of a shorter way.
        Sysctl::new(v4("send_redirects"), 0),
        Sysctl::new(v4("accept_redirects"), 0),
        Sysctl::new(v4("accept_source_route"), 0),
        Sysctl::new(v4("proxy_arp"), 0),
        Sysctl::new(v4("rp_filter"), 1),
        // Answer for an address only on the link that has it.
        Sysctl::new(v4("arp_ignore"), 1),
        Sysctl::optional(v6("disable_ipv6"), 0),
        Sysctl::optional(v6("forwarding"), 1),
        Sysctl::optional(v6("accept_ra"), 0),
        Sysctl::optional(v6("accept_redirects"), 0),
        Sysctl::optional(v6("accept_dad"), 0),
    ]
}

/// What a sandbox's namespace needs. `ping_groups` is the range of groups that may ping without privilege.
pub(crate) fn sandbox(ping_groups: (u32, u32)) -> Vec<Sysctl> {
    let mut sysctls = vec![
        Sysctl::optional("ipv4/ping_group_range", format!("{} {}", ping_groups.0, ping_groups.1)),
        // Streams resume within a second of a healed router, instead of after minutes of back-off.
        Sysctl::optional("ipv4/tcp_rto_max_ms", 1000),
    ];
    // For these the kernel combines `all` with the interface's own; for the others it looks at the latter only,
    // which is made from `default`.
    for scope in ["all", "default"] {
        sysctls.extend([
            Sysctl::new(format!("ipv4/conf/{scope}/rp_filter"), 0),
            Sysctl::new(format!("ipv4/conf/{scope}/accept_redirects"), 0),
            Sysctl::optional(format!("ipv6/conf/{scope}/accept_dad"), 0),
        ]);
    }
    for key in ["disable_ipv6", "accept_ra", "accept_redirects"] {
        sysctls.push(Sysctl::optional(format!("ipv6/conf/default/{key}"), 0));
    }
    sysctls
}

/// The groups of this user namespace from 0 on without a gap: user_namespaces(7), `gid_map`.
pub(crate) fn mapped_groups() -> (u32, u32) {
    let map = std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    (0, last_mapped(&map))
}

fn last_mapped(map: &str) -> u32 {
    let mut ranges: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let inside = fields.next()?.parse().ok()?;
            Some((inside, fields.nth(1)?.parse().ok()?))
        })
        .collect();
    ranges.sort_unstable();
    let end = ranges.iter().fold(0, |end, (start, count)| if *start == end { start + count } else { end });
    // The kernel refuses a range whose ends are not mapped, and one beyond its own maximum.
    u32::try_from(end.saturating_sub(1)).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::last_mapped;

    #[test]
    fn groups_count_until_the_first_gap() {
        assert_eq!(last_mapped("         0       1001          1\n"), 0);
        assert_eq!(last_mapped("0 1001 1\n1 100000 65536\n"), 65_536);
        assert_eq!(last_mapped("1 100000 65536\n0 1001 1\n70000 1 5\n"), 65_536);
        assert_eq!(last_mapped("0 0 4294967295\n"), 2_147_483_647);
        assert_eq!(last_mapped(""), 0);
    }
}
