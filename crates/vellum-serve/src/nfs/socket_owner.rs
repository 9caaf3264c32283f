//! Whose a connection of this machine is: the kernel knows it, whatever its messages say.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Which of the fields of a line is the state, and which the user.
const STATE_FIELD: usize = 3;
const USER_FIELD: usize = 7;
/// A connection that neither end has begun to close.
const ESTABLISHED: &str = "01";

/// Returns the user who has opened the other end of a connection within this machine: 0 also for the kernel itself. None: it is
/// gone, or cannot be found.
pub fn find_socket_owner(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    // A program may reach an address of version 4 through a socket of version 6.
    let tables = match peer.is_ipv4() {
        true => ["/proc/net/tcp", "/proc/net/tcp6"].as_slice(),
        false => ["/proc/net/tcp6"].as_slice(),
    };
    tables.iter().find_map(|table| {
        let is_wide = table.ends_with('6');
        let ends = format!("{} {}", format_end(peer, is_wide), format_end(own, is_wide));
        find_owner(&fs::read_to_string(table).ok()?, &ends)
    })
}

/// The user in the line with these ends.
fn find_owner(table: &str, ends: &str) -> Option<u32> {
    let line = table.lines().find(|line| line.contains(ends))?;
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    // A socket that its program has closed is nobody's any more, and is listed as root's.
    let is_held = fields.get(STATE_FIELD) == Some(&ESTABLISHED);
    fields.get(USER_FIELD).filter(|_| is_held)?.parse().ok()
}

/// An end as these tables have it: words of the address as this machine has them in memory, and the port.
fn format_end(end: SocketAddr, is_wide: bool) -> String {
    let octets = match end.ip() {
        IpAddr::V4(address) if is_wide => address.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut text = String::new();
    for word in octets.as_chunks::<4>().0 {
        // Writing into a string does not fail.
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", end.port());
    text
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_are_those_of_this_user() {
        let user = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Not every machine has version 6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let accepted = listener.accept().unwrap().0;
            let peer = accepted.peer_addr().unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!(find_socket_owner(peer, accepted.local_addr().unwrap()), Some(user));
            let other = SocketAddr::new(peer.ip(), peer.port() ^ 1);
            assert_eq!(find_socket_owner(other, accepted.local_addr().unwrap()), None);
            // Of one that was closed nobody can tell any more.
            drop(client);
            assert_eq!(find_socket_owner(peer, accepted.local_addr().unwrap()), None);
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_user_is_in_the_line_of_both_ends() {
        let ends = |is_wide| {
            let [peer, own] = ["127.0.0.1:48879", "127.0.0.1:2049"].map(|end| end.parse().unwrap());
            format!("{} {}", format_end(peer, is_wide), format_end(own, is_wide))
        };
        assert_eq!(ends(false), "0100007F:BEEF 0100007F:0801");
        assert!(ends(true).starts_with("0000000000000000FFFF00000100007F:BEEF "));
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
                     0: 0100007F:0801 0100007F:BEEF 01 00000000:00000000 00:00000000 00000000     0        0 1\n\
                     1: 0100007F:BEEF 0100007F:0801 01 00000000:00000000 00:00000000 00000000  1000        0 2\n";
        assert_eq!(find_owner(table, &ends(false)), Some(1000));
        assert_eq!(find_owner(&table.replace(" 01 ", " 04 "), &ends(false)), None);
    }
}
