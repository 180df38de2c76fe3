//! `InterLinkConfig.yaml`, as the Docker plugin reads it, with what is Holdfast's own under `Holdfast:`.

use anyhow::{Context, bail};
use holdfast_core::{interlink::translate::UnenforcedLimit, time::Span};
use holdfast_linux::paths::Paths;
use serde::Deserialize;
use serde_norway::Value;
use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

/// Names the file; the classic plugins' variable.
const PATH_VARIABLE: &str = "INTERLINKCONFIGPATH";
/// Where the classic plugins look.
const PATH_CLASSIC: &str = "/etc/interlink/InterLinkConfig.yaml";
/// Keys of the classic plugins that mean nothing to this one.
const CLASSIC_KEYS: &[&str] = &[
    "InterlinkURL",
    "InterlinkPort",
    "SidecarURL",
    "CommandPrefix",
    "ExportPodData",
    "DataRootFolder",
    "BashPath",
    "VerboseLogging",
    "ErrorsOnlyLogging",
    "PodIP",
    "ServiceAccount",
    "Namespace",
    "Tsocks",
    "TsocksPath",
    "TsocksLoginNode",
    "SbatchPath",
    "ScancelPath",
    "SqueuePath",
    "SingularityPrefix",
    "ImagePrefix",
];

/// The plugin's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A socket besides the node's own.
    pub socket: Option<PathBuf>,
    /// A TCP port.
    pub port: Option<u16>,
    /// The address it is on.
    pub address: IpAddr,
    /// What is done with limits that cannot be enforced.
    pub limits: UnenforcedLimit,
    /// How long logs of deleted pods, and the memory of them, are kept.
    pub keep: Span,
    /// Told instead of what the machine has: cpu, memory, pods.
    pub told: [Option<String>; 3],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: None,
            port: None,
            address: IpAddr::from([127, 0, 0, 1]),
            limits: UnenforcedLimit::Note,
            keep: Span::from_secs(3_600),
            told: [None, None, None],
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Classic {
    socket: Option<String>,
    sidecar_port: Option<Value>,
    holdfast: Own,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Own {
    listen_address: Option<IpAddr>,
    unenforced_limits: Option<String>,
    keep_deleted_seconds: Option<u64>,
    #[serde(rename = "CPU")]
    cpu: Option<String>,
    memory: Option<String>,
    pods: Option<u64>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

impl Config {
    /// Reads the file that the environment names, else the one in the node's state directory, else the classic
    /// plugins'; the defaults where there is none. Warnings are for the log.
    ///
    /// # Errors
    /// A file that the environment names and that cannot be read, and one that makes no sense.
    pub fn load(paths: &Paths) -> anyhow::Result<(Self, Vec<String>)> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let named = variable(PATH_VARIABLE).map(PathBuf::from);
        let candidates =
            [named.clone(), Some(paths.state.join("InterLinkConfig.yaml")), Some(PATH_CLASSIC.into())];
        let Some(path) =
            candidates.into_iter().flatten().find(|path| named.as_ref() == Some(path) || path.exists())
        else {
            return Self::parse("{}", &variable);
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text, &variable).with_context(|| format!("in {}", path.display()))
    }

    /// As read from a text; the environment wins.
    fn parse(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<(Self, Vec<String>)> {
        let classic: Option<Classic> = serde_norway::from_str(text)?;
        let classic = classic.unwrap_or_default();
        let mut warnings = Vec::new();
        for key in classic.rest.keys().filter(|key| !CLASSIC_KEYS.contains(&key.as_str())) {
            warnings.push(format!(
                "{key} is no key of InterLinkConfig.yaml that this plugin knows; it is ignored"
            ));
        }
        for key in classic.holdfast.rest.keys() {
            warnings.push(format!("Holdfast.{key} is no key that this plugin knows; it is ignored"));
        }
        let default = Self::default();
        let address = classic.holdfast.listen_address.unwrap_or(default.address);
        let mut config = Self { address, ..default };
        let socket = variable("SOCKET").or(classic.socket).filter(|socket| !socket.is_empty());
        if let Some(socket) = socket {
            let Some(path) = socket.strip_prefix("unix://").filter(|path| path.starts_with('/')) else {
                bail!("Socket {socket:?} is not unix:///absolute/path");
            };
            config.socket = Some(PathBuf::from(path));
        }
        let port = variable("SIDECARPORT").or_else(|| match classic.sidecar_port {
            Some(Value::Number(number)) => Some(number.to_string()),
            Some(Value::String(text)) => Some(text),
            _ => None,
        });
        if let Some(port) = port.filter(|port| !port.is_empty() && port != "0")
            // As in the classic plugins: where there is a socket, there is no port.
            && config.socket.is_none()
        {
            config.port = Some(port.parse().with_context(|| format!("SidecarPort {port:?} is no port"))?);
        }
        if !config.address.is_loopback() && config.port.is_some() {
            bail!(
                "ListenAddress {} is not loopback: whoever reaches it could run pods; leave it out, or put a proxy with TLS before the socket",
                config.address
            );
        }
        config.limits = match classic.holdfast.unenforced_limits.as_deref() {
            None | Some("note") => UnenforcedLimit::Note,
            Some("refuse") => UnenforcedLimit::Refuse,
            Some(other) => bail!("Holdfast.UnenforcedLimits {other:?} is neither note nor refuse"),
        };
        if let Some(seconds) = classic.holdfast.keep_deleted_seconds {
            config.keep = Span::from_secs(seconds);
        }
        let pods = classic.holdfast.pods.map(|pods| pods.to_string());
        config.told = [classic.holdfast.cpu, classic.holdfast.memory, pods];
        Ok((config, warnings))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> anyhow::Result<(Config, Vec<String>)> {
        Config::parse(text, &|_| None)
    }

    #[test]
    fn a_docker_plugins_file_is_read() {
        let text = "InterlinkURL: \"http://interlink\"\nInterlinkPort: \"3000\"\nSidecarURL: \"http://0.0.0.0\"\n\
            SidecarPort: \"4000\"\nCommandPrefix: \"\"\nExportPodData: true\nDataRootFolder: \".local/interlink/jobs/\"\n\
            BashPath: /bin/bash\nVerboseLogging: true\nErrorsOnlyLogging: false\n";
        let (config, warnings) = parse(text).unwrap();
        assert_eq!(config, Config { port: Some(4000), ..Config::default() });
        assert!(config.address.is_loopback() && warnings.is_empty(), "{warnings:?}");
        let (config, _) =
            Config::parse(text, &|name| (name == "SIDECARPORT").then(|| "4001".to_owned())).unwrap();
        assert_eq!(config.port, Some(4001), "the environment wins");
        let (config, _) = parse("Socket: unix:///run/x/plugin.sock\nSidecarPort: 4000").unwrap();
        assert_eq!((config.socket, config.port), (Some("/run/x/plugin.sock".into()), None));
        assert_eq!(parse("").unwrap().0, Config::default());
    }

    #[test]
    fn unknown_keys_are_named_and_nonsense_is_refused() {
        let (_, warnings) = parse("Colour: red\nHoldfast: {Flavour: sour}").unwrap();
        assert!(warnings[0].contains("Colour") && warnings[1].contains("Holdfast.Flavour"), "{warnings:?}");
        for (text, why) in [
            ("Socket: /run/x", "unix:///"),
            ("SidecarPort: high", "no port"),
            ("Holdfast: {UnenforcedLimits: perhaps}", "neither"),
            ("SidecarPort: 4000\nHoldfast: {ListenAddress: 0.0.0.0}", "not loopback"),
            ("- a", "invalid type"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_holdfasts_own_is_read() {
        let text =
            "Holdfast: {UnenforcedLimits: refuse, KeepDeletedSeconds: 2, CPU: '8', Memory: 16Gi, Pods: 64}";
        let (config, warnings) = parse(text).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((config.limits, config.keep), (UnenforcedLimit::Refuse, Span::from_secs(2)));
        assert_eq!(config.told, [Some("8".into()), Some("16Gi".into()), Some("64".into())]);
    }
}
