//! What pods of the field ask for, each exactly.

use super::client::{Pod, finish, plugin, reach, watch};
use crate::{ports::datagrams_come_back, runner::Context};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    poll,
    stage::{HEAL_DEADLINE, free_port},
    traffic::http_get,
};
use holdfast_tests::virtual_kubelet::Phase;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a monitor may go on writing what its container wrote before its end.
const LOG_DEADLINE: Duration = Duration::from_secs(5);

/// A container that runs a script.
fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "busybox:latest", "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", script]})
}

fn mounting(mut container: Value, mounts: Value) -> Value {
    container["volumeMounts"] = mounts;
    container
}

fn once(containers: Value) -> Value {
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": containers})
}

/// A pod, the phase it must come to, and what its containers must have written.
struct Expected {
    pod: Pod,
    phase: Phase,
    logs: Vec<(&'static str, String)>,
}

fn expect(pod: Pod, phase: Phase, logs: &[(&'static str, &str)]) -> Expected {
    Expected { pod, phase, logs: logs.iter().map(|(name, text)| (*name, (*text).to_owned())).collect() }
}

const PEM: &str = "-----BEGIN KEY-----\nMIIB \"x\" `y` $z\\n\n\n-----END KEY-----\n";

fn plain() -> Vec<Expected> {
    let argv = json!([{"name": "main", "image": "docker.io/library/busybox:latest", "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/printf"], "args": ["[%s]", "a b", "\"q\"", "`x`", "$HOME", "", "$(V)", "$$(V)", "l\nf"],
        "env": [{"name": "V", "value": "1 2"}]}]);
    let env = json!([{"name": "main", "image": "busybox", "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", "printf '%s|%s|%s' \"$PEM\" \"$EMPTY\" \"$Q\""],
        "env": [{"name": "PEM", "value": PEM}, {"name": "EMPTY", "value": ""}, {"name": "Q", "value": "'\"`$(x)$$"}]}]);
    let mut inits =
        once(json!([mounting(sh("main", "cat /d/x"), json!([{"name": "d", "mountPath": "/d"}]))]));
    let write = |name: &str| {
        mounting(
            sh(name, &format!("sleep 0.1; echo {name} >> /d/x")),
            json!([{"name": "d", "mountPath": "/d"}]),
        )
    };
    inits["initContainers"] = json!([write("one"), write("two"), write("three")]);
    inits["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    let mut broken = once(json!([sh("main", "echo never")]));
    broken["initContainers"] =
        json!([sh("good", "true"), sh("bad", "echo why; exit 4"), sh("later", "echo never")]);
    let mut user = once(json!([sh("main", "id -u; id -g; id -G")]));
    user["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1001, "supplementalGroups": [1002]});
    let localhost = once(json!([
        sh("server", "echo held | nc -l -p 8080"),
        sh(
            "client",
            "for i in $(seq 100); do nc 127.0.0.1 8080 </dev/null | grep held && exit 0; sleep 0.1; done; exit 1"
        )
    ]));
    let mut again = once(json!([mounting(
        sh("main", "if [ -f /d/x ]; then echo second; else touch /d/x; echo first; exit 1; fi"),
        json!([{"name": "d", "mountPath": "/d"}])
    )]));
    again["restartPolicy"] = json!("OnFailure");
    again["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    let mut limited = once(json!([sh("main", "exit 3")]));
    limited["containers"][0]["resources"] = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    vec![
        expect(
            Pod::new("argv", once(argv)),
            Phase::Succeeded,
            &[("main", "[a b][\"q\"][`x`][$HOME][][1 2][$(V)][l\nf]")],
        ),
        expect(Pod::new("env", once(env)), Phase::Succeeded, &[("main", &format!("{PEM}||'\"`$(x)$$"))]),
        expect(Pod::new("inits", inits), Phase::Succeeded, &[("main", "one\ntwo\nthree\n"), ("one", "")]),
        expect(Pod::new("init-fails", broken), Phase::Failed, &[("bad", "why\n"), ("main", "")]),
        expect(Pod::new("user", user), Phase::Succeeded, &[("main", "1000\n1001\n1001 1002\n")]),
        expect(Pod::new("localhost", localhost), Phase::Succeeded, &[("client", "held\n")]),
        expect(Pod::new("again", again), Phase::Succeeded, &[("main", "second\n")]),
        expect(Pod::new("limited", limited), Phase::Failed, &[("main", "")]),
    ]
}

fn volumes(host: &str) -> Vec<Expected> {
    let look = "cd /v; for f in $(find . -type f | sort); do echo $f $(stat -L -c %a $f) $(hexdump -v -e '1/1 \"%02x\"' $f); done";
    let maps = json!([
        {"metadata": {"name": "a"}, "data": {"x.conf": "k=v\n", "other": "z"}, "binaryData": {"bin": "AP+A"}},
        {"metadata": {"name": "b"}, "data": {"only": "b"}}
    ]);
    let mount = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"name": name, "mountPath": format!("/v/{name}")})).collect()
    };
    let mut files = once(json!([mounting(
        sh("main", look),
        mount(&["all", "items", "second", "secret", "token", "none"])
    )]));
    files["volumes"] = json!([
        {"name": "all", "configMap": {"name": "a"}},
        {"name": "items", "configMap": {"name": "a", "defaultMode": 292, "items": [{"key": "x.conf", "path": "sub/renamed", "mode": 448}, {"key": "bin", "path": "bin"}]}},
        {"name": "second", "configMap": {"name": "b"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 256}},
        {"name": "token", "projected": {"defaultMode": 420, "sources": []}},
        {"name": "none", "secret": {"secretName": "missing", "optional": true}}
    ]);
    let files = Pod::new("files", files)
        .with("configMaps", maps)
        .with(
            "secrets",
            json!([{"metadata": {"name": "s"}, "data": {"p": "cEA="}, "stringData": {"t": "x"}}]),
        )
        .with("projectedvolumemaps", json!([{"metadata": {"name": "token"}, "data": {"token": "t0"}}]));
    let listed = "./all/bin 644 00ff80\n./all/other 644 7a\n./all/x.conf 644 6b3d760a\n./items/bin 444 00ff80\n\
        ./items/sub/renamed 700 6b3d760a\n./second/only 644 62\n./secret/p 400 7040\n./secret/t 400 78\n./token/token 644 7430\n";
    let shared = "echo sub > /part/f; cat /whole/a/b/f; echo host > /made/deep; cat /file; touch /ro/x 2>/dev/null || echo read-only; mkdir /new 2>/dev/null || echo closed";
    let mut paths = once(json!([mounting(
        sh("main", shared),
        json!([
        {"name": "d", "mountPath": "/part", "subPath": "a/b"}, {"name": "d", "mountPath": "/whole"},
        {"name": "d", "mountPath": "/ro", "readOnly": true},
        {"name": "made", "mountPath": "/made"}, {"name": "file", "mountPath": "/file"}])
    )]));
    paths["containers"][0]["securityContext"] = json!({"readOnlyRootFilesystem": true});
    paths["volumes"] = json!([{"name": "d", "emptyDir": {}},
        {"name": "made", "hostPath": {"path": format!("{host}/made"), "type": "DirectoryOrCreate"}},
        {"name": "file", "hostPath": {"path": format!("{host}/file"), "type": "File"}}]);
    let mut absent = once(json!([mounting(sh("main", "true"), json!([{"name": "h", "mountPath": "/h"}]))]));
    absent["volumes"] =
        json!([{"name": "h", "hostPath": {"path": format!("{host}/absent"), "type": "Directory"}}]);
    let mut escape = once(json!([mounting(
        sh("main", "ls /s"),
        json!([{"name": "d", "mountPath": "/s", "subPath": "link"}])
    )]));
    escape["initContainers"] =
        json!([mounting(sh("first", "ln -s / /d/link"), json!([{"name": "d", "mountPath": "/d"}]))]);
    escape["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    vec![
        expect(files, Phase::Succeeded, &[("main", listed)]),
        expect(
            Pod::new("paths", paths),
            Phase::Succeeded,
            &[("main", "sub\nof the host\nread-only\nclosed\n")],
        ),
        expect(Pod::new("absent", absent), Phase::Failed, &[]),
        expect(Pod::new("escape", escape), Phase::Failed, &[("main", "")]),
    ]
}

pub fn conformance(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let host = node.scratch.path().join("host");
    std::fs::create_dir(&host)?;
    std::fs::write(host.join("file"), "of the host\n")?;
    let mut all = plain();
    all.extend(volumes(&host.display().to_string()));
    // All at once: each is itself, whatever the others are.
    let mut watched = Vec::new();
    for expected in &all {
        watched.push(expected.pod.create(node).with_context(|| expected.pod.name().to_owned())?);
    }
    for (expected, watched) in all.iter().zip(&mut watched) {
        reach(node, &expected.pod, watched, expected.phase)?;
        for (container, text) in &expected.logs {
            // The end of a container is known by its process; on a busy machine its monitor still writes then.
            let told = || -> Result<Option<()>> {
                let (status, log) = expected.pod.log(node, container, json!({}))?;
                ensure!(status == 200 && text.starts_with(&log), "{container}: {status} {log:?}");
                Ok((log == *text).then_some(()))
            };
            poll::until("the whole log", LOG_DEADLINE, told)
                .with_context(|| expected.pod.name().to_owned())?;
        }
    }
    let ended = |name: &str, container: &str| -> Result<Value> {
        let place = all.iter().position(|expected| expected.pod.name() == name).context("no such pod")?;
        let state = watched[place].container(container).context("no such container")?.clone();
        Ok(state)
    };
    let limited = ended("limited", "main")?;
    ensure!(limited["state"]["terminated"]["exitCode"] == 3, "{limited}");
    let message = limited["state"]["terminated"]["message"].as_str().unwrap_or_default().to_owned();
    ensure!(
        message.contains("500m") && message.contains("64Mi"),
        "limits are ignored in silence: {message:?}"
    );
    let again = ended("again", "main")?;
    ensure!(again["restartCount"] == 1, "{again}");
    let before = all.iter().find(|expected| expected.pod.name() == "again").context("again")?;
    let (status, log) = before.pod.log(node, "main", json!({"Previous": true}))?;
    ensure!(status == 200 && log == "first\n", "the log of the start before the last: {status} {log:?}");
    for (name, container, says) in [
        ("init-fails", "main", "bad ended with 4"),
        ("absent", "main", "absent"),
        ("escape", "main", "symbolic link"),
    ] {
        let state = ended(name, container)?;
        let told = state["state"]["terminated"]["message"].as_str().unwrap_or_default();
        ensure!(told.contains(says), "{name} must say {says:?}: {state}");
    }
    ensure!(host.join("made/deep").exists(), "DirectoryOrCreate made nothing");
    for expected in &all {
        expected.pod.delete(node)?;
    }
    ensure!(
        host.join("made/deep").exists() && host.join("file").exists(),
        "a delete removed files of the host"
    );
    finish(stage)
}

pub fn refused(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let mut host = once(json!([sh("main", "true")]));
    host["hostNetwork"] = json!(true);
    let mut claim = once(json!([sh("main", "true")]));
    claim["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let mut gpu = once(json!([sh("main", "true")]));
    gpu["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    let mut secret = once(json!([sh("main", "true")]));
    secret["volumes"] = json!([{"name": "v", "secret": {"secretName": "nowhere"}}]);
    for (name, spec, says) in [
        ("host", host, "hostNetwork"),
        ("claim", claim, "persistentVolumeClaim"),
        ("gpu", gpu, "nvidia.com/gpu"),
        ("secret", secret, "nowhere"),
        ("none", once(json!([])), "containers"),
    ] {
        let (status, body) = Pod::new(name, spec).post(node)?;
        ensure!(status == 422 && body.contains(says), "{name} must be refused for {says}: {status} {body}");
    }
    for body in [json!([]), json!([{}, {}]), json!("x")] {
        let (status, said) = super::client::call(node, "POST", "/create", &body)?;
        ensure!(status == 422 && !said.is_empty(), "{body}: {status} {said}");
    }
    let (status, ping) = super::client::call(node, "GET", "/status", &json!([]))?;
    let ping: Value = serde_json::from_str(&ping)?;
    ensure!(status == 200 && ping["status"] == "ok" && ping["resources"]["cpu"].is_string(), "{ping}");
    ensure!(ping.get("taints").is_none(), "an empty list would clear the node's taints: {ping}");
    ensure!(node.names("pod ls")?.is_empty(), "a refused pod left something");
    finish(stage)
}

pub fn host_ports(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let (tcp, udp) = (free_port()?, free_port()?);
    let mut spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": [
        sh("web", "httpd -f -p 80 -h /www"), sh("echo", "exec /bin/pause")]});
    spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": tcp.port()}]);
    spec["containers"][1]["ports"] =
        json!([{"containerPort": 53, "hostPort": udp.port(), "protocol": "UDP"}]);
    let pod = Pod::new("ports", spec.clone());
    let mut watched = pod.create(node)?;
    reach(node, &pod, &mut watched, Phase::Running)?;
    poll::until("the host port to answer", HEAL_DEADLINE, || {
        Ok(http_get(tcp, Duration::from_secs(1)).ok().filter(|page| page == "held fast\n").map(drop))
    })?;
    let jid = watched.last["JID"].as_str().context("no JID")?.to_owned();
    datagrams_come_back(node, &format!("{jid}-echo"), udp.port())?;
    // A port that is taken: told, and nothing of the pod is left running.
    let other = Pod::new("taken", spec);
    let mut second = other.create(node)?;
    watch(node, &other, &mut second, |it| it.phase == Phase::Failed)?;
    let told = second.container("web").context("web")?["state"]["terminated"]["message"].to_string();
    ensure!(told.contains(&tcp.port().to_string()), "a taken port must be named: {told}");
    pod.delete(node)?;
    other.delete(node)?;
    finish(stage)
}
