//! A complete spec out of a request and an image's defaults.

use super::find;
use crate::{
    error::{Refusal, RefusalCode},
    name,
    ops::request::{RootRequest, RunRequest},
    record::{ImageRecord, Records},
    spec::{BindMount, ContainerSpec, DnsSpec, NameService, RestartPolicy, RootSource},
};
use alloc::{format, string::String, vec::Vec};

/// SIGTERM.
const STOP_SIGNAL_DEFAULT: u32 = 15;
/// What podman and docker wait.
const STOP_GRACE_MS_DEFAULT: u64 = 10_000;
/// The longest grace that is taken, in milliseconds: a day.
const STOP_GRACE_MS_MAX: u64 = 86_400_000;
/// The highest signal number: signal(7), `SIGRTMAX`.
const SIGNAL_MAX: u32 = 64;
/// Search path of an image that sets none: what podman and docker set.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything that a start needs, defaults resolved once and for all.
///
/// # Errors
/// `Invalid` naming the field, `NotFound` for an image that is not loaded.
pub fn spec(records: &Records, request: &RunRequest) -> Result<ContainerSpec, Refusal> {
    let invalid = |detail: String| Err(Refusal::new(RefusalCode::Invalid, detail));
    let (root, root_name, image) = match &request.root {
        RootRequest::Rootfs(path) => {
            require_path("--rootfs", path)?;
            (RootSource::Directory(path.clone()), path.clone(), None)
        }
        RootRequest::Image(name) => {
            let image = find::image(records, name)?;
            let known = image.names.first().cloned().unwrap_or_else(|| name.clone());
            (RootSource::Image(image.id.clone()), known, Some(image))
        }
    };
    let argv = argv(request, image);
    if argv.is_empty() {
        return invalid(format!("{root_name} names no command; give one after it"));
    }
    for text in argv.iter().chain(request.env.iter().map(|(_, value)| value)) {
        if text.contains('\0') {
            return invalid(format!("{text:?} holds a NUL byte, which no argument or variable can"));
        }
    }
    for (name, _) in &request.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return invalid(format!("{name:?} is no name of a variable; use NAME=VALUE"));
        }
    }
    for BindMount { source, target, .. } in &request.mounts {
        require_path("the source of a mount", source)?;
        require_path("the target of a mount", target)?;
    }
    let working_dir = request
        .working_dir
        .clone()
        .or_else(|| image.map(|image| image.working_dir.clone()))
        .filter(|directory| !directory.is_empty())
        .unwrap_or_else(|| String::from("/"));
    require_path("the working directory", &working_dir)?;
    let stop_signal = request.stop_signal.unwrap_or(STOP_SIGNAL_DEFAULT);
    if !(1..=SIGNAL_MAX).contains(&stop_signal) {
        return invalid(format!("signal {stop_signal} does not exist; use 1 to {SIGNAL_MAX}"));
    }
    let stop_grace_ms = request.stop_grace_ms.unwrap_or(STOP_GRACE_MS_DEFAULT);
    if stop_grace_ms > STOP_GRACE_MS_MAX {
        return invalid(format!("a stop time-out of {stop_grace_ms} ms is more than a day"));
    }
    if request.remove_on_exit && request.restart != RestartPolicy::No {
        return invalid(format!(
            "--rm and --restart {} contradict each other: leave one of them out",
            request.restart
        ));
    }
    let (uid, gid) = request.user.or_else(|| image.map(|image| image.user)).unwrap_or((0, 0));
    Ok(ContainerSpec {
        root,
        root_name,
        argv,
        env: env(request, image),
        working_dir,
        uid,
        gid,
        mounts: request.mounts.clone(),
        restart: request.restart,
        stop_signal,
        stop_grace_ms,
        labels: request.labels.clone(),
        remove_on_exit: request.remove_on_exit,
        security: request.security.clone(),
    })
}

/// Entry point, then command; a command of the user's replaces the image's, and so does an entry point of the
/// user's with the image's command (as podman and docker do).
fn argv(request: &RunRequest, image: Option<&ImageRecord>) -> Vec<String> {
    let image_entrypoint = || image.map(|image| image.entrypoint.clone()).unwrap_or_default();
    let image_command = || image.map(|image| image.command.clone()).unwrap_or_default();
    let mut argv = request.entrypoint.clone().unwrap_or_else(image_entrypoint);
    if !request.command.is_empty() {
        argv.extend(request.command.iter().cloned());
    } else if request.entrypoint.is_none() {
        argv.extend(image_command());
    }
    argv
}

fn env(request: &RunRequest, image: Option<&ImageRecord>) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = image.map(|image| image.env.clone()).unwrap_or_default();
    if env.iter().all(|(name, _)| name != "PATH") {
        env.insert(0, (String::from("PATH"), String::from(PATH_DEFAULT)));
    }
    for (name, value) in &request.env {
        match env.iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1.clone_from(value),
            None => env.push((name.clone(), value.clone())),
        }
    }
    env
}

fn require_path(what: &str, path: &str) -> Result<(), Refusal> {
    if path.starts_with('/') && !path.contains('\0') {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalCode::Invalid,
        format!("{what} {path:?} is not an absolute path; give one that begins with /"),
    ))
}

/// What resolvers read of a resolv.conf(5): `MAXNS`.
const NAME_SERVERS_MAX: usize = 3;
/// The most names besides its own.
const ALIASES_MAX: usize = 32;
/// The most domains that are searched, and the most characters of them: what Kubernetes takes.
const SEARCH_MAX: usize = 32;
const SEARCH_BYTES_MAX: usize = 2048;
/// The most options of a resolver.
const OPTIONS_MAX: usize = 32;

/// Checks what is asked for of names.
///
/// # Errors
/// `Invalid` naming what is wrong.
pub(crate) fn names(aliases: &[String], dns: &DnsSpec) -> Result<(), Refusal> {
    let invalid = |detail: String| Err(Refusal::new(RefusalCode::Invalid, detail));
    if aliases.len() > ALIASES_MAX {
        return invalid(format!("{} aliases are more than {ALIASES_MAX}", aliases.len()));
    }
    for alias in aliases {
        name::check("alias", alias)?;
    }
    if dns.servers.len() > NAME_SERVERS_MAX {
        let count = dns.servers.len();
        return invalid(format!(
            "{count} name servers are more than {NAME_SERVERS_MAX}, which is all a resolver reads"
        ));
    }
    for server in &dns.servers {
        if server.is_unspecified() || server.is_multicast() || server.is_loopback() {
            let detail =
                format!("{server} is no name server that a workload can ask; name one by its own address");
            return invalid(detail);
        }
    }
    if dns.service == NameService::Own && dns.servers.is_empty() {
        return invalid(String::from("a workload with name servers of its own needs at least one; name it"));
    }
    let search: Vec<&String> = dns.search.iter().flatten().chain(&dns.search_also).collect();
    let length: usize = search.iter().map(|domain| domain.len() + 1).sum();
    if search.len() > SEARCH_MAX || length > SEARCH_BYTES_MAX {
        return invalid(format!(
            "more than {SEARCH_MAX} domains, or {SEARCH_BYTES_MAX} bytes of them, to search"
        ));
    }
    for domain in search {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= name::NAME_BYTES_MAX
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let labels = domain.strip_suffix('.').unwrap_or(domain);
        if labels.len() > 253 || !labels.split('.').all(is_label) {
            return invalid(format!(
                "{domain:?} is no domain that can be searched; use one such as example.org"
            ));
        }
    }
    let is_option =
        |text: &str| !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic());
    if dns.options.len() > OPTIONS_MAX {
        return invalid(format!("more than {OPTIONS_MAX} options of a resolver"));
    }
    match dns.options.iter().find(|option| !is_option(option)) {
        Some(option) => invalid(format!("{option:?} is no option of a resolver; use one such as ndots:2")),
        None => Ok(()),
    }
}
