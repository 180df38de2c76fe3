//! The programs that the node runs.

use super::Finding;
use std::{
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long a program may take to tell its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(5);

/// Every check of this page.
pub fn all() -> Vec<Finding> {
    vec![
        id_mapper("newuidmap"),
        id_mapper("newgidmap"),
        version("crun", "crun", (1, 0), "crun"),
        version("conmon", "conmon", (2, 1), "conmon"),
        version("slirp4netns", "slirp4netns", (1, 0), "slirp4netns"),
    ]
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where login shells of other users look too.
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| {
            std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        })
}

fn id_mapper(name: &'static str) -> Finding {
    let Some(path) = find(name) else {
        return Finding::fail(name, "is not installed", "as root: apt-get install uidmap");
    };
    let shown = path.display();
    match std::fs::metadata(&path) {
        Ok(data) if data.uid() == 0 && data.mode() & 0o4000 != 0 => {
            Finding::ok(name, format!("{shown}, setuid root"))
        }
        Ok(_) if has_file_capability(&path) => Finding::ok(name, format!("{shown}, with file capabilities")),
        Ok(_) => Finding::fail(
            name,
            format!("{shown} is neither setuid root nor has it capabilities"),
            format!("as root: chmod u+s {shown}"),
        ),
        Err(error) => Finding::fail(name, format!("{shown}: {error}"), "as root: apt-get install uidmap"),
    }
}

/// capabilities(7): the extended attribute `security.capability`.
fn has_file_capability(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings end in NUL and outlive the call; without a buffer only the size is asked for.
    let size =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    size > 0
}

fn version(check: &'static str, program: &str, least: (u32, u32), package: &str) -> Finding {
    let remedy = format!("as root: apt-get install {package}");
    let Some(path) = find(program) else {
        return Finding::fail(check, "is not installed", remedy);
    };
    match output(&path) {
        Err(cause) => Finding::fail(check, format!("{}: {cause}", path.display()), remedy),
        Ok(text) => match parse(&text) {
            Some(found) if found < least => Finding::warn(
                check,
                format!("version {}.{}, older than {}.{}", found.0, found.1, least.0, least.1),
                "install a newer one",
            ),
            Some((major, minor)) => Finding::ok(check, format!("{} version {major}.{minor}", path.display())),
            None => Finding::warn(check, format!("tells no version: {:?}", text.lines().next()), remedy),
        },
    }
}

/// The first `number.number` of a text.
fn parse(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[expect(clippy::disallowed_methods, reason = "polls with a deadline; there is no runtime here to wait with")]
fn output(path: &std::path::Path) -> Result<String, String> {
    let mut child = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + VERSION_DEADLINE;
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not tell its version within {} s", VERSION_DEADLINE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if !status.success() {
        return Err(format!("--version ended with {status}"));
    }
    let mut text = String::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(64 << 10).read_to_string(&mut text).map_err(|error| error.to_string())?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(parse("crun version 1.8.1\ncommit: f8a096"), Some((1, 8)));
        assert_eq!(parse("conmon version 2.1.6\n"), Some((2, 1)));
        assert_eq!(parse("slirp4netns version 1.2.0\ncommit: unknown\nlibslirp: 4.7.0"), Some((1, 2)));
        assert_eq!(parse("no version"), None);
    }

    #[test]
    fn a_program_that_is_missing_or_fails_is_a_failure() {
        assert_eq!(
            version("x", "holdfast-no-such-program", (1, 0), "x").verdict,
            super::super::Verdict::Fail
        );
        assert!(output(std::path::Path::new("/bin/false")).is_err());
    }
}
