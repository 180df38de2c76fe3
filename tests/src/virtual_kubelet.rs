//! What the virtual kubelet makes of a plugin's status, its mistakes and panics included: an answer that it would
//! misread is a fault of the plugin.

use serde_json::Value;

/// A pod's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// A container runs.
    Running,
    /// All ended with 0.
    Succeeded,
    /// One ended otherwise.
    Failed,
}

/// One pod, as the virtual kubelet holds it.
#[derive(Clone, Debug)]
pub struct Watched {
    uid: String,
    inits: Vec<String>,
    apps: Vec<String>,
    /// What was concluded last.
    pub phase: Phase,
    /// The last status of it.
    pub last: Value,
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let containers = pod.pointer(list).and_then(Value::as_array);
    containers.into_iter().flatten().filter_map(|one| Some(one.get("name")?.as_str()?.to_owned())).collect()
}

enum State {
    Empty,
    Waiting,
    Running,
    Ended(i64),
}

impl Watched {
    /// A pod that was just created.
    pub fn new(pod: &Value) -> Self {
        Self {
            uid: pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned(),
            inits: names(pod, "/spec/initContainers"),
            apps: names(pod, "/spec/containers"),
            phase: Phase::Pending,
            last: Value::Null,
        }
    }

    /// Takes an answer of `/status` and concludes.
    ///
    /// # Errors
    /// Where the virtual kubelet would panic, drop the whole batch or conclude what is not so.
    pub fn take(&mut self, answer: &Value) -> Result<Phase, String> {
        let list = answer.as_array().ok_or("the answer is no array: the whole batch is lost")?;
        let Some(status) = list.iter().find(|one| one.get("UID").and_then(Value::as_str) == Some(&self.uid))
        else {
            return Ok(self.phase);
        };
        let inits = Self::states(status, "initContainers", &self.inits)?;
        let apps = Self::states(status, "containers", &self.apps)?;
        self.last = status.clone();
        let mut initialized = true;
        for (name, state) in self.inits.iter().zip(&inits) {
            match state {
                State::Ended(0) => {}
                State::Ended(code) => {
                    if apps.iter().any(|app| !matches!(app, State::Ended(code) if *code != 0)) {
                        return Err(format!(
                            "init container {name} ended with {code} and the pod would be pending for ever: {status}"
                        ));
                    }
                    self.phase = Phase::Failed;
                    return Ok(self.phase);
                }
                State::Waiting | State::Running | State::Empty => initialized = false,
            }
        }
        if !initialized {
            if apps.iter().any(|app| !matches!(app, State::Waiting)) {
                return Err(format!("a container is not waiting while its pod initializes: {status}"));
            }
            self.phase = Phase::Pending;
            return Ok(self.phase);
        }
        self.phase = if apps.iter().any(|app| matches!(app, State::Running)) {
            Phase::Running
        } else if apps.iter().all(|app| matches!(app, State::Ended(0))) {
            Phase::Succeeded
        } else if apps.iter().all(|app| matches!(app, State::Ended(_))) {
            Phase::Failed
        } else if apps.iter().any(|app| matches!(app, State::Waiting)) {
            Phase::Pending
        } else {
            self.phase
        };
        Ok(self.phase)
    }

    fn states(status: &Value, list: &str, expected: &[String]) -> Result<Vec<State>, String> {
        let told = status.get(list).and_then(Value::as_array);
        let told = told.ok_or_else(|| format!("{list} is no array: {status}"))?;
        let found: Vec<&str> = told.iter().filter_map(|one| one.get("name")?.as_str()).collect();
        if found != expected {
            // One omitted: Succeeded, or a panic; out of order: a panic.
            return Err(format!("{list} are {found:?} and must be {expected:?}"));
        }
        let mut open = false;
        let mut states = Vec::new();
        for one in told {
            let state = Self::state(one.get("state").unwrap_or(&Value::Null))?;
            if list == "initContainers" {
                if open && !matches!(state, State::Waiting) {
                    return Err(format!(
                        "init containers out of order: the virtual kubelet panics: {status}"
                    ));
                }
                open |= !matches!(state, State::Ended(_));
            }
            let ready = one.get("ready").and_then(Value::as_bool).unwrap_or(false);
            if ready != matches!(state, State::Running)
                && !(list == "initContainers" && matches!(state, State::Ended(0)))
            {
                return Err(format!("ready is {ready} beside its state: {one}"));
            }
            states.push(state);
        }
        Ok(states)
    }

    fn state(state: &Value) -> Result<State, String> {
        let time = |parent: &Value, key: &str| match parent.get(key) {
            None => Ok(()),
            Some(Value::String(text)) if holdfast_core::interlink::timestamp::parse(text).is_some() => Ok(()),
            Some(other) => Err(format!("{key} is {other}: one bad time fails the whole batch")),
        };
        if let Some(running) = state.get("running") {
            time(running, "startedAt")?;
            return Ok(State::Running);
        }
        if let Some(ended) = state.get("terminated") {
            time(ended, "startedAt")?;
            time(ended, "finishedAt")?;
            let code = ended.get("exitCode").and_then(Value::as_i64);
            return code.map(State::Ended).ok_or_else(|| format!("no exit code: {ended}"));
        }
        Ok(if state.get("waiting").is_some() { State::Waiting } else { State::Empty })
    }

    /// The state of a container in the last status.
    pub fn container(&self, name: &str) -> Option<&Value> {
        ["initContainers", "containers"]
            .iter()
            .filter_map(|list| self.last.get(list)?.as_array())
            .flatten()
            .find(|one| one.get("name").and_then(Value::as_str) == Some(name))
    }
}
