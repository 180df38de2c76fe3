//! `network`.

use super::{Context, args::{Format, Network}, output, time};
use crate::api::types::{NetworkView, VerifyRequest};
use holdfast_core::{ops::request::NetworkRequest, spec::NetworkSpec};

/// Runs a subcommand.
pub async fn dispatch(context: &Context, network: Network) -> anyhow::Result<u8> {
    match network {
        Network::Create { name, subnet, internal, mtu, label } => {
            let spec =
                NetworkSpec { subnet4: subnet, internal, mtu_bytes: mtu, labels: label.into_iter().collect() };
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
    output::list(context.format, &networks, |network| &network.name, &headings, |network| {
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
    })
}
