//! Starts a control in the pin's namespaces.

use super::{LinuxKeepers, command_inside, namespace::namespaces_of, stale};
use crate::{
    process::{ProcessWatch, process_ref, reap_in_background},
    protocol::{self, GreetError, Role},
};
use holdfast_core::{
    error::{Class, KeeperError},
    id::ProcessRef,
};
use std::{process::Stdio, time::Duration};

/// How long a control may take to answer.
const START_DEADLINE: Duration = Duration::from_secs(5);
/// How long a control that may serve already has to say so; one that does takes under a millisecond.
const LOOK_DEADLINE: Duration = Duration::from_millis(250);
/// Between two tries to connect to a control that does not listen yet.
const RETRY_PERIOD: Duration = Duration::from_millis(2);

impl LinuxKeepers {
    pub(super) async fn spawn_control(&self, pin: &ProcessRef) -> Result<ProcessRef, KeeperError> {
        let fail = |class, cause: String| KeeperError::new(class, "start", "control", cause);
        if let Some(serving) = self.serving_control(pin).await {
            return Ok(serving);
        }
        let log_path = self.paths.runtime.join("control.log");
        let log = stale::open_log(&log_path)
            .map_err(|error| fail(Class::Denied, format!("{}: {error}", log_path.display())))?;
        let errors = log.try_clone().map_err(|error| fail(Class::Exhausted, error.to_string()))?;
        let mut command = command_inside(pin, self.exe())?;
        command.arg0("holdfast").arg("control");
        command.arg("--state").arg(&self.paths.state).arg("--runtime").arg(&self.paths.runtime);
        command.stdin(Stdio::null()).stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        // SAFETY: the closure runs in the forked child and makes one system call.
        unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(std::io::Error::from)) };
        let mut child = command.spawn().map_err(|error| {
            fail(Class::Transient, format!("{}: {error}", self.exe().display()))
                .with_remedy("is the pin alive?")
        })?;
        let process = child.id().map(process_ref).and_then(Result::ok).flatten();
        let result = match &process {
            Some(process) => self.await_control(process, pin).await,
            None => Err("it ended at once".to_owned()),
        };
        if result.is_err() {
            // A control that nobody knows of must not live on.
            let _ = child.start_kill();
        }
        reap_in_background(child);
        match (result, process) {
            (Ok(()), Some(process)) => Ok(process),
            (Err(cause), _) => {
                let tail = stale::log_tail(&log_path);
                Err(fail(Class::Transient, format!("{cause}{tail}"))
                    .with_remedy(format!("see {}", log_path.display())))
            }
            (Ok(()), None) => Err(fail(Class::Transient, "it ended at once".to_owned())),
        }
    }

    /// A control of this build that answers and lives where the pin does: it is what was asked for.
    async fn serving_control(&self, pin: &ProcessRef) -> Option<ProcessRef> {
        let greeted = protocol::greet(&self.paths.control_socket(), Role::Daemon, LOOK_DEADLINE).await;
        let (_, greeting) = greeted.ok()?;
        let of_pin = namespaces_of(pin).ok().flatten();
        (of_pin == Some(greeting.namespaces)).then_some(greeting.process)
    }

    async fn await_control(&self, process: &ProcessRef, pin: &ProcessRef) -> Result<(), String> {
        let socket = self.paths.control_socket();
        let watch =
            ProcessWatch::open(process).map_err(|error| error.to_string())?.ok_or("it ended at once")?;
        let answered = async {
            loop {
                match protocol::greet(&socket, Role::Daemon, START_DEADLINE).await {
                    Ok((_, greeting)) if greeting.process == *process => break Ok(greeting),
                    Ok((_, greeting)) => {
                        break Err(format!(
                            "another control ({}) holds {}",
                            greeting.process,
                            socket.display()
                        ));
                    }
                    Err(GreetError::Foreign(peer, cause)) => {
                        break Err(match peer {
                            Some(peer) => format!("{peer} holds {}: {cause}", socket.display()),
                            None => cause,
                        });
                    }
                    Err(GreetError::Absent(_) | GreetError::Silent(_)) => {
                        tokio::time::sleep(RETRY_PERIOD).await
                    }
                }
            }
        };
        let greeting = tokio::select! {
            biased;
            answered = answered => answered?,
            _ = watch.exited() => return Err(match watch.exit_status() {
                Some(status) => format!("it ended with status {}", status.code()),
                None => "it ended".to_owned(),
            }),
            () = tokio::time::sleep(START_DEADLINE) => {
                return Err(format!("no answer on {} after {} s", socket.display(), START_DEADLINE.as_secs()));
            }
        };
        let expected = namespaces_of(pin).map_err(|error| error.to_string())?;
        if expected.is_some_and(|expected| expected != greeting.namespaces) {
            return Err("it is in other namespaces than the pin".to_owned());
        }
        Ok(())
    }
}
