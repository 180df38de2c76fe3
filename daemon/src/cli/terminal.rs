//! The user's terminal in raw mode, for as long as a command in a container has it.

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal, Stdin};

/// Raw mode, taken back when dropped.
#[derive(Debug)]
pub struct Raw {
    stdin: Stdin,
    before: Termios,
}

impl Raw {
    /// Sets standard input to raw mode; `None` when it is no terminal.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { stdin, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone: there is nothing left to restore then.
        let _ = tcsetattr(&self.stdin, SetArg::TCSANOW, &self.before);
    }
}

/// Rows and columns of standard output's terminal; `None` where there is none.
pub fn size() -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a winsize, which `size` is and which outlives the call.
    let read = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (read == 0 && size.ws_row > 0).then_some((size.ws_row, size.ws_col))
}
