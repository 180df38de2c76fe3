//! What one client may take of the service, so that no other goes without.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::IpAddr,
    rc::Rc,
    time::{Duration, Instant},
};

/// Questions a second of one address; it may save up as many.
const RATE: u32 = 20_000;
/// Questions of one address that wait for a server outside.
const WAITING_MAX: u32 = 64;
/// Questions of all; each has a socket.
const WAITING_ALL_MAX: u32 = 256;
/// Open TCP connections of one address.
const CONNECTIONS_MAX: u32 = 8;
/// Open TCP connections of all.
const CONNECTIONS_ALL_MAX: u32 = 128;
/// Clients remembered before idle ones are forgotten.
const CLIENTS_MAX: usize = 4096;
/// A client that asked nothing for so long has saved up all that it may.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Client {
    tokens: f64,
    last: Instant,
    waiting: u32,
    connections: u32,
}

#[derive(Debug, Default)]
struct Inner {
    clients: BTreeMap<IpAddr, Client>,
    waiting: u32,
    connections: u32,
}

/// Every client's account. Only addresses that workloads have get one.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits(Rc<RefCell<Inner>>);

/// What is held of a limit; gives it back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    limits: Limits,
    client: IpAddr,
    connection: bool,
}

impl Inner {
    fn client(&mut self, address: IpAddr) -> &mut Client {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&address) {
            self.clients
                .retain(|_, client| client.waiting + client.connections > 0 || client.last.elapsed() < IDLE);
        }
        let fresh = || Client { tokens: f64::from(RATE), last: Instant::now(), waiting: 0, connections: 0 };
        self.clients.entry(address).or_insert_with(fresh)
    }
}

impl Limits {
    /// Whether a client may ask one more question now.
    pub fn admits(&self, address: IpAddr) -> bool {
        let mut inner = self.0.borrow_mut();
        let client = inner.client(address);
        let rate = f64::from(RATE);
        client.tokens = (client.tokens + client.last.elapsed().as_secs_f64() * rate).min(rate);
        client.last = Instant::now();
        let admitted = client.tokens >= 1.0;
        if admitted {
            client.tokens -= 1.0;
        }
        admitted
    }

    /// A place among the questions that wait, if there is one.
    pub fn wait(&self, address: IpAddr) -> Option<Held> {
        let mut inner = self.0.borrow_mut();
        if inner.waiting >= WAITING_ALL_MAX || inner.client(address).waiting >= WAITING_MAX {
            return None;
        }
        inner.waiting += 1;
        inner.client(address).waiting += 1;
        Some(Held { limits: self.clone(), client: address, connection: false })
    }

    /// A place for a connection, if there is one.
    pub fn connect(&self, address: IpAddr) -> Option<Held> {
        let mut inner = self.0.borrow_mut();
        if inner.connections >= CONNECTIONS_ALL_MAX || inner.client(address).connections >= CONNECTIONS_MAX {
            return None;
        }
        inner.connections += 1;
        inner.client(address).connections += 1;
        Some(Held { limits: self.clone(), client: address, connection: true })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut inner = self.limits.0.borrow_mut();
        if self.connection {
            inner.connections -= 1;
            inner.client(self.client).connections -= 1;
        } else {
            inner.waiting -= 1;
            inner.client(self.client).waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_client_at_its_limit_takes_nothing_from_another() {
        let limits = Limits::default();
        let [greedy, modest] = ["10.89.0.2", "10.89.0.3"].map(|it| it.parse().unwrap());
        let held: Vec<_> = (0..WAITING_MAX + 5).filter_map(|_| limits.wait(greedy)).collect();
        assert_eq!(held.len(), WAITING_MAX as usize);
        assert!(limits.wait(modest).is_some());
        drop(held);
        assert!(limits.wait(greedy).is_some());
        let connections: Vec<_> = (0..CONNECTIONS_MAX + 5).filter_map(|_| limits.connect(greedy)).collect();
        assert_eq!(connections.len(), CONNECTIONS_MAX as usize);
        assert!(limits.connect(modest).is_some());
        let admitted = (0..RATE * 3).filter(|_| limits.admits(greedy)).count();
        assert!(admitted < (RATE * 3) as usize, "it is cut off at some point: {admitted}");
        assert!(limits.admits(modest));
    }

    #[test]
    fn accounts_are_bounded() {
        let limits = Limits::default();
        for number in 0..CLIENTS_MAX as u32 + 10 {
            limits.admits(std::net::Ipv4Addr::from(number).into());
        }
        // Nobody was idle for long enough yet, so all are kept; later ones make room.
        limits.0.borrow_mut().clients.values_mut().for_each(|client| client.last -= IDLE);
        limits.admits("fd00::1".parse().unwrap());
        assert_eq!(limits.0.borrow().clients.len(), 1);
    }
}
