//! A router with workloads on it.

use holdfast_core::{
    id::{NetworkId, SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Element, Ruleset},
};
use holdfast_linux::{net::RouterHands, paths::Paths};
use std::{
    collections::BTreeSet,
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    process::Command,
};

/// The hands, ready, with an empty ruleset and two networks.
pub struct Node {
    pub runtime: tokio::runtime::Runtime,
    pub paths: Paths,
    pub hands: RouterHands,
}

/// A sandbox with one attachment.
#[derive(Clone, Debug)]
pub struct Workload {
    pub plan: AttachmentPlan,
    pub group: u32,
}

pub const MTU_BYTES: u32 = 65_520;

impl Node {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let state = PathBuf::from(std::env::var("XDG_RUNTIME_DIR").unwrap());
        let paths = Paths { state: state.join("state"), runtime: state.join("run") };
        paths.create().unwrap();
        let hands = runtime.block_on(RouterHands::open(&paths)).unwrap();
        let mut node = Self { runtime, paths, hands };
        node.runtime.block_on(node.hands.ensure_inside()).unwrap();
        node.runtime.block_on(node.hands.ensure_ruleset(&Ruleset::default())).unwrap();
        for index in [1, 2] {
            node.runtime.block_on(node.hands.ensure_network(&network(index))).unwrap();
        }
        node
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn observe(&mut self) -> RouterObserved {
        self.runtime.block_on(self.hands.observe_router()).unwrap()
    }

    /// Makes the sandbox, adds its elements and plugs it in.
    pub fn start(&mut self, number: u16, network_index: u16, group: u32) -> Workload {
        let workload = workload(number, network_index, group);
        self.start_workload(&workload);
        workload
    }

    pub fn start_workload(&mut self, workload: &Workload) {
        let plan = sandbox(&workload.plan.sandbox);
        self.runtime.block_on(self.hands.ensure_sandbox(&plan)).unwrap();
        self.runtime.block_on(self.hands.add_elements(&elements(workload))).unwrap();
        self.attach(workload);
    }

    pub fn attach(&mut self, workload: &Workload) {
        self.runtime.block_on(self.hands.attach(&workload.plan)).unwrap();
    }

    pub fn stop(&mut self, workload: &Workload) {
        self.runtime.block_on(self.hands.detach(workload.plan.slot)).unwrap();
        self.runtime.block_on(self.hands.remove_elements(&elements(workload))).unwrap();
        self.runtime.block_on(self.hands.remove_sandbox(&workload.plan.sandbox)).unwrap();
    }

    pub fn netns(&self, id: &SandboxId) -> PathBuf {
        self.paths.sandbox(id.as_str()).join("net")
    }

    /// Runs work on a thread inside a sandbox.
    pub fn within<T: Send>(&self, id: &SandboxId, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(self.netns(id)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    /// Output of a tool run inside a sandbox.
    pub fn tool_within(&self, id: &SandboxId, command: &str) -> String {
        self.within(id, || tool(command))
    }
}

/// Output of a tool run in the caller's namespaces.
pub fn tool(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn network(index: u16) -> NetworkPlan {
    NetworkPlan {
        id: NetworkId::from_raw(format!("network{index}")),
        index,
        gateway4: (v4(index, 1), 24),
        gateway6: (v6(index, 1), 64),
        mtu_bytes: MTU_BYTES,
    }
}

pub fn sandbox(id: &SandboxId) -> SandboxPlan {
    SandboxPlan { id: id.clone(), hostname: format!("host-{id}"), rebind: None }
}

pub fn v4(network_index: u16, host: u16) -> Ipv4Addr {
    let [high, low] = host.to_be_bytes();
    Ipv4Addr::new(10, 89 + high, u8::try_from(network_index).unwrap(), low)
}

pub fn v6(network_index: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x48, 0, network_index, 0, 0, 0, host)
}

pub fn workload(number: u16, network_index: u16, group: u32) -> Workload {
    let [high, low] = number.to_be_bytes();
    let plan = AttachmentPlan {
        sandbox: SandboxId::from_raw(format!("box{number}")),
        slot: Slot(u32::from(number)),
        network_index,
        link_name: "eth0".to_owned(),
        ifindex: 2,
        mac: [2, b'h', b'f', 0, high, low],
        ipv4: v4(network_index, number + 1),
        ipv6: v6(network_index, number + 1),
        gateway4: v4(network_index, 1),
        gateway6: v6(network_index, 1),
        subnet4: (v4(network_index, 0), 24),
        subnet6: (v6(network_index, 0), 64),
        default_route: true,
        mtu_bytes: MTU_BYTES,
    };
    Workload { plan, group }
}

pub fn elements(workload: &Workload) -> BTreeSet<Element> {
    let AttachmentPlan { slot, mac, ipv4, ipv6, .. } = workload.plan;
    let group = workload.group;
    BTreeSet::from([
        Element::Group4(ipv4, group),
        Element::Member4(group, ipv4),
        Element::Source4(slot, mac, ipv4),
        Element::Group6(ipv6, group),
        Element::Member6(group, ipv6),
        Element::Source6(slot, mac, ipv6),
    ])
}

impl Workload {
    pub fn id(&self) -> &SandboxId {
        &self.plan.sandbox
    }

    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.plan.ipv4.into(), self.plan.ipv6.into()]
    }
}
