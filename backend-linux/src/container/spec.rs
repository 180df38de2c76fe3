//! The OCI runtime specification of one start. <https://github.com/opencontainers/runtime-spec>

use super::{etc, fault::fail};
use crate::paths::Paths;
use holdfast_core::{
    error::{Class, ContainerError},
    plan::ContainerPlan,
    spec::{BindMount, Security},
};
use oci_spec::{
    OciSpecError,
    runtime::{
        Capability, LinuxBuilder, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxNamespace,
        LinuxNamespaceBuilder, LinuxNamespaceType, Mount, MountBuilder, Process, ProcessBuilder, RootBuilder,
        Spec, SpecBuilder, UserBuilder,
    },
};
use std::path::PathBuf;

/// What programs expect when nobody says otherwise; the value that podman and docker use.
const PATH_DEFAULT: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// podman's default set, containers.conf(5) `default_capabilities`, and CAP_NET_RAW, so that the `ping` of any
/// image works: root's by itself, another user's where the image gives its file the capability. It reaches no
/// further than the sandbox's own interfaces, and what is forged there ends at the port: the bridge table drops
/// every packet whose addresses are not the port's own, and the bridge learns nothing from what a port sends.
const CAPABILITIES: [Capability; 12] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// Kernel interfaces that a container is not shown; podman's list.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/dev/block",
];
/// Kernel interfaces that a container may only read; podman's list.
const READ_ONLY: [&str; 6] =
    ["/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What a process in a container is run with: the first one, or one of an exec.
pub(crate) struct ProcessPlan<'a> {
    /// Argument vector, exact.
    pub(crate) argv: &'a [String],
    /// Environment; a later entry of a name wins.
    pub(crate) env: &'a [(String, String)],
    /// Absolute working directory.
    pub(crate) working_dir: &'a str,
    /// Numeric user and group.
    pub(crate) user: (u32, u32),
    /// Whether it gets a terminal.
    pub(crate) terminal: bool,
    /// What it may do less, or more, than others.
    pub(crate) security: &'a Security,
}

/// The specification of a process.
pub(crate) fn process(plan: &ProcessPlan<'_>) -> Result<Process, OciSpecError> {
    let (uid, gid) = plan.user;
    ProcessBuilder::default()
        .terminal(plan.terminal)
        .user(UserBuilder::default().uid(uid).gid(gid).additional_gids(plan.security.groups.clone()).build()?)
        .args(plan.argv.to_vec())
        .env(environment(plan.env))
        .cwd(PathBuf::from(plan.working_dir))
        .capabilities(capabilities(uid == 0, plan.security)?)
        // Limits stay the node's: raising one needs CAP_SYS_RESOURCE.
        .rlimits(Vec::new())
        .no_new_privileges(plan.security.no_new_privileges)
        .build()
}

/// execve(2) keeps duplicates and getenv(3) finds the first one, so that only the last of a name is handed on.
fn environment(env: &[(String, String)]) -> Vec<String> {
    let mut list: Vec<(&str, &str)> = Vec::with_capacity(env.len());
    for (name, value) in env {
        match list.iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1 = value,
            None => list.push((name, value)),
        }
    }
    let path = (!list.iter().any(|(name, _)| *name == "PATH")).then(|| PATH_DEFAULT.to_owned());
    path.into_iter().chain(list.into_iter().map(|(name, value)| format!("{name}={value}"))).collect()
}

/// Root has the set; another user has it as its bound only, as after any exec without file capabilities.
#[allow(
    clippy::disallowed_types,
    reason = "the builder of oci-spec takes nothing else; the order has no meaning"
)]
fn capabilities(root: bool, security: &Security) -> Result<LinuxCapabilities, OciSpecError> {
    use std::collections::HashSet;
    let all = security.capabilities_drop.iter().any(|name| name == "ALL");
    let mut bounding: HashSet<Capability> =
        if all { HashSet::new() } else { CAPABILITIES.into_iter().collect() };
    for name in &security.capabilities_drop {
        bounding.retain(|known| known.to_string() != *name);
    }
    for name in &security.capabilities_add {
        let unknown = |_| OciSpecError::Other(format!("there is no capability {name:?}"));
        bounding.insert(name.parse().map_err(unknown)?);
    }
    let held = if root { bounding.clone() } else { HashSet::new() };
    LinuxCapabilitiesBuilder::default()
        .bounding(bounding)
        .effective(held.clone())
        .permitted(held)
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()
}

/// The whole specification of a start.
///
/// # Errors
/// `Missing` for a bind mount whose source is not there, `Fatal` for what cannot be expressed.
pub(crate) fn container(paths: &Paths, plan: &ContainerPlan) -> Result<Spec, ContainerError> {
    for mount in &plan.mounts {
        if let Some(root) = &mount.beneath {
            below(plan, mount, root)?;
        }
        check_source(plan, &mount.source)?;
    }
    build(paths, plan)
        .map_err(|error| fail(Class::Fatal, "write the OCI specification of", plan.id.as_str(), error))
}

fn check_source(plan: &ContainerPlan, source: &str) -> Result<(), ContainerError> {
    let action = format!("mount {source} into");
    match std::fs::metadata(source) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(fail(
            Class::Missing,
            &action,
            format!("container {} ({})", plan.name, plan.id),
            "no such file or directory on the host",
        )
        .with_remedy(format!("create {source}, or correct the mount"))),
        Err(error) => {
            Err(super::fault::io_fail(&action, format!("container {} ({})", plan.name, plan.id), error))
        }
    }
}

/// Sees that the source lies below `root` without a symbolic link on the way, and makes directories that are missing:
/// whoever may write there must not lead the mount elsewhere. CVE-2017-1002101.
fn below(plan: &ContainerPlan, mount: &BindMount, root: &str) -> Result<(), ContainerError> {
    let subject = || format!("container {} ({})", plan.name, plan.id);
    let action = format!("mount {} into", mount.source);
    let rest = mount.source.strip_prefix(root).unwrap_or(&mount.source).trim_matches('/');
    crate::pods::resolve_beneath(std::path::Path::new(root), rest).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ELOOP | libc::EXDEV) => {
                fail(Class::Denied, &action, subject(), "a symbolic link on the way leads elsewhere")
                    .with_remedy("replace the link in the volume by a directory")
            }
            _ => super::fault::io_fail(&action, subject(), error),
        }
    })
}

fn build(paths: &Paths, plan: &ContainerPlan) -> Result<Spec, OciSpecError> {
    let first = ProcessPlan {
        argv: &plan.argv,
        env: &plan.env,
        working_dir: &plan.working_dir,
        user: plan.user,
        terminal: false,
        security: &plan.security,
    };
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let linux = LinuxBuilder::default()
        .namespaces(namespaces(paths, plan)?)
        .masked_paths(strings(&MASKED))
        .readonly_paths(strings(&READ_ONLY))
        // podman's default: ping works without CAP_NET_RAW too, for the group of root; icmp(7).
        .sysctl([("net.ipv4.ping_group_range".to_owned(), "0 0".to_owned())])
        .build()?;
    let mut spec = SpecBuilder::default()
        .version("1.0.2")
        .root(
            RootBuilder::default()
                .path(paths.container_root(plan.id.as_str()))
                .readonly(plan.security.read_only_root)
                .build()?,
        )
        .process(process(&first)?)
        .mounts(mounts(paths, plan)?)
        .linux(linux)
        .build()?;
    // The builder fills it in, and the runtime would rename the whole sandbox, whose own name it is.
    spec.set_hostname(None);
    Ok(spec)
}

/// New pid, mount and cgroup namespaces; the sandbox's for the rest. The user namespace is the node's.
fn namespaces(paths: &Paths, plan: &ContainerPlan) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    let sandbox = paths.sandbox(plan.sandbox.as_str());
    let new = [LinuxNamespaceType::Pid, LinuxNamespaceType::Mount, LinuxNamespaceType::Cgroup]
        .map(|kind| LinuxNamespaceBuilder::default().typ(kind).build());
    let joined = [
        (LinuxNamespaceType::Network, "net"),
        (LinuxNamespaceType::Ipc, "ipc"),
        (LinuxNamespaceType::Uts, "uts"),
    ]
    .map(|(kind, name)| LinuxNamespaceBuilder::default().typ(kind).path(sandbox.join(name)).build());
    new.into_iter().chain(joined).collect()
}

fn mounts(paths: &Paths, plan: &ContainerPlan) -> Result<Vec<Mount>, OciSpecError> {
    let system: [(&str, &str, &str, &[&str]); 7] = [
        ("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        ("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        ("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        ("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ];
    let mut list = Vec::with_capacity(system.len() + etc::NAMES.len() + plan.mounts.len());
    for (target, kind, source, options) in system {
        let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        list.push(
            MountBuilder::default().destination(target).typ(kind).source(source).options(options).build()?,
        );
    }
    let directory = etc::directory(paths, plan.id.as_str());
    for name in etc::NAMES {
        list.push(bind(directory.join(name), &format!("/etc/{name}"), "rw")?);
    }
    for mount in &plan.mounts {
        // "rro": mounts below the source are read-only too.
        list.push(bind(
            PathBuf::from(&mount.source),
            &mount.target,
            if mount.read_only { "rro" } else { "rw" },
        )?);
    }
    Ok(list)
}

fn bind(source: PathBuf, target: &str, access: &str) -> Result<Mount, OciSpecError> {
    let options = ["rbind", "rprivate", access].map(str::to_owned).to_vec();
    MountBuilder::default().destination(target).typ("bind").source(source).options(options).build()
}

#[cfg(test)]
mod tests {
    use super::environment;

    #[test]
    fn the_last_entry_of_a_name_wins_in_the_place_of_the_first() {
        let env = |list: &[(&str, &str)]| {
            let list: Vec<_> =
                list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            environment(&list)
        };
        assert_eq!(env(&[("PATH", "/a"), ("X", "1"), ("PATH", "/b")]), ["PATH=/b", "X=1"]);
        assert_eq!(env(&[("X", "")]), [super::PATH_DEFAULT, "X="]);
    }
}
