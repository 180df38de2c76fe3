//! The command line.

use super::parse;
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast_core::{
    alloc_address::Wanted,
    policy::PolicyProtocol,
    spec::{BindMount, DnsSpec, RestartPolicy},
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

/// A rootless node whose workloads outlive it.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// State directory of the node; each has its own daemon [default: $XDG_STATE_HOME/holdfast]
    #[arg(long, global = true, env = "HOLDFAST_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people
    Table,
    /// What the API answered
    Json,
    /// One name per line
    Name,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring the node up: whatever is missing is started, mended or recovered, by the mildest cure
    Up,
    /// Take the node down until the next `up`
    Down {
        /// Leave containers running; the next `up` plugs them in again
        #[arg(long)]
        keep_workloads: bool,
    },
    /// Tell what every process, network and workload of the node really is
    Status,
    /// Check what this machine offers, each with its remedy
    Doctor,
    /// Create a container and start it
    Run(Box<Run>),
    /// List containers
    Ps {
        /// Also those that do not run
        #[arg(short, long)]
        all: bool,
        /// Identities only
        #[arg(short, long)]
        quiet: bool,
        /// Only those of this tenant
        #[arg(long, value_name = "TENANT")]
        namespace: Option<String>,
        /// Only those with this label
        #[arg(long, value_name = "KEY[=VALUE]")]
        label: Vec<String>,
    },
    /// Show everything that is recorded of a container
    Inspect {
        /// Name, identity or the start of an identity
        container: String,
    },
    /// Show the output of a container
    Logs {
        /// Name or identity
        container: String,
        /// Go on until the container ends
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines
        #[arg(long, value_name = "LINES")]
        tail: Option<u64>,
        /// Only what is younger: a time (RFC 3339) or an age such as 90s, 5m, 2h
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Begin each line with its time
        #[arg(short, long)]
        timestamps: bool,
    },
    /// Run a command in a running container
    Exec(Exec),
    /// Stop containers; they stay stopped
    Stop {
        /// Names or identities
        #[arg(required = true)]
        containers: Vec<String>,
        /// Wait before they are killed, in seconds
        #[arg(short, long, value_name = "SECONDS")]
        time: Option<u32>,
    },
    /// Start stopped containers
    Start {
        /// Names or identities
        #[arg(required = true)]
        containers: Vec<String>,
    },
    /// Stop containers and start them again, at the same addresses
    Restart {
        /// Names or identities
        #[arg(required = true)]
        containers: Vec<String>,
        /// Wait before they are killed, in seconds
        #[arg(short, long, value_name = "SECONDS")]
        time: Option<u32>,
    },
    /// Remove containers
    Rm {
        /// Names or identities
        #[arg(required = true)]
        containers: Vec<String>,
        /// Also when they run: they are killed
        #[arg(short, long)]
        force: bool,
    },
    /// Wait until containers have ended and print their exit codes
    Wait {
        /// Names or identities
        #[arg(required = true)]
        containers: Vec<String>,
    },
    /// Pods: containers that share network, IPC and host name
    #[command(subcommand)]
    Pod(Pod),
    /// Networks
    #[command(subcommand)]
    Network(Network),
    /// Policies: who may talk to whom
    #[command(subcommand)]
    Policy(Policy),
    /// List published ports, and whether each is really listened on
    Port {
        /// Container or pod
        workload: String,
    },
    /// Images
    #[command(subcommand)]
    Image(Image),
    /// Run the node's daemon in the foreground
    Daemon {
        /// Log to the file alone: started by a command that has gone on
        #[arg(long, hide = true)]
        detached: bool,
    },
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

/// `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Do not wait: print the identity and come back
    #[arg(short, long)]
    pub detach: bool,
    /// Remove it when it has ended
    #[arg(long)]
    pub rm: bool,
    /// Name
    #[arg(long)]
    pub name: Option<String>,
    /// Pod to join
    #[arg(long, conflicts_with_all = ["network", "publish", "hostname", "ip", "ip6", "mac", "network_alias", "dns", "dns_search", "dns_option"])]
    pub pod: Option<String>,
    /// Network to plug it into, with or without addresses; repeated for more
    #[arg(long, value_name = "NETWORK[:ip=…,ip6=…,mac=…]", value_parser = parse::network)]
    pub network: Vec<(String, Wanted)>,
    /// Addresses on its only network
    #[command(flatten)]
    pub addresses: Addresses,
    /// Tenant; tenants cannot reach one another
    #[arg(long, value_name = "TENANT")]
    pub namespace: Option<String>,
    /// Publish a port or a range: [[HOSTADDR:]HOSTPORT[-LAST]:]PORT[-LAST][/tcp|/udp]
    #[arg(short, long, value_name = "PORT", value_parser = parse::port)]
    pub publish: Vec<parse::Ports>,
    /// Bind a host path: SOURCE:TARGET[:ro]
    #[arg(short, long, value_name = "VOLUME", value_parser = parse::volume)]
    pub volume: Vec<BindMount>,
    /// Environment: KEY=VALUE, or KEY to take this shell's
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse::env)]
    pub env: Vec<(String, String)>,
    /// File with KEY=VALUE lines
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// When to start it again: no, on-failure[:N], always, unless-stopped
    #[arg(long, value_name = "POLICY", value_parser = parse::restart, default_value = "no")]
    pub restart: RestartPolicy,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Numeric user and group
    #[arg(short, long, value_name = "UID[:GID]", value_parser = parse::user)]
    pub user: Option<(u32, u32)>,
    /// Host name
    #[arg(long)]
    pub hostname: Option<String>,
    /// Names
    #[command(flatten)]
    pub names: Names,
    /// Replace the image's entry point
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,
    /// Label
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse::label)]
    pub label: Vec<(String, String)>,
    /// Signal that asks it to end
    #[arg(long, value_name = "SIGNAL", value_parser = parse::signal)]
    pub stop_signal: Option<u32>,
    /// Wait before it is killed, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub stop_timeout: Option<u32>,
    /// Use a directory as the root, under a layer of the container's own; every argument is then the command
    #[arg(long, value_name = "DIR")]
    pub rootfs: Option<PathBuf>,
    /// Image; with --rootfs the command
    pub image: Option<String>,
    /// Command and arguments, passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// What a workload is called, and how it looks names up.
#[derive(Clone, Debug, Default, Args)]
pub struct Names {
    /// Name that it answers to besides its own; repeated for more
    #[arg(long, value_name = "NAME")]
    pub network_alias: Vec<String>,
    /// Name server that the node asks for it, in place of the host's; repeated for more
    #[arg(long, value_name = "ADDRESS")]
    pub dns: Vec<IpAddr>,
    /// Domain to search, in place of its networks' and the host's; "." searches none
    #[arg(long, value_name = "DOMAIN")]
    pub dns_search: Vec<String>,
    /// Option of its resolver, such as ndots:2
    #[arg(long, value_name = "OPTION")]
    pub dns_option: Vec<String>,
}

impl Names {
    /// Aliases, and the rest as a spec.
    pub fn spec(self) -> (Vec<String>, DnsSpec) {
        let named = !self.dns_search.is_empty();
        let search: Vec<String> = self.dns_search.into_iter().filter(|domain| domain != ".").collect();
        let dns = DnsSpec {
            servers: self.dns,
            search: named.then_some(search),
            options: self.dns_option,
            ..DnsSpec::default()
        };
        (self.network_alias, dns)
    }
}

/// `exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// Pass standard input on
    #[arg(short, long)]
    pub interactive: bool,
    /// Give it a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Environment: KEY=VALUE, or KEY to take this shell's
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse::env)]
    pub env: Vec<(String, String)>,
    /// Working directory
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Numeric user and group
    #[arg(short, long, value_name = "UID[:GID]", value_parser = parse::user)]
    pub user: Option<(u32, u32)>,
    /// Name or identity
    pub container: String,
    /// Command and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub command: Vec<String>,
}

/// `pod`.
#[derive(Debug, Subcommand)]
pub enum Pod {
    /// Create a pod
    Create {
        /// Name
        name: String,
        /// Network to plug it into, with or without addresses; repeated for more
        #[arg(long, value_name = "NETWORK[:ip=…,ip6=…,mac=…]", value_parser = parse::network)]
        network: Vec<(String, Wanted)>,
        /// Addresses on its only network
        #[command(flatten)]
        addresses: Addresses,
        /// Tenant; tenants cannot reach one another
        #[arg(long, value_name = "TENANT")]
        namespace: Option<String>,
        /// Publish a port or a range: [[HOSTADDR:]HOSTPORT[-LAST]:]PORT[-LAST][/tcp|/udp]
        #[arg(short, long, value_name = "PORT", value_parser = parse::port)]
        publish: Vec<parse::Ports>,
        /// Host name
        #[arg(long)]
        hostname: Option<String>,
        /// Names
        #[command(flatten)]
        names: Box<Names>,
        /// Label
        #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse::label)]
        label: Vec<(String, String)>,
    },
    /// List pods
    Ls,
    /// Show everything that is recorded of a pod
    Inspect {
        /// Name or identity
        pod: String,
    },
    /// Remove pods
    Rm {
        /// Names or identities
        #[arg(required = true)]
        pods: Vec<String>,
        /// Also with members: they are killed and removed
        #[arg(short, long)]
        force: bool,
    },
}

/// `network`.
#[derive(Debug, Subcommand)]
pub enum Network {
    /// Create a network
    Create {
        /// Name
        name: String,
        /// Subnet, one of each family; free ones are taken otherwise
        #[arg(long, value_name = "ADDRESS/PREFIX", value_parser = parse::subnet)]
        subnet: Vec<(IpAddr, u8)>,
        /// The bridge's address, one of each family; the subnet's first otherwise
        #[arg(long, value_name = "ADDRESS")]
        gateway: Vec<IpAddr>,
        /// Where addresses that nobody declares come from, one of each family; the whole subnet otherwise
        #[arg(long, value_name = "ADDRESS/PREFIX", value_parser = parse::subnet)]
        ip_range: Vec<(IpAddr, u8)>,
        /// With IPv6, which every network has
        #[arg(long)]
        ipv6: bool,
        /// Without a way out
        #[arg(long)]
        internal: bool,
        /// Never routed to another network
        #[arg(long)]
        isolate: bool,
        /// Largest packet, in bytes
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u32>,
        /// The only tenant that may use it
        #[arg(long, value_name = "TENANT")]
        namespace: Option<String>,
        /// Label
        #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = parse::label)]
        label: Vec<(String, String)>,
    },
    /// List networks
    Ls,
    /// Show everything that is recorded of a network
    Inspect {
        /// Name or identity
        network: String,
    },
    /// Remove networks
    Rm {
        /// Names or identities
        #[arg(required = true)]
        networks: Vec<String>,
    },
    /// Remove networks that nobody uses
    Prune,
    /// Plug a container or a pod into one more network, while it runs
    Connect {
        /// Network
        network: String,
        /// Container or pod
        workload: String,
        /// Its addresses there
        #[command(flatten)]
        addresses: Addresses,
    },
    /// Unplug a container or a pod from a network, while it runs
    Disconnect {
        /// Network
        network: String,
        /// Container or pod
        workload: String,
    },
    /// Routes between networks: each tenant reaches its own workloads over both
    #[command(subcommand)]
    Route(Route),
    /// Tell whether a flow passes and which rule decides
    Why {
        /// Workload or address that sends
        from: String,
        /// Workload or address that receives
        to: String,
        /// Port at the receiver: 80, 53/udp or icmp
        port: String,
    },
    /// Prove isolation by sending packets between workloads
    Verify {
        /// Every pair, not a sample
        #[arg(long)]
        all: bool,
    },
}

/// `policy`.
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Let flows through, against defaults and isolation
    Allow(Rule),
    /// Stop flows, whatever else allows them
    Deny(Rule),
    /// Close workloads in a direction: only what a rule allows passes
    Default {
        /// In which direction
        side: Side,
        /// Whom: as --from and --to of `allow`
        #[arg(required = true)]
        of: Vec<String>,
        /// Name
        #[arg(long)]
        name: Option<String>,
    },
    /// List rules
    Ls {
        /// With packets and bytes that each decided on
        #[arg(long)]
        stats: bool,
    },
    /// Remove rules, or documents
    Rm {
        /// Names or identities
        #[arg(required = true)]
        policies: Vec<String>,
    },
    /// Apply Kubernetes NetworkPolicy documents; one that was applied before is replaced
    Apply {
        /// YAML or JSON; - is standard input
        #[arg(short, long)]
        file: PathBuf,
    },
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// What comes in
    Ingress,
    /// What goes out
    Egress,
}

/// `policy allow`, `policy deny`.
#[derive(Debug, Args)]
pub struct Rule {
    /// Who sends: NAME, CIDR, label:KEY[=VALUE], namespace:NAME, network:NAME, any; commas for all at once
    #[arg(long, value_name = "WHO", default_value = "any")]
    pub from: Vec<String>,
    /// Who receives
    #[arg(long, value_name = "WHO", default_value = "any")]
    pub to: Vec<String>,
    /// tcp, udp or icmp
    #[arg(long, value_name = "PROTOCOL", value_parser = parse::protocol)]
    pub proto: Option<PolicyProtocol>,
    /// Port or range at the receiver; of tcp if --proto is left out
    #[arg(long, value_name = "PORT[-LAST]", value_parser = parse::ports)]
    pub port: Vec<(u16, u16)>,
    /// Name
    #[arg(long)]
    pub name: Option<String>,
}

impl From<Rule> for holdfast_core::ops::request::PolicyRequest {
    fn from(rule: Rule) -> Self {
        Self {
            name: rule.name,
            action: holdfast_core::policy::PolicyAction::Deny,
            ports: super::policies::ports(rule.proto, &rule.port),
            from: rule.from,
            to: rule.to,
        }
    }
}

/// `network route`.
#[derive(Debug, Subcommand)]
pub enum Route {
    /// Route two networks to one another
    Add {
        /// One network
        one: String,
        /// The other
        other: String,
    },
    /// Take that back
    Rm {
        /// One network
        one: String,
        /// The other
        other: String,
    },
}

/// Declared addresses.
#[derive(Clone, Copy, Debug, Args)]
pub struct Addresses {
    /// IPv4 address
    #[arg(long, value_name = "ADDRESS", value_parser = parse::address4)]
    pub ip: Option<Ipv4Addr>,
    /// IPv6 address
    #[arg(long, value_name = "ADDRESS", value_parser = parse::address6)]
    pub ip6: Option<Ipv6Addr>,
    /// MAC address
    #[arg(long, value_name = "ADDRESS", value_parser = parse::mac)]
    pub mac: Option<[u8; 6]>,
}

/// `image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Load a docker-archive or a tar of a root file system
    Load {
        /// The file; - is standard input
        file: PathBuf,
        /// Name for a tar of a root file system, or one more name for an archive
        #[arg(long, value_name = "NAME[:TAG]")]
        name: Option<String>,
    },
    /// List images
    Ls,
    /// Remove images
    Rm {
        /// Names or identities
        #[arg(required = true)]
        images: Vec<String>,
    },
}
