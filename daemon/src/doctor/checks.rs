//! The user, the files, the cgroups, the sysctls.

use super::Finding;
use holdfast_linux::paths::Paths;
use nix::{
    sys::{
        statfs::{CGROUP2_SUPER_MAGIC, TMPFS_MAGIC, statfs},
        statvfs::statvfs,
    },
    unistd::{AccessFlags, Uid, User, access, getuid},
};
use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

/// Subordinate ids that images use, at least: one 16-bit range.
const SUBORDINATE_IDS_MIN: u64 = 65_536;

/// Space that a node wants for images and logs, in bytes.
const FREE_BYTES_WANTED: u64 = 1 << 30;

/// Every check of this page.
pub fn all(paths: &Paths) -> Vec<Finding> {
    let user = User::from_uid(getuid()).ok().flatten().map_or_else(|| getuid().to_string(), |user| user.name);
    vec![
        not_root(),
        subordinate("subuid", "/etc/subuid", &user),
        subordinate("subgid", "/etc/subgid", &user),
        tun(),
        runtime_dir(),
        linger(&user),
        cgroups(),
        disk(paths),
        low_ports(),
        limit("max_user_namespaces", "/proc/sys/user/max_user_namespaces"),
        limit("max_net_namespaces", "/proc/sys/user/max_net_namespaces"),
        limit("max_mnt_namespaces", "/proc/sys/user/max_mnt_namespaces"),
        send_buffer(),
        name_servers(paths),
    ]
}

/// Whom the node's name service asks for names outside.
fn name_servers(paths: &Paths) -> Finding {
    let (file, servers, faults) = holdfast_linux::dns::asked(paths);
    let list = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let remedy = || {
        let own = paths.resolv_conf();
        format!(
            "name servers that the node can reach in {}, as in resolv.conf(5), take its place",
            own.display()
        )
    };
    match (list.is_empty(), faults.is_empty()) {
        (false, true) => Finding::ok("name-servers", format!("{list} ({})", file.display())),
        (true, true) => {
            let seen = format!("{} names none: workloads know the node's names alone", file.display());
            Finding::warn("name-servers", seen, remedy())
        }
        (_, false) => {
            Finding::warn("name-servers", format!("{}: {}", file.display(), faults.join("; ")), remedy())
        }
    }
}

/// A number in a file of /proc/sys.
pub fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn not_root() -> Finding {
    if Uid::current().is_root() {
        let remedy = "run the node as a user of its own";
        return Finding::warn("user", "this is root: the node is made for a user without privileges", remedy);
    }
    Finding::ok("user", format!("uid {}", getuid()))
}

/// Ranges in subuid(5) or subgid(5), by name or by number.
fn subordinate(check: &'static str, path: &str, user: &str) -> Finding {
    let uid = getuid().to_string();
    let remedy =
        format!("as root: usermod --add-{check}s 100000-165535 {user} (a range that nobody else has)");
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return Finding::fail(check, format!("{path}: {error}"), remedy),
    };
    let count: u64 = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let owner = fields.next()?;
            let count = fields.nth(1)?.parse::<u64>().ok()?;
            (owner == user || owner == uid).then_some(count)
        })
        .sum();
    match count {
        0 => Finding::fail(check, format!("{path} has no range for {user}"), remedy),
        count if count < SUBORDINATE_IDS_MIN => {
            Finding::warn(check, format!("only {count} ids: images with higher ids will not unpack"), remedy)
        }
        count => Finding::ok(check, format!("{count} ids")),
    }
}

fn tun() -> Finding {
    let path = Path::new("/dev/net/tun");
    let device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device());
    if !device {
        return Finding::fail("tun", "/dev/net/tun is missing", "as root: modprobe tun");
    }
    match access(path, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Finding::ok("tun", "/dev/net/tun can be opened"),
        Err(errno) => Finding::fail(
            "tun",
            format!("/dev/net/tun: {errno}"),
            "as root: chmod 0666 /dev/net/tun (udev does so by itself where it runs)",
        ),
    }
}

fn runtime_dir() -> Finding {
    let remedy =
        "log in through PAM with systemd-logind, or set XDG_RUNTIME_DIR to a tmpfs directory of mode 0700";
    let Some(path) = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) else {
        let seen = "XDG_RUNTIME_DIR is not set: sockets go to a directory in /tmp";
        return Finding::warn("runtime_dir", seen, remedy);
    };
    let shown = Path::new(&path).display();
    match std::fs::metadata(&path) {
        Err(error) => Finding::fail("runtime_dir", format!("{shown}: {error}"), remedy),
        Ok(metadata) if metadata.uid() != getuid().as_raw() => {
            Finding::fail("runtime_dir", format!("{shown} belongs to uid {}", metadata.uid()), remedy)
        }
        Ok(metadata) if metadata.mode() & 0o077 != 0 => {
            Finding::warn("runtime_dir", format!("{shown} is open to others"), format!("chmod 0700 {shown}"))
        }
        Ok(_) if statfs(Path::new(&path)).is_ok_and(|stat| stat.filesystem_type() != TMPFS_MAGIC) => {
            Finding::warn(
                "runtime_dir",
                format!("{shown} is no tmpfs: what it holds outlives a reboot"),
                remedy,
            )
        }
        Ok(_) => Finding::ok("runtime_dir", shown.to_string()),
    }
}

fn linger(user: &str) -> Finding {
    if !Path::new("/run/systemd/system").exists() {
        return Finding::ok("linger", "no systemd here: nothing ends this user's processes at logout");
    }
    if Path::new("/var/lib/systemd/linger").join(user).exists() {
        return Finding::ok("linger", "on");
    }
    let seen = "off: the service manager may end every process of the node at logout";
    Finding::warn("linger", seen, format!("loginctl enable-linger {user}"))
}

fn cgroups() -> Finding {
    let is_v2 =
        |path: &str| statfs(Path::new(path)).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC);
    if !is_v2("/sys/fs/cgroup") {
        let kind = if is_v2("/sys/fs/cgroup/unified") { "hybrid" } else { "version 1" };
        let remedy = "boot with systemd.unified_cgroup_hierarchy=1 for limits on memory, CPU and processes";
        return Finding::warn("cgroup", format!("{kind}: containers run, limits cannot be enforced"), remedy);
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/")
        .trim_start_matches('/')
        .to_owned();
    let directory = Path::new("/sys/fs/cgroup").join(own);
    let remedy = "start the daemon by the shipped user unit (Delegate=yes), with a drop-in \
                  user@.service.d/delegate.conf: [Service] Delegate=cpu cpuset io memory pids";
    if access(&directory.join("cgroup.procs"), AccessFlags::W_OK).is_err() {
        return Finding::warn("cgroup", "version 2, but this subtree is not delegated", remedy);
    }
    let controllers = std::fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    let missing: Vec<&str> = ["cpu", "memory", "pids"]
        .into_iter()
        .filter(|wanted| !controllers.split_whitespace().any(|controller| controller == *wanted))
        .collect();
    if missing.is_empty() {
        return Finding::ok("cgroup", format!("version 2, delegated: {}", controllers.trim()));
    }
    Finding::warn("cgroup", format!("version 2, without the controllers {}", missing.join(", ")), remedy)
}

fn disk(paths: &Paths) -> Finding {
    let mut directory = paths.state.as_path();
    while !directory.exists() {
        let Some(parent) = directory.parent() else { break };
        directory = parent;
    }
    match statvfs(directory) {
        Err(errno) => {
            Finding::fail("disk", format!("{}: {errno}", directory.display()), "make the directory readable")
        }
        Ok(stat) => {
            let free = stat.blocks_available().saturating_mul(stat.fragment_size());
            let seen = format!("{} MiB free at {}", free >> 20, directory.display());
            if access(directory, AccessFlags::W_OK).is_err() {
                return Finding::fail(
                    "disk",
                    format!("{} cannot be written", directory.display()),
                    "name another --root",
                );
            }
            match free {
                0..0x10_0000 => Finding::fail("disk", seen, "free space: nothing new is accepted"),
                0x10_0000..FREE_BYTES_WANTED => {
                    Finding::warn("disk", seen, "free space: images and logs need it")
                }
                _ => Finding::ok("disk", seen),
            }
        }
    }
}

fn low_ports() -> Finding {
    match number("/proc/sys/net/ipv4/ip_unprivileged_port_start") {
        Some(start) if start <= 80 => {
            Finding::ok("low_ports", format!("ports from {start} on can be published"))
        }
        Some(start) => Finding::warn(
            "low_ports",
            format!("ports below {start} cannot be published"),
            "as root, if you need them: sysctl net.ipv4.ip_unprivileged_port_start=80",
        ),
        None => Finding::warn("low_ports", "ip_unprivileged_port_start cannot be read", "mount /proc"),
    }
}

fn limit(check: &'static str, path: &str) -> Finding {
    let name = path.trim_start_matches("/proc/sys/").replace('/', ".");
    match number(path) {
        Some(0) => Finding::fail(check, "0", format!("as root: sysctl {name}=15000")),
        Some(most) if most < 1_000 => {
            Finding::warn(check, most.to_string(), format!("as root: sysctl {name}=15000"))
        }
        Some(most) => Finding::ok(check, most.to_string()),
        None => Finding::warn(check, format!("{path} cannot be read"), "mount /proc"),
    }
}

/// A rule transaction is limited by the send buffer of its socket.
fn send_buffer() -> Finding {
    match number("/proc/sys/net/core/wmem_max") {
        Some(bytes) if bytes < 212_992 => Finding::warn(
            "wmem_max",
            format!("{bytes} bytes: large rule sets go in many chunks"),
            "as root: sysctl net.core.wmem_max=4194304",
        ),
        Some(bytes) => Finding::ok("wmem_max", format!("{bytes} bytes")),
        // Per network namespace on some kernels, and then not shown outside the first.
        None => Finding::ok("wmem_max", "not shown here"),
    }
}
