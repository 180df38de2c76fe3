//! `policy`, and `network why`.

use super::{
    Context, EXIT_REFUSED,
    args::{Format, Policy, Side},
    client::OPERATION_DEADLINE,
    output, table, time,
};
use crate::api::policies::PolicyView;
use anyhow::{Context as _, bail};
use holdfast_core::{
    driver::Explained,
    ops::request::PolicyRequest,
    policy::{PolicyAction, PolicyProtocol, PortMatch},
};
use std::{io::Read, path::Path};

/// The largest policy document, in bytes.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// Runs a subcommand.
pub async fn dispatch(context: &Context, policy: Policy) -> anyhow::Result<u8> {
    match policy {
        Policy::Allow(rule) => create(context, PolicyAction::Allow, rule.into()).await,
        Policy::Deny(rule) => create(context, PolicyAction::Deny, rule.into()).await,
        Policy::Default { side, of, name } => {
            let (action, from, to) = match side {
                Side::Ingress => (PolicyAction::CloseIngress, Vec::new(), of),
                Side::Egress => (PolicyAction::CloseEgress, of, Vec::new()),
            };
            let request = PolicyRequest { name, action, from, to, ports: Vec::new() };
            create(context, action, request).await
        }
        Policy::Ls { stats } => list(context, stats).await,
        Policy::Rm { policies } => output::remove(context, "policies", &policies, false).await,
        Policy::Apply { file } => apply(context, &file).await,
    }
}

async fn create(context: &Context, action: PolicyAction, request: PolicyRequest) -> anyhow::Result<u8> {
    let request = PolicyRequest { action, ..request };
    let made: Vec<PolicyView> = output::post(context, &["policies"], &request).await?;
    let name = made.first().map(|one| one.record.name.clone()).unwrap_or_default();
    output::made(context.format, &made, &name)
}

/// `--proto` and `--port` as rules have them.
pub fn ports(protocol: Option<PolicyProtocol>, ports: &[(u16, u16)]) -> Vec<PortMatch> {
    match (protocol, ports) {
        (None, []) => Vec::new(),
        (protocol, []) => vec![PortMatch { protocol, ports: None }],
        (protocol, ports) => ports
            .iter()
            .map(|range| PortMatch { protocol: protocol.or(Some(PolicyProtocol::Tcp)), ports: Some(*range) })
            .collect(),
    }
}

async fn apply(context: &Context, file: &Path) -> anyhow::Result<u8> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(DOCUMENT_BYTES_MAX + 1).read_to_string(&mut text)?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("read {}", file.display()))?;
        opened.take(DOCUMENT_BYTES_MAX + 1).read_to_string(&mut text)?;
    }
    if text.len() as u64 > DOCUMENT_BYTES_MAX {
        bail!("{} is larger than {DOCUMENT_BYTES_MAX} bytes", file.display());
    }
    let documents = documents(&text).with_context(|| format!("{} is no YAML", file.display()))?;
    if documents.is_empty() {
        bail!("{} holds no document", file.display());
    }
    let mut made = Vec::new();
    for document in &documents {
        let rules: Vec<PolicyView> = output::post(context, &["policies", "apply"], document).await?;
        made.extend(rules);
    }
    output::list(
        context.format,
        &made,
        |one| &one.record.name,
        &["NAME", "ACTION"],
        |one| vec![one.record.name.clone(), one.record.action.to_string()],
    )
}

/// The documents of a YAML stream, empty ones left out.
pub fn documents(text: &str) -> anyhow::Result<Vec<serde_json::Value>> {
    use serde::Deserialize;
    let mut documents = Vec::new();
    for document in serde_norway::Deserializer::from_str(text) {
        let value = serde_json::Value::deserialize(document)?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(documents)
}

async fn list(context: &Context, stats: bool) -> anyhow::Result<u8> {
    let query = [("stats", stats.to_string())];
    let policies: Vec<PolicyView> = output::get(context, &["policies"], &query).await?;
    let mut headings = vec!["NAME", "ACTION", "WHO", "WHAT", "CREATED"];
    if stats {
        headings.extend(["PACKETS", "BYTES"]);
    }
    output::list(
        context.format,
        &policies,
        |one| &one.record.name,
        &headings,
        |one| {
            let record = &one.record;
            let what = record.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let what = if what.is_empty() { "any".to_owned() } else { what };
            let mut row = vec![
                record.name.clone(),
                record.action.to_string(),
                record.summary.clone(),
                what,
                time::age(record.created),
            ];
            row.extend(one.counter.iter().flat_map(|it| [it.packets.to_string(), it.bytes.to_string()]));
            row
        },
    )
}

/// `network why`: exit code 0 when it passes, 1 when it does not.
pub async fn why(context: &Context, from: &str, to: &str, port: &str) -> anyhow::Result<u8> {
    let (port, protocol) = parse_port(port).map_err(anyhow::Error::msg)?;
    let query = [
        ("from", from.to_owned()),
        ("to", to.to_owned()),
        ("protocol", protocol.numbers()[0].to_string()),
        ("port", port.to_string()),
    ];
    let explained: Vec<Explained> =
        context.client.json(hyper::Method::GET, &["why"], &query, None::<&()>, OPERATION_DEADLINE).await?;
    match context.format {
        Format::Json => output::json(&explained)?,
        Format::Name => explained.iter().for_each(|one| outln!("{}", one.decision.reason)),
        Format::Table => {
            let word =
                |one: &Explained| if one.decision.allowed { "passes" } else { "is stopped" }.to_owned();
            let row = |one: &Explained| {
                vec![one.from.clone(), one.to.to_string(), word(one), one.decision.reason.to_string()]
            };
            let rows: Vec<Vec<String>> = explained.iter().map(row).collect();
            out!("{}", table::render(&["FROM", "TO", "", "BECAUSE"], &rows));
        }
    }
    Ok(if explained.iter().all(|one| one.decision.allowed) { 0 } else { EXIT_STOPPED })
}

/// Exit code of a flow that does not pass.
const EXIT_STOPPED: u8 = 1;
const _: () = assert!(EXIT_STOPPED != EXIT_REFUSED);

/// `PORT`, `PORT/tcp`, `PORT/udp` or `icmp`.
pub fn parse_port(text: &str) -> Result<(u16, PolicyProtocol), String> {
    if text == "icmp" {
        return Ok((0, PolicyProtocol::Icmp));
    }
    let (port, protocol) = match text.split_once('/') {
        None => (text, PolicyProtocol::Tcp),
        Some((port, "tcp")) => (port, PolicyProtocol::Tcp),
        Some((port, "udp")) => (port, PolicyProtocol::Udp),
        Some((_, other)) => return Err(format!("protocol {other:?} is neither tcp nor udp")),
    };
    let port = port.parse().map_err(|_| format!("{port:?} is no port; give 80, 53/udp or icmp"))?;
    Ok((port, protocol))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn yaml_becomes_documents() {
        let text = "---\napiVersion: v1\nspec:\n  ports: [80, 81]\n---\n---\nkind: x\n";
        let documents = documents(text).unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0]["spec"]["ports"][1], 81);
        for text in ["a: [", "\tx: 1", "a: *nobody", "&a [*a]"] {
            assert!(super::documents(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ports_of_every_form() {
        assert_eq!(parse_port("80"), Ok((80, PolicyProtocol::Tcp)));
        assert_eq!(parse_port("53/udp"), Ok((53, PolicyProtocol::Udp)));
        assert_eq!(parse_port("icmp"), Ok((0, PolicyProtocol::Icmp)));
        for text in ["", "x", "80/sctp", "65536"] {
            parse_port(text).expect_err(text);
        }
        assert_eq!(ports(None, &[]), []);
        assert_eq!(ports(None, &[(80, 90)])[0].protocol, Some(PolicyProtocol::Tcp));
    }
}
