//! The pinger: ICMP echo (RFC 792) over a raw socket, paced by absolute time, so that a stall shows as loss
//! and not as a slower rate.

use super::{PingReport, answer};
use anyhow::{Context, Result};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt,
        socket, sockopt,
    },
};
use std::{
    io::Read,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

/// A request that is not answered by then is lost.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// The most requests of one helper: bounds its memory (at 1 kHz, more than an hour).
const REQUESTS_MAX: usize = 4_000_000;
/// Bytes of an echo request: header, then our sequence number.
const PACKET_BYTES: usize = 16;

struct Pinger {
    started: Instant,
    interval: Duration,
    /// Round trip of each request in nanoseconds; `None` while it is not answered.
    answers: Vec<Option<u64>>,
    mark: usize,
    id: u16,
}

pub fn run(to: Ipv4Addr, interval_us: u64) -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)
        .context("raw ICMP socket")?;
    setsockopt(&socket, sockopt::RcvBuf, &(1 << 20)).context("SO_RCVBUF")?;
    let target = SockaddrIn::from(SocketAddrV4::new(to, 0));
    let mut pinger = Pinger {
        started: Instant::now(),
        interval: Duration::from_micros(interval_us.max(100)),
        answers: Vec::new(),
        mark: 0,
        id: std::process::id() as u16,
    };
    let mut wanted: Option<usize> = None;
    let mut line = Vec::new();
    loop {
        while pinger.next_due() <= Instant::now() {
            anyhow::ensure!(pinger.answers.len() < REQUESTS_MAX, "sent {REQUESTS_MAX} requests: enough");
            let packet = request(pinger.id, pinger.answers.len() as u64);
            // A request that the kernel refuses to send (no route while the link is away) is a lost one.
            let _ = sendto(socket.as_raw_fd(), &packet, &target, MsgFlags::MSG_DONTWAIT);
            pinger.answers.push(None);
        }
        if let Some(until) = wanted
            && pinger.is_settled(until)
        {
            answer(&pinger.report(until))?;
            wanted = None;
        }
        let timeout = pinger.next_due().saturating_duration_since(Instant::now());
        let stdin = std::io::stdin();
        let mut fds =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        // Rounded down to whole milliseconds: the rest of a millisecond is spent looking.
        let timeout = PollTimeout::try_from(timeout.as_millis() as i32).unwrap_or(PollTimeout::ZERO);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("poll"),
        }
        let asked = fds[1].revents().is_some_and(|events| !events.is_empty());
        if fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) {
            pinger.drain(socket.as_raw_fd());
        }
        if asked {
            let mut byte = [0_u8; 64];
            let count = stdin.lock().read(&mut byte)?;
            if count == 0 {
                return Ok(());
            }
            line.extend_from_slice(&byte[..count]);
            while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                match line.drain(..=end).collect::<Vec<u8>>().as_slice() {
                    b"mark\n" => {
                        pinger.mark = pinger.answers.len();
                        answer(&true)?;
                    }
                    _ => wanted = Some(pinger.answers.len()),
                }
            }
        }
    }
}

impl Pinger {
    fn sent_at(&self, index: usize) -> Instant {
        self.started + self.interval.saturating_mul(index as u32)
    }

    fn next_due(&self) -> Instant {
        self.sent_at(self.answers.len())
    }

    /// Whether every request before `until` is answered or lost.
    fn is_settled(&self, until: usize) -> bool {
        let now = Instant::now();
        (self.mark..until)
            .rev()
            .take_while(|index| now.duration_since(self.sent_at(*index)) < ANSWER_DEADLINE)
            .all(|index| self.answers[index].is_some())
    }

    fn drain(&mut self, socket: i32) {
        let mut buffer = [0_u8; 256];
        while let Ok(count) = recv(socket, &mut buffer, MsgFlags::MSG_DONTWAIT) {
            let now = Instant::now();
            let Some(index) = reply(&buffer[..count], self.id) else { continue };
            if index >= self.answers.len() || self.answers[index].is_some() {
                continue;
            }
            let trip = now.saturating_duration_since(self.sent_at(index));
            if trip < ANSWER_DEADLINE {
                self.answers[index] = Some(trip.as_nanos() as u64);
            }
        }
    }

    fn report(&self, until: usize) -> PingReport {
        let window = &self.answers[self.mark.min(until)..until];
        let mut trips: Vec<u64> = window.iter().flatten().copied().collect();
        trips.sort_unstable();
        let (mut longest, mut run) = (0_u64, 0_u64);
        for answer in window {
            run = if answer.is_some() { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        PingReport {
            sent: window.len() as u64,
            received: trips.len() as u64,
            lost: (window.len() - trips.len()) as u64,
            outage_ms: longest as f64 * self.interval.as_secs_f64() * 1e3,
            silence_ms: run as f64 * self.interval.as_secs_f64() * 1e3,
            rtt_us: trips.get(trips.len() / 2).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3),
        }
    }
}

fn request(id: u16, sequence: u64) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&(sequence as u16).to_be_bytes());
    packet[8..16].copy_from_slice(&sequence.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The sequence number of an answer to one of our requests: an IPv4 header, then an echo reply.
fn reply(bytes: &[u8], id: u16) -> Option<usize> {
    let header = usize::from(bytes.first()? & 0x0f) * 4;
    let icmp = bytes.get(header..header + PACKET_BYTES)?;
    let ours = icmp[0] == 0 && icmp[4..6] == id.to_be_bytes();
    ours.then(|| u64::from_be_bytes(icmp[8..16].try_into().unwrap_or_default()) as usize)
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sums_to_zero_and_its_answer_is_recognised() {
        let packet = request(7, 70_000);
        assert_eq!(checksum(&packet), 0, "a packet with its checksum sums to zero");
        let mut answer = vec![0x45; 20];
        answer.extend(packet);
        assert_eq!(reply(&answer, 7), None, "an echo request is no reply");
        answer[20] = 0;
        assert_eq!(reply(&answer, 7), Some(70_000));
        assert_eq!(reply(&answer, 8), None, "another pinger's");
        assert_eq!(reply(&answer[..30], 7), None, "cut short");
    }

    #[test]
    fn the_outage_is_the_longest_run_of_losses() {
        let answers = [1, 0, 0, 0, 1, 1, 0, 1].map(|ok| (ok == 1).then_some(5_000)).to_vec();
        let pinger =
            Pinger { started: Instant::now(), interval: Duration::from_millis(10), answers, mark: 0, id: 1 };
        let report = pinger.report(8);
        assert_eq!((report.sent, report.received, report.lost), (8, 4, 4));
        assert!((report.outage_ms - 30.0).abs() < 1e-6 && (report.rtt_us - 5.0).abs() < 1e-6);
    }
}
