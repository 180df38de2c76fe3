//! The kernel, by trying: a child in a user namespace of its own does what the node does and reports how far it
//! got. Nothing of it outlives the child.

use super::{Finding, checks::number};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, fork, getgid, getuid},
};
use std::{
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    time::Duration,
};

/// How long the child may take.
const TRIAL_DEADLINE: Duration = Duration::from_secs(10);

/// What the child tries, in this order; it reports one byte each: 0, or the errno.
const TRIALS: [(&str, &str); 6] = [
    (
        "user_namespace",
        "as root: sysctl kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=15000",
    ),
    ("id_map", "a user namespace must be able to map this user: see user_namespace"),
    ("namespaces", "network, mount, IPC and UTS namespaces must be built into the kernel and allowed"),
    ("tmpfs", "tmpfs must be mountable in a user namespace"),
    (
        "overlay",
        "overlayfs in a user namespace needs Linux 5.11 and the module overlay (as root: modprobe overlay)",
    ),
    ("nftables", "as root: modprobe nf_tables"),
];

/// Every check of this page.
pub fn all() -> Vec<Finding> {
    let mut findings = trials();
    findings.extend(apparmor());
    findings.push(pidfd());
    findings
}

fn apparmor() -> Option<Finding> {
    let restricted = number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")?;
    Some(if restricted == 0 {
        Finding::ok("apparmor_userns", "not restricted")
    } else {
        Finding::warn(
            "apparmor_userns",
            "AppArmor restricts user namespaces of programs without a profile",
            "as root: a profile with `userns,` for holdfast, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
    })
}

fn pidfd() -> Finding {
    match holdfast_linux::process::own_process().and_then(|own| holdfast_linux::process::open_pidfd(&own)) {
        Ok(Some(_)) => Finding::ok("pidfd", "processes can be watched"),
        Ok(None) => {
            Finding::fail("pidfd", "/proc shows other processes than this namespace has", "mount /proc anew")
        }
        Err(error) => Finding::fail("pidfd", error.to_string(), "pidfd_open needs Linux 5.3"),
    }
}

fn trials() -> Vec<Finding> {
    match run_trials() {
        Err(error) => {
            vec![Finding::fail("user_namespace", format!("could not be tried: {error}"), TRIALS[0].1)]
        }
        Ok(results) => TRIALS
            .into_iter()
            .enumerate()
            .map(|(index, (check, remedy))| match results.get(index) {
                Some(0) => Finding::ok(check, "works"),
                Some(&errno) => {
                    let errno = nix::errno::Errno::from_raw(i32::from(errno));
                    Finding::fail(check, errno.to_string(), remedy)
                }
                None => Finding::fail(check, "not tried: what comes before it fails", remedy),
            })
            .collect(),
    }
}

fn run_trials() -> std::io::Result<Vec<u8>> {
    let (mut reports, child_end) = UnixStream::pair()?;
    reports.set_read_timeout(Some(TRIAL_DEADLINE))?;
    // SAFETY: this process has one thread: `doctor` starts neither runtime nor threads.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(reports);
            try_all(child_end);
            // SAFETY: ends the child at once; it shares nothing that would have to be flushed.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(child_end);
            let mut results = Vec::new();
            let read = reports.read_to_end(&mut results);
            end(child);
            // A child that hangs in a trial still told of the ones before.
            if results.is_empty() {
                read?;
            }
            Ok(results)
        }
    }
}

fn end(child: Pid) {
    // The child is not reaped yet: the pid is its own. It has usually ended already.
    let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
    while !matches!(
        waitpid(child, None),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(nix::errno::Errno::ECHILD)
    ) {}
}

fn try_all(mut reports: UnixStream) {
    let (uid, gid) = (getuid(), getgid());
    let trials: [&dyn Fn() -> std::io::Result<()>; TRIALS.len()] = [
        &|| Ok(unshare(CloneFlags::CLONE_NEWUSER)?),
        &|| {
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
            std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))
        },
        &|| {
            Ok(unshare(
                CloneFlags::CLONE_NEWNET
                    | CloneFlags::CLONE_NEWNS
                    | CloneFlags::CLONE_NEWIPC
                    | CloneFlags::CLONE_NEWUTS,
            )?)
        },
        &|| {
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
            Ok(mount(Some("tmpfs"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
        },
        &|| {
            for directory in ["lower", "upper", "work", "merged"] {
                std::fs::create_dir(format!("/tmp/{directory}"))?;
            }
            let options = "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr";
            mount(Some("overlay"), "/tmp/merged", Some("overlay"), MsFlags::empty(), Some(options))?;
            std::fs::write("/tmp/merged/probe", "")
        },
        &nftables,
    ];
    for trial in trials {
        let errno = match trial() {
            Ok(()) => 0,
            Err(error) => u8::try_from(error.raw_os_error().unwrap_or(libc::EIO)).unwrap_or(u8::MAX),
        };
        if reports.write_all(&[errno]).is_err() || errno != 0 {
            return;
        }
    }
}

/// Asks nf_tables for its generation: answered only where the subsystem is there and this user may use it.
/// Message layout: include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h (`NFT_MSG_GETGEN` = 16).
fn nftables() -> std::io::Result<()> {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
    const NFNL_SUBSYS_NFTABLES: u16 = 10;
    const NFT_MSG_GETGEN: u16 = 16;
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    let mut message = Vec::new();
    message.extend_from_slice(&20u32.to_ne_bytes());
    message.extend_from_slice(&(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN).to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 12]);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    if kind == Some(libc::NLMSG_ERROR as u16) && length >= 20 {
        let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        if code != 0 {
            return Err(std::io::Error::from_raw_os_error(-code));
        }
    }
    Ok(())
}
