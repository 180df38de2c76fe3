//! Published ports.

use crate::{
    runner::Context,
    support::{IMAGE, own_copy, pause, serve, stage, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    census::Census,
    node::{Node, Role},
    poll, process,
    stage::{HEAL_DEADLINE, free_port},
    traffic::http_get,
};
use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(1);

fn answers(port: SocketAddr) -> Result<()> {
    poll::until("the published port to answer", HEAL_DEADLINE, || {
        Ok(http_get(port, PATIENCE).ok().filter(|page| page == "held fast\n").map(drop))
    })
}

pub fn answers_at_once(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let port = free_port()?;
    serve(node, "web", &format!("-p {port}:80"))?;
    // Bound before success: this connection may be answered late, and never refused.
    TcpStream::connect_timeout(&port, PATIENCE).context("connect right after run")?;
    answers(port)?;
    let web = node.await_running("web", HEAL_DEADLINE)?;
    node.sh("restart --time 1 web")?;
    TcpStream::connect_timeout(&port, PATIENCE).context("connect right after restart")?;
    answers(port)?;
    // The helper's replacement gets them again.
    let before = whole(node)?;
    process::kill_all(&[before.uplink])?;
    node.await_processes("a new uplink", HEAL_DEADLINE, |now| now.get(Role::Uplink) != before.uplink)?;
    TcpStream::connect_timeout(&port, PATIENCE).context("connect once the uplink is back")?;
    answers(port)?;
    ensure!(node.container("web")?.interfaces == web.interfaces, "web moved");
    // A port of the node's choice is told, and is bound.
    pause(node, "udp", "-p 127.0.0.1:0:53/udp")?;
    let chosen = node.json("inspect udp")?.pointer("/ports/0/host_port").and_then(serde_json::Value::as_u64);
    let chosen = u16::try_from(chosen.context("no port is told")?)?;
    ensure!(chosen != 0, "port 0 is no port");
    ensure!(UdpSocket::bind(("127.0.0.1", chosen)).is_err(), "UDP port {chosen} is told, and not bound");
    datagrams_come_back(node, "udp", chosen)?;
    node.sh("rm --force web")?;
    ensure!(TcpListener::bind(port).is_ok(), "rm left the port bound");
    stage.finish()
}

/// A published UDP port carries questions and answers, for a client on the host's loopback too.
pub fn datagrams_come_back(node: &Node, name: &str, host_port: u16) -> Result<()> {
    let init = node.await_running(name, HEAL_DEADLINE)?.running()?;
    let mut command = Command::new(&node.identity.chaos);
    command.args(["inside", "--pid", &init.pid.to_string(), "exec", "--"]);
    command.arg(own_copy(node)?).args(["--echo", "0.0.0.0:53"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut echo = command.spawn().context("start the echo")?;
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.set_read_timeout(Some(Duration::from_millis(200)))?;
    let answered = poll::until("an answer to a datagram", HEAL_DEADLINE, || {
        client.send_to(b"held fast", ("127.0.0.1", host_port))?;
        let mut bytes = [0; 64];
        Ok(client.recv(&mut bytes).is_ok_and(|length| &bytes[..length] == b"held fast").then_some(()))
    });
    // It is this test's own child, and it is waited for: nothing is left, whatever came of it.
    let _ = echo.kill();
    echo.wait()?;
    answered
}

pub fn taken_is_refused(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let processes = whole(node)?;
    let empty = Census::take(&node.identity, processes.control)?;
    let foreign = TcpListener::bind("127.0.0.1:0")?;
    let taken = foreign.local_addr()?;
    let line = |name: &str, port: SocketAddr| format!("run -d --name {name} -p {port}:80 {IMAGE} pause");
    let said = node.refused(&line("never", taken))?;
    ensure!(said.contains(&taken.port().to_string()), "{said}");
    ensure!(node.names("ps --all")?.is_empty(), "a refused run left its container");
    let census = Census::take(&node.identity, processes.control)?;
    ensure!(census.added_since(&empty).is_empty(), "left behind: {:?}", census.added_since(&empty));
    drop(foreign);
    // The name, the address and the port are free again.
    serve(node, "never", &format!("-p {taken}:80"))?;
    answers(taken)?;
    let said = node.refused(&line("second", taken))?;
    ensure!(said.contains(&taken.port().to_string()), "{said}");
    answers(taken)?;
    let said = node.refused(&format!("pod create p -p {taken}:80"))?;
    ensure!(said.contains(&taken.port().to_string()), "{said}");
    ensure!(node.names("ps --all")? == ["never"] && node.names("pod ls")?.is_empty(), "left over");
    // Another protocol is another port.
    pause(node, "other", &format!("-p {taken}:80/udp"))?;
    stage.finish()
}
