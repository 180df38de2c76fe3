//! Values on the command line. Every refusal names the value and what is right.

use holdfast_core::{
    alloc_address::Wanted,
    policy::PolicyProtocol,
    spec::{BindMount, PortSpec, Protocol, RestartPolicy},
};
use nix::sys::signal::Signal;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    str::FromStr,
};

/// The most ports of one range.
const RANGE_MAX: u16 = 1024;

/// One `--publish`: a port, or a range of ports one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(pub Vec<PortSpec>);

/// `[[HOSTADDR:]HOSTPORT[-LAST]:]PORT[-LAST][/tcp|/udp]`; without a host port a free one is taken.
pub fn port(text: &str) -> Result<Ports, String> {
    let (ports, protocol) = match text.rsplit_once('/') {
        None => (text, Protocol::Tcp),
        Some((ports, "tcp")) => (ports, Protocol::Tcp),
        Some((ports, "udp")) => (ports, Protocol::Udp),
        Some((_, "sctp")) => {
            return Err("SCTP is not published: the uplink carries TCP and UDP; use /tcp or /udp".to_owned());
        }
        Some((_, other)) => return Err(format!("protocol {other:?} is neither tcp nor udp")),
    };
    if ports.contains('[') || ports.matches(':').count() > 2 {
        return Err("a host address is IPv4: the uplink publishes no IPv6 ports".to_owned());
    }
    let mut fields = ports.rsplit(':');
    let (first, last) = range(fields.next().unwrap_or_default(), "container port")?;
    if first == 0 {
        return Err("container port 0 does not exist".to_owned());
    }
    let count = last - first;
    if count >= RANGE_MAX {
        return Err(format!("a range holds at most {RANGE_MAX} ports"));
    }
    let host_first = match fields.next() {
        None | Some("") => None,
        Some(host) => {
            let (host_first, host_last) = range(host, "host port")?;
            if host_last - host_first != count {
                return Err(format!(
                    "{} host ports lead to {} container ports; ranges must be of one length",
                    host_last - host_first + 1,
                    count + 1
                ));
            }
            if host_first == 0 && count > 0 {
                return Err("a range cannot begin at host port 0; leave the host ports out".to_owned());
            }
            (host_first != 0).then_some(host_first)
        }
    };
    let host_address = match fields.next() {
        None | Some("") => Ipv4Addr::UNSPECIFIED,
        Some(address) => {
            address.parse().map_err(|_| format!("host address {address:?} is not an IPv4 address"))?
        }
    };
    let spec = |offset| PortSpec {
        host_address,
        host_port: host_first.map_or(0, |first| first + offset),
        target_port: first + offset,
        protocol,
    };
    Ok(Ports((0..=count).map(spec).collect()))
}

/// A port, or the first and the last of a range.
fn range(text: &str, what: &str) -> Result<(u16, u16), String> {
    let number = |text: &str| {
        text.parse::<u16>().map_err(|_| format!("{what} {text:?} is not a number from 0 to 65535"))
    };
    let Some((first, last)) = text.split_once('-') else {
        return number(text).map(|port| (port, port));
    };
    match (number(first)?, number(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        _ => Err(format!("{what} range {text:?} ends before it begins")),
    }
}

/// The ports of all `--publish`.
pub fn all_ports(published: Vec<Ports>) -> Vec<PortSpec> {
    published.into_iter().flat_map(|ports| ports.0).collect()
}

/// `NETWORK[:ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS]`.
pub fn network(text: &str) -> Result<(String, Wanted), String> {
    let Some((name, options)) = text.split_once(':') else {
        return Ok((text.to_owned(), Wanted::default()));
    };
    let mut wanted = Wanted::default();
    for option in options.split(',') {
        match option.split_once('=') {
            Some(("ip", address)) => wanted.ipv4 = Some(address4(address)?),
            Some(("ip6", address)) => wanted.ipv6 = Some(address6(address)?),
            Some(("mac", address)) => wanted.mac = Some(mac(address)?),
            _ => return Err(format!("{option:?} is none of ip=…, ip6=…, mac=…")),
        }
    }
    Ok((name.to_owned(), wanted))
}

/// An IPv4 address.
pub fn address4(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an IPv4 address"))
}

/// An IPv6 address.
pub fn address6(text: &str) -> Result<Ipv6Addr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an IPv6 address"))
}

/// A MAC address: six bytes in hexadecimal with colons.
pub fn mac(text: &str) -> Result<[u8; 6], String> {
    let refuse = || format!("{text:?} is not a MAC address such as 02:42:ac:11:00:02");
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect::<Option<_>>()
        .ok_or_else(refuse)?;
    bytes.try_into().map_err(|_| refuse())
}

/// `PORT` or `FIRST-LAST`.
pub fn ports(text: &str) -> Result<(u16, u16), String> {
    match range(text, "port")? {
        (0, _) => Err("port 0 does not exist".to_owned()),
        range => Ok(range),
    }
}

/// `tcp`, `udp` or `icmp`.
pub fn protocol(text: &str) -> Result<PolicyProtocol, String> {
    match text {
        "tcp" => Ok(PolicyProtocol::Tcp),
        "udp" => Ok(PolicyProtocol::Udp),
        "icmp" => Ok(PolicyProtocol::Icmp),
        _ => Err("it is tcp, udp or icmp".to_owned()),
    }
}

/// `SOURCE:TARGET[:ro|:rw]`; a relative source is taken from the working directory.
pub fn volume(text: &str) -> Result<BindMount, String> {
    let fields: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match fields.as_slice() {
        [source, target] | [source, target, "rw"] => (*source, *target, false),
        [source, target, "ro"] => (*source, *target, true),
        [_, _, option] => return Err(format!("option {option:?} is neither ro nor rw")),
        _ => return Err("it is SOURCE:TARGET[:ro]".to_owned()),
    };
    if !source.contains('/') && source != "." && source != ".." {
        return Err(format!("{source:?} is not a path; there are no named volumes: use ./{source}"));
    }
    if !target.starts_with('/') {
        return Err(format!("target {target:?} is not an absolute path"));
    }
    Ok(BindMount {
        source: absolute(Path::new(source))?,
        target: target.to_owned(),
        read_only,
        beneath: None,
    })
}

/// An absolute path as text.
pub fn absolute(path: &Path) -> Result<String, String> {
    let absolute: PathBuf =
        std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    absolute.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
}

/// `KEY=VALUE`, or `KEY` for the value of this process's environment.
pub fn env(text: &str) -> Result<(String, String), String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, value.to_owned()),
        None => (text, std::env::var(text).map_err(|_| format!("{text} is not in this environment"))?),
    };
    if key.is_empty() {
        return Err("the name is empty".to_owned());
    }
    Ok((key.to_owned(), value))
}

/// The lines of an environment file; empty ones and those that begin with # are left out.
pub fn env_file(text: &str) -> Result<Vec<(String, String)>, String> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index, line.trim_start()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| env(line).map_err(|error| format!("line {}: {error}", index + 1)))
        .collect()
}

/// `KEY[=VALUE]`.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.is_empty() { Err("the key is empty".to_owned()) } else { Ok((key.to_owned(), value.to_owned())) }
}

/// `no`, `on-failure[:N]`, `always`, `unless-stopped`.
pub fn restart(text: &str) -> Result<RestartPolicy, String> {
    match text.split_once(':') {
        None => match text {
            "no" => Ok(RestartPolicy::No),
            "on-failure" => Ok(RestartPolicy::OnFailure { retries_max: None }),
            "always" => Ok(RestartPolicy::Always),
            "unless-stopped" => Ok(RestartPolicy::UnlessStopped),
            _ => Err("it is no, on-failure[:N], always or unless-stopped".to_owned()),
        },
        Some(("on-failure", retries)) => retries
            .parse()
            .map(|retries| RestartPolicy::OnFailure { retries_max: Some(retries) })
            .map_err(|_| format!("{retries:?} is not a number of restarts")),
        Some(_) => Err("only on-failure takes a number".to_owned()),
    }
}

/// `UID[:GID]`; the group is the user's number where it is left out.
pub fn user(text: &str) -> Result<(u32, u32), String> {
    let id = |text: &str| {
        text.parse().map_err(|_| {
            format!("{text:?} is not a number; names are the image's: look them up in its /etc/passwd")
        })
    };
    match text.split_once(':') {
        Some((uid, gid)) => Ok((id(uid)?, id(gid)?)),
        None => id(text).map(|uid| (uid, uid)),
    }
}

/// A signal by number or name, with or without SIG.
pub fn signal(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse::<u32>() {
        return if (1..=64).contains(&number) {
            Ok(number)
        } else {
            Err(format!("there is no signal {number}"))
        };
    }
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let signal = Signal::from_str(&name).map_err(|_| format!("there is no signal {text:?}"))?;
    u32::try_from(signal as i32).map_err(|error| error.to_string())
}

/// `ADDRESS/PREFIX` of either family.
pub fn subnet(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, prefix) = text.split_once('/').ok_or("it is ADDRESS/PREFIX")?;
    let address: IpAddr = address.parse().map_err(|_| format!("{address:?} is not an IP address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match prefix.parse() {
        Ok(prefix) if prefix <= most => Ok((address, prefix)),
        _ => Err(format!("prefix {prefix:?} is not a number from 0 to {most}")),
    }
}

/// At most one of each family.
pub fn one_each<T>(
    what: &str,
    given: Vec<T>,
    address: impl Fn(&T) -> IpAddr,
) -> Result<(Option<T>, Option<T>), String> {
    let (mut v4, mut v6) = (None, None);
    for one in given {
        let family = if address(&one).is_ipv4() { "IPv4" } else { "IPv6" };
        let slot = if family == "IPv4" { &mut v4 } else { &mut v6 };
        if slot.replace(one).is_some() {
            return Err(format!("--{what} is given twice for {family}; a network has one of each family"));
        }
    }
    Ok((v4, v6))
}

/// A time (RFC 3339, UTC) or an age such as `90s`, as milliseconds since 1970.
pub fn since(text: &str, now_ms: u64) -> Result<u64, String> {
    let unit = |suffix: char| match suffix {
        's' => Some(1_000),
        'm' => Some(60_000),
        'h' => Some(3_600_000),
        'd' => Some(86_400_000),
        _ => None,
    };
    if let Some(unit) = text.chars().last().and_then(unit)
        && let Ok(count) = text[..text.len() - 1].parse::<u64>()
    {
        return Ok(now_ms.saturating_sub(count.saturating_mul(unit)));
    }
    super::time::parse_rfc3339_ms(text)
        .ok_or_else(|| format!("{text:?} is neither 2026-01-31T12:00:00Z nor an age such as 90s, 5m, 2h"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn ports_of_every_form() {
        let spec = |address: &str, host_port, target_port, protocol| PortSpec {
            host_address: address.parse().unwrap(),
            host_port,
            target_port,
            protocol,
        };
        let port = |text: &str| port(text).map(|ports| ports.0[0]);
        assert_eq!(port("8080:80"), Ok(spec("0.0.0.0", 8080, 80, Protocol::Tcp)));
        assert_eq!(port("8080:80/tcp"), Ok(spec("0.0.0.0", 8080, 80, Protocol::Tcp)));
        assert_eq!(port("127.0.0.1:5353:53/udp"), Ok(spec("127.0.0.1", 5353, 53, Protocol::Udp)));
        assert_eq!(port("80"), Ok(spec("0.0.0.0", 0, 80, Protocol::Tcp)));
        assert_eq!(port("127.0.0.1::80"), Ok(spec("127.0.0.1", 0, 80, Protocol::Tcp)));
        assert_eq!(port(":8080:80"), Ok(spec("0.0.0.0", 8080, 80, Protocol::Tcp)));
    }

    #[test]
    fn ports_that_are_refused_say_why() {
        for (text, why) in [
            ("", "container port"),
            ("80:", "container port"),
            ("0:0", "does not exist"),
            ("65536:80", "host port \"65536\""),
            ("80:80/sctp", "SCTP"),
            ("[::1]:80:80", "IPv6"),
            ("::1:80:80", "IPv6"),
            ("8000-8010:80", "one length"),
            ("8010-8000:80", "ends before"),
            ("0-3:80-83", "begin at host port 0"),
            ("2000-4000:2000-4000", "at most"),
            ("80-:80", "host port"),
            ("300.1.1.1:80:80", "300.1.1.1"),
            ("localhost:80:80", "localhost"),
            ("80:80/", "protocol"),
        ] {
            let error = port(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn ranges_are_ports_one_by_one() {
        let pairs = |text: &str| -> Vec<(u16, u16)> {
            port(text).unwrap().0.iter().map(|spec| (spec.host_port, spec.target_port)).collect()
        };
        assert_eq!(pairs("8000-8002:9000-9002"), [(8000, 9000), (8001, 9001), (8002, 9002)]);
        assert_eq!(pairs("9000-9001"), [(0, 9000), (0, 9001)]);
        assert_eq!(pairs("127.0.0.1:65534-65535:1-2/udp"), [(65_534, 1), (65_535, 2)]);
    }

    #[test]
    fn networks_with_addresses() {
        assert_eq!(network("blue"), Ok(("blue".to_owned(), Wanted::default())));
        let (name, wanted) = network("blue:ip=10.1.2.3,ip6=fd00::3,mac=02:42:00:00:00:0a").unwrap();
        assert_eq!((name.as_str(), wanted.mac), ("blue", Some([2, 0x42, 0, 0, 0, 10])));
        assert_eq!(wanted.ipv4, Some("10.1.2.3".parse().unwrap()));
        assert_eq!(wanted.ipv6, Some("fd00::3".parse().unwrap()));
        for text in ["blue:", "blue:ip=1.2.3", "blue:ip6=10.0.0.1", "blue:mac=02:42", "blue:alias=x"] {
            network(text).expect_err(text);
        }
        for text in ["02:42:0:0:0:1", "02-42-00-00-00-01", "g2:42:00:00:00:01", ""] {
            mac(text).expect_err(text);
        }
        assert!(one_each("subnet", vec![subnet("10.1.0.0/24").unwrap(); 2], |one| one.0).is_err());
    }

    #[test]
    fn volumes() {
        let bind = |text| volume(text).map(|bind| (bind.source, bind.target, bind.read_only));
        assert_eq!(bind("/a:/b"), Ok(("/a".to_owned(), "/b".to_owned(), false)));
        assert_eq!(bind("/a:/b:ro"), Ok(("/a".to_owned(), "/b".to_owned(), true)));
        assert_eq!(bind("/a:/b:rw"), Ok(("/a".to_owned(), "/b".to_owned(), false)));
        let here = std::env::current_dir().unwrap().join("data").display().to_string();
        assert_eq!(bind("./data:/b"), Ok((here, "/b".to_owned(), false)));
        for text in ["data:/b", "/a", "/a:b", "/a:/b:z", "", ":", "/a:/b:ro:x"] {
            volume(text).expect_err(text);
        }
    }

    #[test]
    fn environment() {
        assert_eq!(env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(env("A="), Ok(("A".to_owned(), String::new())));
        assert_eq!(env("PATH").unwrap().1, std::env::var("PATH").unwrap());
        env("=x").expect_err("no name");
        env("HOLDFAST_NOT_SET_ANYWHERE").expect_err("not set");
        let file = "# a comment\n\nA=1\n  B=two words\n";
        assert_eq!(
            env_file(file).unwrap(),
            [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "two words".to_owned())]
        );
        assert!(env_file("A=1\n=2").expect_err("line 2").starts_with("line 2"));
    }

    #[test]
    fn restart_policies() {
        assert_eq!(restart("no"), Ok(RestartPolicy::No));
        assert_eq!(restart("on-failure"), Ok(RestartPolicy::OnFailure { retries_max: None }));
        assert_eq!(restart("on-failure:3"), Ok(RestartPolicy::OnFailure { retries_max: Some(3) }));
        assert_eq!(restart("always"), Ok(RestartPolicy::Always));
        assert_eq!(restart("unless-stopped"), Ok(RestartPolicy::UnlessStopped));
        for text in ["", "never", "always:3", "on-failure:", "on-failure:-1"] {
            restart(text).expect_err(text);
        }
    }

    #[test]
    fn users_signals_subnets() {
        assert_eq!((user("1000"), user("0:5")), (Ok((1000, 1000)), Ok((0, 5))));
        for text in ["root", "1:", ":1", "-1", "4294967296"] {
            user(text).expect_err(text);
        }
        assert_eq!((signal("9"), signal("SIGTERM"), signal("hup")), (Ok(9), Ok(15), Ok(1)));
        for text in ["0", "65", "SIGNOTHING", ""] {
            signal(text).expect_err(text);
        }
        assert_eq!(subnet("10.1.0.0/24"), Ok(("10.1.0.0".parse().unwrap(), 24)));
        assert_eq!(subnet("fd00::/64"), Ok(("fd00::".parse().unwrap(), 64)));
        for text in ["10.1.0.0", "10.1.0.0/33", "10.1/16", "fd00::/129", "fd00::"] {
            subnet(text).expect_err(text);
        }
    }

    #[test]
    fn since_takes_ages_and_times() {
        assert_eq!(since("90s", 100_000), Ok(10_000));
        assert_eq!(since("2h", 1_000), Ok(0));
        assert_eq!(since("1970-01-02T00:00:01Z", 0), Ok(86_401_000));
        for text in ["", "yesterday", "5", "5y", "1970-13-01T00:00:00Z"] {
            since(text, 0).expect_err(text);
        }
    }
}
