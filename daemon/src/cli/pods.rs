//! `pod`.

use super::{Context, args::Pod, networks, output, parse, time};
use crate::api::types::PodView;
use holdfast_core::ops::request::PodRequest;

/// Runs a subcommand.
pub async fn dispatch(context: &Context, pod: Pod) -> anyhow::Result<u8> {
    match pod {
        Pod::Create { name, network, addresses, namespace, publish, hostname, names, label } => {
            let (networks, addresses) = networks::plugs(network, addresses)?;
            let (aliases, dns) = names.spec();
            let request = PodRequest {
                name,
                tenant: namespace,
                networks,
                addresses,
                ports: parse::all_ports(publish),
                hostname,
                labels: label.into_iter().collect(),
                aliases,
                dns,
            };
            let pod: PodView = output::post(context, &["pods"], &request).await?;
            output::made(context.format, &pod, &pod.id)
        }
        Pod::Ls => list(context).await,
        Pod::Inspect { pod } => output::inspect(context, &["pods", &pod]).await,
        Pod::Rm { pods, force } => output::remove(context, "pods", &pods, force).await,
    }
}

async fn list(context: &Context) -> anyhow::Result<u8> {
    let pods: Vec<PodView> = output::get(context, &["pods"], &[]).await?;
    let headings = ["ID", "NAME", "TENANT", "MEMBERS", "ADDRESS", "PORTS", "LAST CURE", "CREATED"];
    output::list(
        context.format,
        &pods,
        |pod| &pod.name,
        &headings,
        |pod| {
            let members = pod.members.iter().map(|(name, state)| format!("{name} ({state})"));
            vec![
                pod.id.clone(),
                pod.name.clone(),
                pod.tenant.clone(),
                members.collect::<Vec<_>>().join(", "),
                pod.addresses.iter().map(|address| address.ipv4.to_string()).collect::<Vec<_>>().join(","),
                pod.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                pod.last_cure.map(|cure| cure.to_string()).unwrap_or_default(),
                time::age(pod.created),
            ]
        },
    )
}
