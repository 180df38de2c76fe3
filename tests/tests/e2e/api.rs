//! The socket and what it says to bad requests.

use crate::{
    http::{self, Answer},
    runner::Context,
    support::{IMAGE, own_copy, pause, stage, text, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{command, node::Node};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    process::Command,
    time::Duration,
};

pub fn socket_is_private(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let socket = http::socket(node)?;
    let directory = socket.parent().context("no directory")?;
    let metadata = fs::symlink_metadata(&socket)?;
    ensure!(metadata.file_type().is_socket() && metadata.mode() & 0o777 == 0o600, "{:o}", metadata.mode());
    ensure!(fs::metadata(directory)?.mode() & 0o077 == 0, "others may look into {}", directory.display());
    ensure!(fs::metadata(&node.root)?.mode() & 0o077 == 0, "others may look into {}", node.root.display());
    // Another user: the first of the subordinate ids, which needs no root. newuidmap(1) gives it.
    let copy = own_copy(node)?;
    fs::set_permissions(node.scratch.path(), fs::Permissions::from_mode(0o711))?;
    // The runner's directory, of this user too.
    let runners = node.scratch.path().parent().context("no parent")?;
    if runners != std::path::Path::new("/tmp") {
        fs::set_permissions(runners, fs::Permissions::from_mode(0o711))?;
    }
    let as_another = || -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-auto", "--setuid", "1", "--setgid", "1"]);
        command.arg(&copy).arg("--connect").arg(&socket);
        command::run(&mut command, Duration::from_secs(20))?.success("unshare")
    };
    let said = as_another()?;
    ensure!(said.contains("connect: PermissionDenied"), "through the directories: {said}");
    // Were every permission wrong, the credentials of the peer still decide: unix(7), SO_PEERCRED.
    for path in [node.runtime.as_path(), directory] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
    let said = as_another()?;
    ensure!(!said.contains("connect:"), "it did not even connect: {said}");
    ensure!(!said.contains("\"processes\""), "another user was served: {said}");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    let served = http::request(node, "GET", "/v1/status", b"")?;
    ensure!(served.status == 200, "its own user is not served: {served:?}");
    stage.finish()
}

fn check_problem(answer: &Answer, status: u16, code: &str, word: &str, what: &str) -> Result<()> {
    ensure!(answer.status == status, "{what}: {answer:?}, and not {status}");
    ensure!(answer.media_type == "application/problem+json", "{what}: {answer:?}");
    ensure!(text(&answer.body, "/code") == code, "{what}: {answer:?}, and not {code}");
    ensure!(answer.body["status"].as_u64() == Some(u64::from(status)), "{what}: {answer:?}");
    ensure!(
        text(&answer.body, "/type").ends_with(code) && !text(&answer.body, "/title").is_empty(),
        "{what}: {answer:?}"
    );
    let said = format!("{} {}", text(&answer.body, "/detail"), text(&answer.body, "/remedy"));
    ensure!(said.contains(word), "{what}: {said:?} does not say {word:?}");
    Ok(())
}

pub fn bad_requests(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    pause(node, "taken", "")?;
    let processes = whole(node)?;
    let run = |extra: &str| format!(r#"{{"root":{{"image":"{IMAGE}"}},"command":["true"]{extra}}}"#);
    let long = "x".repeat(300);
    let cases: Vec<(&str, &str, String, u16, &str, &str)> = vec![
        ("POST", "/v1/containers", run(r#","color":"red""#), 400, "invalid", "color"),
        ("POST", "/v1/containers", "{".to_owned(), 400, "invalid", "EOF"),
        ("POST", "/v1/containers", "[]".to_owned(), 400, "invalid", ""),
        ("POST", "/v1/containers", String::new(), 400, "invalid", "root"),
        ("POST", "/v1/containers", run(r#","name":"taken""#), 409, "name_in_use", "taken"),
        ("POST", "/v1/containers", run(r#","name":"../x""#), 400, "invalid", "../x"),
        ("POST", "/v1/containers", run(&format!(r#","name":"{long}""#)), 400, "invalid", "xxx"),
        ("POST", "/v1/containers", run(r#","networks":["none"]"#), 404, "not_found", "none"),
        ("POST", "/v1/containers", run(r#","pod":"none""#), 404, "not_found", "none"),
        ("POST", "/v1/containers", run(r#","working_dir":"relative""#), 400, "invalid", "relative"),
        ("POST", "/v1/containers", run(r#","env":[["A=B","c"]]"#), 400, "invalid", "A=B"),
        ("POST", "/v1/containers", run(r#","stop_signal":999"#), 400, "invalid", "999"),
        ("POST", "/v1/containers", run(r#","command":["a\u0000b"]"#), 400, "invalid", ""),
        ("POST", "/v1/containers", r#"{"root":{"image":"none"}}"#.to_owned(), 404, "not_found", "none"),
        (
            "POST",
            "/v1/containers",
            r#"{"root":{"rootfs":"relative"}}"#.to_owned(),
            400,
            "invalid",
            "relative",
        ),
        ("GET", "/v1/containers/none", String::new(), 404, "not_found", "none"),
        ("DELETE", "/v1/containers/taken", String::new(), 409, "wrong_state", "taken"),
        ("DELETE", "/v1/containers/taken?froce=true", String::new(), 400, "invalid", "froce"),
        ("GET", "/v1/containers?color=red", String::new(), 400, "invalid", "color"),
        ("DELETE", "/v1/networks/default", String::new(), 409, "in_use", "default"),
        ("POST", "/v1/networks", r#"{"name":"n","spec":{"color":1}}"#.to_owned(), 400, "invalid", "color"),
        ("GET", "/v1/none", String::new(), 404, "no_such_endpoint", "/v1/none"),
        ("PATCH", "/v1/containers", String::new(), 405, "method_not_allowed", "PATCH"),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, status, code, word) in &cases {
        let answer = http::request(node, method, path, body.as_bytes())?;
        let what = format!("{method} {path} {}", body.chars().take(90).collect::<String>());
        if let Err(error) = check_problem(&answer, *status, code, word, &what) {
            wrong.push(error.to_string());
        }
    }
    let large = http::request(node, "POST", "/v1/containers", &vec![b' '; (1 << 20) + 1])?;
    if let Err(error) = check_problem(&large, 413, "too_large", "1024", "a large body") {
        wrong.push(error.to_string());
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    check_rubbish(node)?;
    ensure!(node.names("ps --all")? == ["taken"], "a refused request left something");
    ensure!(whole(node)? == processes, "bad requests changed the node's processes");
    stage.finish()
}

/// What is no HTTP gets an error or nothing, and costs nobody anything.
fn check_rubbish(node: &Node) -> Result<()> {
    let endless = [b"GET /v1/status HTTP/1.1\r\nx: ".as_slice(), &vec![b'a'; 1 << 20], b"\r\n\r\n"].concat();
    for (what, bytes) in [
        ("rubbish", b"\x00\x01\x02\xff rubbish \r\n\r\n".to_vec()),
        ("half a request", b"POST /v1/containers HTTP/1.1\r\ncontent-length: 100\r\n\r\n{".to_vec()),
        ("nothing", Vec::new()),
        ("an endless header", endless),
    ] {
        let answer = http::raw(node, &bytes).with_context(|| what.to_owned())?;
        ensure!(answer.status == 0 || (400..500).contains(&answer.status), "{what}: {answer:?}");
        let after = http::request(node, "GET", "/v1/ping", b"")?;
        ensure!(after.status == 200, "after {what}: {after:?}");
    }
    Ok(())
}
