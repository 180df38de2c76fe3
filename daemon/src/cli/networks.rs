//! `network`.

use super::{
    Context,
    args::{Addresses, Format, Network, Route},
    client::OPERATION_DEADLINE,
    output, parse, policies, table, time,
};
use crate::api::types::{AddressView, NetworkView, VerifyRequest};
use holdfast_core::{
    alloc_address::Wanted,
    driver::{PortState, ProbeResult, VerifyReport},
    id::Tenant,
    ops::{
        network::DEFAULT_NETWORK,
        request::{ConnectRequest, DisconnectRequest, NetworkRequest},
    },
    spec::NetworkSpec,
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Runs a subcommand.
pub async fn dispatch(context: &Context, network: Network) -> anyhow::Result<u8> {
    match network {
        Network::Create {
            name,
            subnet,
            gateway,
            ip_range,
            // Every network has both families: what is asked for is so.
            ipv6: _,
            internal,
            isolate,
            mtu,
            namespace,
            label,
        } => {
            let (subnet4, subnet6) = one_each("subnet", subnet, |one| one.0)?;
            let (gateway4, gateway6) = one_each("gateway", gateway, |one| *one)?;
            let (range4, range6) = one_each("ip-range", ip_range, |one| one.0)?;
            let spec = NetworkSpec {
                subnet4: subnet4.and_then(v4_prefix),
                subnet6: subnet6.and_then(v6_prefix),
                gateway4: gateway4.and_then(v4),
                gateway6: gateway6.and_then(v6),
                range4: range4.and_then(v4_prefix),
                range6: range6.and_then(v6_prefix),
                internal,
                isolate,
                tenant: namespace.map(Tenant::from_raw),
                mtu_bytes: mtu,
                labels: label.into_iter().collect(),
            };
            let request = NetworkRequest { name, spec };
            let network: NetworkView = output::post(context, &["networks"], &request).await?;
            output::made(context.format, &network, &network.name)
        }
        Network::Ls => list(context).await,
        Network::Inspect { network } => output::inspect(context, &["networks", &network]).await,
        Network::Rm { networks } => output::remove(context, "networks", &networks, false).await,
        Network::Prune => {
            let removed: Vec<String> = output::post(context, &["networks", "prune"], &()).await?;
            output::list(context.format, &removed, |name| name, &["REMOVED"], |name| vec![name.clone()])
        }
        Network::Connect { network, workload, addresses } => {
            let request = ConnectRequest { workload, addresses: wanted(addresses) };
            let path = ["networks", network.as_str(), "connect"];
            let plugged: Vec<AddressView> = output::post(context, &path, &request).await?;
            addresses_of(context, &plugged)
        }
        Network::Disconnect { network, workload } => {
            let request = DisconnectRequest { workload };
            let path = ["networks", network.as_str(), "disconnect"];
            let plugged: Vec<AddressView> = output::post(context, &path, &request).await?;
            addresses_of(context, &plugged)
        }
        Network::Route(route) => {
            let (verb, one, other) = match route {
                Route::Add { one, other } => (hyper::Method::PUT, one, other),
                Route::Rm { one, other } => (hyper::Method::DELETE, one, other),
            };
            let path = ["networks", one.as_str(), "routes", other.as_str()];
            context.client.json::<()>(verb, &path, &[], None::<&()>, OPERATION_DEADLINE).await?;
            Ok(0)
        }
        Network::Why { from, to, port } => policies::why(context, &from, &to, &port).await,
        Network::Verify { all } => verify(context, all).await,
    }
}

fn one_each<T>(
    what: &str,
    given: Vec<T>,
    address: impl Fn(&T) -> IpAddr,
) -> anyhow::Result<(Option<T>, Option<T>)> {
    parse::one_each(what, given, address).map_err(anyhow::Error::msg)
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    }
}

fn v4_prefix((address, prefix): (IpAddr, u8)) -> Option<(Ipv4Addr, u8)> {
    v4(address).map(|address| (address, prefix))
}

fn v6_prefix((address, prefix): (IpAddr, u8)) -> Option<(Ipv6Addr, u8)> {
    v6(address).map(|address| (address, prefix))
}

/// Declared addresses as a request carries them.
pub fn wanted(addresses: Addresses) -> Wanted {
    Wanted { ipv4: addresses.ip, ipv6: addresses.ip6, mac: addresses.mac }
}

/// Networks and their addresses of a command line; `--ip` and its kin are of the only network.
pub fn plugs(
    networks: Vec<(String, Wanted)>,
    addresses: Addresses,
) -> anyhow::Result<(Vec<String>, BTreeMap<String, Wanted>)> {
    let names: Vec<String> = networks.iter().map(|(name, _)| name.clone()).collect();
    let mut declared: BTreeMap<String, Wanted> =
        networks.into_iter().filter(|(_, wanted)| !wanted.is_empty()).collect();
    let wanted = wanted(addresses);
    if !wanted.is_empty() {
        anyhow::ensure!(
            names.len() <= 1 && declared.is_empty(),
            "--ip, --ip6 and --mac are of one network; with several write --network NAME:ip=…,ip6=…,mac=…"
        );
        let name = names.first().map_or(DEFAULT_NETWORK, String::as_str);
        declared.insert(name.to_owned(), wanted);
    }
    Ok((names, declared))
}

fn addresses_of(context: &Context, plugged: &[AddressView]) -> anyhow::Result<u8> {
    let headings = ["NETWORK", "LINK", "IPV4", "IPV6", "MAC"];
    output::list(
        context.format,
        plugged,
        |one| &one.network,
        &headings,
        |one| {
            let address = [one.ipv4.to_string(), one.ipv6.to_string()];
            [vec![one.network.clone(), one.link.clone()], address.to_vec(), vec![one.mac.clone()]].concat()
        },
    )
}

/// `port`: what is published, and whether it is listened on.
pub async fn ports(context: &Context, workload: &str) -> anyhow::Result<u8> {
    let ports: Vec<PortState> = output::get(context, &["ports", workload], &[]).await?;
    let headings = ["HOST", "PORT", "STATE", ""];
    let host = |one: &PortState| format!("{}:{}", one.spec.host_address, one.spec.host_port);
    if context.format == Format::Name {
        ports.iter().for_each(|one| outln!("{}", host(one)));
        return Ok(0);
    }
    output::list(
        context.format,
        &ports,
        |_| "",
        &headings,
        |one| {
            vec![
                host(one),
                format!("{}/{}", one.spec.target_port, one.spec.protocol),
                if one.listening { "listening" } else { "not listening" }.to_owned(),
                one.cause.clone(),
            ]
        },
    )
}

async fn list(context: &Context) -> anyhow::Result<u8> {
    let networks: Vec<NetworkView> = output::get(context, &["networks"], &[]).await?;
    let headings = ["ID", "NAME", "BRIDGE", "IPV4", "IPV6", "INTERNAL", "PLUGGED", "CREATED"];
    output::list(
        context.format,
        &networks,
        |network| &network.name,
        &headings,
        |network| {
            vec![
                network.id.clone(),
                network.name.clone(),
                network.bridge.clone(),
                network.subnet4.clone(),
                network.subnet6.clone(),
                if network.internal { "yes" } else { "no" }.to_owned(),
                network.plugged.len().to_string(),
                time::age(network.created),
            ]
        },
    )
}

/// Exit code when something got through that must not, or did not that should.
const EXIT_DIFFERS: u8 = 1;

/// `network verify`: what the records allow, beside what packets did.
async fn verify(context: &Context, all: bool) -> anyhow::Result<u8> {
    // Many pairs at up to a second each.
    let deadline = std::time::Duration::from_secs(if all { 24 * 3600 } else { 300 });
    let request = VerifyRequest { all };
    let report: VerifyReport = context
        .client
        .json(hyper::Method::POST, &["networks", "verify"], &[], Some(&request), deadline)
        .await?;
    let differing = report.differing().count();
    match context.format {
        Format::Json => output::json(&report)?,
        Format::Name => report.differing().for_each(|one| outln!("{}->{}", one.from, one.to)),
        Format::Table => {
            out!(
                "{}",
                table::render(&["FROM", "TO", "ADDRESS", "ASKED", "ALLOWED", "REACHED", ""], &rows(&report))
            );
            outln!("{} of {} pairs tried, {differing} differ", report.results.len(), report.pairs);
        }
    }
    Ok(if differing == 0 { 0 } else { EXIT_DIFFERS })
}

fn rows(report: &VerifyReport) -> Vec<Vec<String>> {
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let row = |one: &ProbeResult| {
        let verdict = match one.reached {
            Some(reached) if reached == one.allowed => String::new(),
            Some(true) => "NOT ISOLATED".to_owned(),
            Some(false) => "NOT REACHED".to_owned(),
            None => format!("not tried: {}", one.cause),
        };
        vec![
            one.from.clone(),
            one.to.clone(),
            one.address.to_string(),
            one.what.clone(),
            word(one.allowed),
            one.reached.map(word).unwrap_or_default(),
            verdict,
        ]
    };
    report.results.iter().map(row).collect()
}
