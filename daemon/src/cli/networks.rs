//! `network`.

use super::{
    Context,
    args::{Format, Network},
    output, table, time,
};
use crate::api::types::{NetworkView, VerifyRequest};
use holdfast_core::{
    driver::{ProbeResult, VerifyReport},
    ops::request::NetworkRequest,
    spec::NetworkSpec,
};

/// Runs a subcommand.
pub async fn dispatch(context: &Context, network: Network) -> anyhow::Result<u8> {
    match network {
        Network::Create { name, subnet, internal, mtu, label } => {
            let spec = NetworkSpec {
                subnet4: subnet,
                internal,
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
        Network::Verify { all } => verify(context, all).await,
    }
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
            out!("{}", table::render(&["FROM", "TO", "ADDRESS", "ALLOWED", "REACHED", ""], &rows(&report)));
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
            word(one.allowed),
            one.reached.map(word).unwrap_or_default(),
            verdict,
        ]
    };
    report.results.iter().map(row).collect()
}
