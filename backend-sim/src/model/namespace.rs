//! Namespaces live while something leads to them, and die with the last.

use holdfast_core::{
    id::{ContainerId, NetworkId, SandboxId},
    plan::NetworkPlan,
    record::NamespaceId,
    ruleset::Element,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Names a namespace of the model for ever; what the kernel shows is [`Namespace::inode`], which is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Ns(pub u64);

/// A living namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// What `stat` on its nsfs file shows: the lowest number that was free.
    pub inode: NamespaceId,
    /// The user namespace that owns it, which it keeps alive.
    pub owner: Option<Ns>,
    /// What is in it.
    pub content: Content,
}

/// What is in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Content {
    /// Nothing modelled.
    User,
    /// A router's bridges and rules.
    Router(Router),
    /// The stack of a sandbox; its links are in [`super::Node::veths`].
    Sandbox(SandboxId),
    /// Binds and mounts.
    Mount(Mounts),
}

/// A router's network stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Router {
    /// Bridges by index.
    pub bridges: BTreeMap<u16, Bridge>,
    /// The base chains, default drop. Without them everything is forwarded.
    pub base: bool,
    /// Elements of the sets and maps.
    pub elements: BTreeSet<Element>,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bridge {
    /// Its network, as its alias tells.
    pub id: NetworkId,
    /// How it was made.
    pub plan: NetworkPlan,
}

/// A mount namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mounts {
    /// The bind of the router's netns.
    pub router: Option<Ns>,
    /// Binds of sandboxes' netns.
    pub sandboxes: BTreeMap<SandboxId, Ns>,
    /// Mounted container roots.
    pub roots: BTreeSet<ContainerId>,
}

/// Living namespaces.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Namespaces {
    table: BTreeMap<Ns, Namespace>,
    next: u64,
}

/// The first inode nsfs hands out (PROC_DYNAMIC_FIRST, include/linux/proc_ns.h).
const INODE_FIRST: u64 = 0xF000_0000;

impl Namespaces {
    /// Makes a namespace. Nothing keeps it until a process, a descriptor or a bind does.
    pub fn make(&mut self, owner: Option<Ns>, content: Content) -> Ns {
        let used: BTreeSet<u64> = self.table.values().map(|namespace| namespace.inode.0).collect();
        let inode = (INODE_FIRST..).find(|inode| !used.contains(inode)).unwrap_or(u64::MAX);
        let ns = Ns(self.next);
        self.next += 1;
        self.table.insert(ns, Namespace { inode: NamespaceId(inode), owner, content });
        ns
    }

    /// Its identity as the kernel shows it, if it lives.
    pub fn inode(&self, ns: Ns) -> Option<NamespaceId> {
        self.table.get(&ns).map(|namespace| namespace.inode)
    }

    /// The user namespace that owns it.
    pub fn owner(&self, ns: Ns) -> Option<Ns> {
        self.table.get(&ns)?.owner
    }

    /// Whether it lives.
    pub fn lives(&self, ns: Ns) -> bool {
        self.table.contains_key(&ns)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Ns, &Namespace)> {
        self.table.iter().map(|(ns, namespace)| (*ns, namespace))
    }

    /// A router's stack.
    pub fn router(&self, ns: Ns) -> Option<&Router> {
        match &self.table.get(&ns)?.content {
            Content::Router(router) => Some(router),
            _ => None,
        }
    }

    /// A router's stack.
    pub fn router_mut(&mut self, ns: Ns) -> Option<&mut Router> {
        match &mut self.table.get_mut(&ns)?.content {
            Content::Router(router) => Some(router),
            _ => None,
        }
    }

    /// A mount table.
    pub fn mounts(&self, ns: Ns) -> Option<&Mounts> {
        match &self.table.get(&ns)?.content {
            Content::Mount(mounts) => Some(mounts),
            _ => None,
        }
    }

    /// A mount table.
    pub fn mounts_mut(&mut self, ns: Ns) -> Option<&mut Mounts> {
        match &mut self.table.get_mut(&ns)?.content {
            Content::Mount(mounts) => Some(mounts),
            _ => None,
        }
    }

    /// Of the namespaces in `among`, the one of which `is` holds.
    pub fn find(&self, among: &BTreeSet<Ns>, is: impl Fn(&Content) -> bool) -> Option<Ns> {
        among.iter().copied().find(|ns| self.table.get(ns).is_some_and(|namespace| is(&namespace.content)))
    }

    /// Keeps what `roots` lead to and drops the rest. A bind leads from a mount namespace to its target, and
    /// every namespace leads to the user namespace that owns it.
    pub fn collect(&mut self, roots: BTreeSet<Ns>) {
        let mut kept = BTreeSet::new();
        let mut open: Vec<Ns> = roots.into_iter().collect();
        while let Some(ns) = open.pop() {
            let Some(namespace) = self.table.get(&ns) else { continue };
            if !kept.insert(ns) {
                continue;
            }
            open.extend(namespace.owner);
            if let Content::Mount(mounts) = &namespace.content {
                open.extend(mounts.router);
                open.extend(mounts.sandboxes.values());
            }
        }
        self.table.retain(|ns, _| kept.contains(ns));
    }
}
