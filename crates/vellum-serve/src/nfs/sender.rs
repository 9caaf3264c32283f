//! Who is let in. A connection within this machine is that of a user whom the kernel knows. What a message says of its user is no proof
//! (`AUTH_SYS`): through the kernel's connection, it keeps the users of this machine apart.

use super::rpc::{AuthRefusal, RpcSender};

/// The number of root, and of the kernel's own connections.
const ROOT: u32 = 0;

/// The users who may use a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsSenders {
    /// Their numbers.
    pub uids: Vec<u32>,
}

impl NfsSenders {
    /// Whether connections of this user are served.
    pub fn allows_owner(&self, uid: u32) -> bool {
        uid == ROOT || self.uids.contains(&uid)
    }

    /// Fails unless the sender is one of them.
    pub fn check_sender(&self, sender: RpcSender) -> Result<(), AuthRefusal> {
        match sender {
            RpcSender::User(uid) if self.uids.contains(&uid) => Ok(()),
            RpcSender::User(_) => Err(AuthRefusal::Rejected),
            RpcSender::Anonymous => Err(AuthRefusal::TooWeak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_the_list_are_let_in() {
        let senders = NfsSenders { uids: vec![0, 1000] };
        assert_eq!(senders.check_sender(RpcSender::User(1000)), Ok(()));
        assert_eq!(senders.check_sender(RpcSender::User(1001)), Err(AuthRefusal::Rejected));
        assert_eq!(senders.check_sender(RpcSender::Anonymous), Err(AuthRefusal::TooWeak));
        let senders = NfsSenders { uids: vec![1000] };
        assert_eq!([0, 1000, 1001].map(|uid| senders.allows_owner(uid)), [true, true, false]);
    }
}
