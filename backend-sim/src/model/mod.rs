//! What the kernel, the helpers and the disk do. No decision of the node is taken here.

mod disk;
mod namespace;
mod process;
mod reach;

pub use disk::{ContainerFiles, Disk};
pub use namespace::{Bridge, Content, Mounts, Namespace, Namespaces, Ns, Router};
pub use process::{Process, Processes, Role};
pub use reach::Link;

use crate::fault::{FaultKind, Victim};
use holdfast_core::{
    id::{BootId, ContainerId, ProcessRef, SandboxId, Slot},
    plan::{AttachmentPlan, ContainerPlan},
    record::{NamespaceIds, PortRecord},
    spec::Protocol,
    time::{Mono, Wall},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// A veth pair: in the table while both namespaces live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Veth {
    /// Where the inner end is.
    pub inside: Ns,
    /// How it was made.
    pub plan: AttachmentPlan,
    /// Whether its host end is a port of its bridge: it is none any more once the bridge was removed, and a new
    /// bridge of that name does not make it one.
    pub port: bool,
}

/// What the OCI runtime keeps in its state directory, which is gone after a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeState {
    /// The start.
    pub incarnation: u32,
    /// Its first process.
    pub init: ProcessRef,
    /// Its monitor.
    pub monitor: ProcessRef,
    /// Whose namespaces it joined.
    pub sandbox: SandboxId,
    /// What it was started from.
    pub plan: Box<ContainerPlan>,
}

/// The node: kernel, processes, disk.
#[derive(Clone, Debug)]
pub struct Node {
    boots: u32,
    /// Nanoseconds since the run began.
    pub time: Mono,
    boot_time: Mono,
    /// Whether the service manager keeps the daemon's descriptors over its death.
    pub fd_store: bool,
    /// Living processes.
    pub processes: Processes,
    /// Living namespaces.
    pub namespaces: Namespaces,
    /// Links between a router and its sandboxes, by router and slot.
    pub veths: BTreeMap<(Ns, Slot), Veth>,
    /// The process that listens on the control's socket.
    pub control_socket: Option<ProcessRef>,
    /// The process that listens on the uplink helper's socket.
    pub uplink_socket: Option<ProcessRef>,
    /// State of the OCI runtime.
    pub runtime: BTreeMap<ContainerId, RuntimeState>,
    /// Ports of the host that strangers hold.
    pub foreign_ports: BTreeSet<(Protocol, u16, Ipv4Addr)>,
    /// Containers that ignore their stop signal, by name.
    pub stubborn: BTreeSet<String>,
    /// The disk.
    pub disk: Disk,
    /// Workload processes that the node ended, since this was last looked at.
    pub ended: Vec<Ended>,
}

/// A workload process that the node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose.
    pub container: ContainerId,
    /// Whether the end of this container was asked for, and not only of some process.
    pub whole: bool,
}

/// The exit code of a death by SIGKILL.
pub const KILLED: i32 = 128 + 9;

impl Default for Node {
    fn default() -> Self {
        Self {
            boots: 0,
            time: Mono(0),
            boot_time: Mono(0),
            fd_store: false,
            processes: Processes::default(),
            namespaces: Namespaces::default(),
            veths: BTreeMap::new(),
            control_socket: None,
            uplink_socket: None,
            runtime: BTreeMap::new(),
            foreign_ports: BTreeSet::new(),
            stubborn: BTreeSet::new(),
            disk: Disk::default(),
            ended: Vec::new(),
        }
    }
}

impl Node {
    /// What a process of the node is, in words; `None` for what is not of the node.
    pub fn name_of(&self, role: &Role) -> Option<String> {
        let container = |id: &ContainerId| {
            let record = self.disk.records().containers.get(id);
            record.map_or_else(|| id.to_string(), |record| record.name.clone())
        };
        match role {
            Role::Daemon(_) => Some("daemon".to_owned()),
            Role::Pin => Some("pin".to_owned()),
            Role::Control { .. } => Some("control".to_owned()),
            Role::Uplink { .. } => Some("uplink".to_owned()),
            Role::Monitor { container: id, .. } => Some(format!("monitor of {}", container(id))),
            Role::Init { container: id, .. } => Some(container(id)),
            Role::Manager | Role::Stranger => None,
        }
    }

    /// The running boot.
    pub fn boot_id(&self) -> BootId {
        BootId::from_raw(format!("00000000-0000-4000-8000-{:012}", self.boots))
    }

    /// How often it lost power.
    pub fn boots(&self) -> u32 {
        self.boots
    }

    /// Monotonic time of this boot.
    pub fn now(&self) -> Mono {
        Mono(self.time.since(self.boot_time).0)
    }

    /// Wall time.
    pub fn wall(&self) -> Wall {
        Wall(1_800_000_000_000 + self.time.0 / 1_000_000)
    }

    /// Starts a process.
    pub fn spawn(&mut self, role: Role, member: &[Ns], holds: &[Ns]) -> ProcessRef {
        let (boot, now) = (self.boot_id(), self.now());
        self.processes.spawn(&boot, now, role, member, holds)
    }

    /// Lets everything die that nothing keeps: namespaces with the last that leads to them, links with either
    /// end's namespace. (The kernel takes up to 50 ms for the links; here it is at once.)
    pub fn settle(&mut self) {
        let roots = self.processes.iter().flat_map(|process| process.member.iter().chain(&process.holds));
        let roots = roots.copied().collect();
        self.namespaces.collect(roots);
        let namespaces = &self.namespaces;
        self.veths.retain(|(router, _), veth| namespaces.lives(*router) && namespaces.lives(veth.inside));
    }

    /// Ends a process, with what that entails. A dead one is left dead.
    pub fn kill(&mut self, reference: &ProcessRef, code: i32) {
        let Some(process) = self.processes.remove(reference) else { return };
        match process.role {
            Role::Init { container, incarnation, .. } => self.init_ended(&container, incarnation, code),
            Role::Daemon(_) if self.fd_store => self.store_descriptors(process.holds),
            _ => {}
        }
        self.settle();
    }

    /// Ends a process because the node asked for it, and remembers it if it was a workload's. `by` is the
    /// container whose end was asked for; `None` where only a process was named.
    pub fn end_asked(&mut self, reference: &ProcessRef, by: Option<&ContainerId>, code: i32) {
        let Some(process) = self.processes.get(reference) else { return };
        if let Role::Init { container, .. } | Role::Monitor { container, .. } = &process.role {
            self.ended.push(Ended { container: container.clone(), whole: by == Some(container) });
        }
        self.kill(reference, code);
    }

    /// A living monitor writes the exit file and ends; without one nobody knows the code.
    fn init_ended(&mut self, container: &ContainerId, incarnation: u32, code: i32) {
        let watches = |role: &Role| match role {
            Role::Monitor { container: watched, incarnation: start } => {
                watched == container && *start == incarnation
            }
            _ => false,
        };
        for monitor in self.processes.find(watches) {
            if let Some(files) = self.disk.containers.get_mut(container) {
                files.exits.insert(incarnation, code);
            }
            self.processes.remove(&monitor);
        }
    }

    fn store_descriptors(&mut self, holds: BTreeSet<Ns>) {
        let manager = self.processes.find(|role| matches!(role, Role::Manager)).pop();
        let manager = manager.unwrap_or_else(|| self.spawn(Role::Manager, &[], &[]));
        if let Some(manager) = self.processes.get_mut(&manager) {
            manager.holds = holds;
        }
    }

    /// The namespaces through which a process leads to the node's inside, by kind.
    pub fn inside_of(&self, process: &ProcessRef) -> Inside {
        self.processes
            .get(process)
            .map_or(Inside::default(), |process| self.led(&process.member, &process.holds))
    }

    fn led(&self, member: &BTreeSet<Ns>, holds: &BTreeSet<Ns>) -> Inside {
        let all: BTreeSet<Ns> = member.union(holds).copied().collect();
        let net = self.namespaces.find(&all, |content| matches!(content, Content::Router(_)));
        let mount = self.namespaces.find(&all, |content| matches!(content, Content::Mount(_)));
        let user = self.namespaces.find(&all, |content| matches!(content, Content::User));
        // NS_GET_USERNS (ioctl_nsfs(2)) leads from any namespace to the user namespace that owns it.
        let user = user.or_else(|| all.iter().find_map(|ns| self.namespaces.owner(*ns)));
        Inside { user, net, mount }
    }

    /// The namespaces as the kernel shows them.
    pub fn visible(&self, inside: Inside) -> Option<NamespaceIds> {
        Some(NamespaceIds {
            user: self.namespaces.inode(inside.user?)?,
            net: self.namespaces.inode(inside.net?)?,
            mount: self.namespaces.inode(inside.mount?)?,
        })
    }

    /// The namespaces that the descriptors of the running daemon, or of the service manager, lead to.
    pub fn descriptors(&self) -> Inside {
        let holders =
            self.processes.iter().filter(|process| matches!(process.role, Role::Daemon(_) | Role::Manager));
        holders
            .map(|process| self.led(&BTreeSet::new(), &process.holds))
            .find(|inside| *inside != Inside::default())
            .unwrap_or_default()
    }

    /// The control that listens on the socket, if it lives.
    pub fn control(&self) -> Option<&Process> {
        self.processes.get(self.control_socket.as_ref()?)
    }

    /// The uplink helper that listens on the socket, if it lives.
    pub fn uplink(&self) -> Option<&Process> {
        self.processes.get(self.uplink_socket.as_ref()?)
    }

    /// What living uplink helpers have bound on the host.
    pub fn bound_ports(&self) -> BTreeSet<PortRecord> {
        let ports = self.processes.iter().filter_map(|process| match &process.role {
            Role::Uplink { ports, .. } => Some(ports),
            _ => None,
        });
        ports.flatten().copied().collect()
    }

    /// The living first process of a container, with its start.
    pub fn init_of(&self, container: &ContainerId) -> Option<(&ProcessRef, u32)> {
        self.processes.iter().find_map(|process| match &process.role {
            Role::Init { container: of, incarnation, .. } if of == container => {
                Some((&process.reference, *incarnation))
            }
            _ => None,
        })
    }

    /// The living processes that a victim names.
    pub fn victims(&self, victim: &Victim) -> Vec<ProcessRef> {
        let named = |id: &ContainerId, name: &str| {
            self.disk.records().containers.get(id).is_some_and(|record| record.name == name)
        };
        self.processes.find(|role| match (victim, role) {
            (Victim::Daemon, Role::Daemon(_))
            | (Victim::Pin, Role::Pin)
            | (Victim::Control, Role::Control { .. })
            | (Victim::Uplink, Role::Uplink { .. })
            | (Victim::Monitors, Role::Monitor { .. })
            | (Victim::Inits, Role::Init { .. }) => true,
            (Victim::Monitor(name), Role::Monitor { container, .. })
            | (Victim::Init(name), Role::Init { container, .. }) => named(container, name),
            _ => false,
        })
    }

    /// Lets a fault strike. What it does to the running call (fail, delay, …) is not the node's business.
    pub fn strike(&mut self, kind: &FaultKind) {
        match kind {
            FaultKind::Kill { who } => drop(self.kill_all(who)),
            FaultKind::KillAndReusePid { who } => self.kill_and_reuse(who),
            FaultKind::Exit { container, code } => {
                for init in self.victims(&Victim::Init(container.clone())) {
                    self.kill(&init, *code);
                }
            }
            FaultKind::WedgeControl => self.each_role(|role| {
                if let Role::Control { wedged, .. } = role {
                    *wedged = true;
                }
            }),
            FaultKind::ForeignControl => self.each_role(|role| {
                if let Role::Control { foreign, .. } = role {
                    *foreign = true;
                }
            }),
            FaultKind::WedgeUplink => self.each_role(|role| {
                if let Role::Uplink { wedged, .. } = role {
                    *wedged = true;
                }
            }),
            FaultKind::FlushRules => self.flush_rules(),
            FaultKind::TakeHostPort { address, port, protocol } => {
                if !self.port_bound(*protocol, *port, *address) {
                    self.foreign_ports.insert((*protocol, *port, *address));
                }
            }
            FaultKind::DiskFull => self.disk.full = true,
            FaultKind::DiskFree => self.disk.full = false,
            FaultKind::PowerLoss => self.lose_power(),
            FaultKind::Fail(_) | FaultKind::Unknown { .. } | FaultKind::Delay { .. } => {}
        }
    }

    fn kill_all(&mut self, who: &[Victim]) -> Vec<ProcessRef> {
        let mut dead = Vec::new();
        for victim in who {
            for process in self.victims(victim) {
                self.kill(&process, KILLED);
                dead.push(process);
            }
        }
        dead
    }

    fn kill_and_reuse(&mut self, who: &[Victim]) {
        let (boot, now) = (self.boot_id(), self.now());
        for process in self.kill_all(who) {
            self.processes.spawn_as(process.pid, &boot, now, Role::Stranger, &[], &[]);
        }
    }

    fn each_role(&mut self, change: impl Fn(&mut Role)) {
        for reference in self.processes.find(|_| true) {
            if let Some(process) = self.processes.get_mut(&reference) {
                change(&mut process.role);
            }
        }
    }

    /// The base chains stay, closed: what somebody flushes is the sets.
    fn flush_rules(&mut self) {
        let routers: Vec<Ns> = self.namespaces.iter().map(|(ns, _)| ns).collect();
        for ns in routers {
            if let Some(router) = self.namespaces.router_mut(ns) {
                router.elements.clear();
            }
        }
    }

    /// Whether anybody holds a port of the host that overlaps this one.
    pub fn port_bound(&self, protocol: Protocol, port: u16, address: Ipv4Addr) -> bool {
        let overlaps = |of: Protocol, number: u16, on: Ipv4Addr| {
            of == protocol
                && number == port
                && (on == address || on.is_unspecified() || address.is_unspecified())
        };
        self.foreign_ports.iter().any(|(of, number, on)| overlaps(*of, *number, *on))
            || self
                .bound_ports()
                .iter()
                .any(|bound| overlaps(bound.spec.protocol, bound.spec.host_port, bound.spec.host_address))
    }

    fn lose_power(&mut self) {
        self.processes = Processes::default();
        self.settle();
        self.control_socket = None;
        self.uplink_socket = None;
        self.runtime.clear();
        self.foreign_ports.clear();
        self.disk.lose_power();
        self.boots += 1;
        self.boot_time = self.time;
    }
}

/// The namespaces something leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// A user namespace.
    pub user: Option<Ns>,
    /// A router.
    pub net: Option<Ns>,
    /// A mount namespace.
    pub mount: Option<Ns>,
}
