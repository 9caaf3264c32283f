//! `fusermount3`, the helper that mounts and unmounts for users without root.
//!
//! The helper gets a socket as its standard input, and sends the descriptor of the device through it.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::{FuseDevice, MountParameters};
use crate::error::{MountError, Result};

const PROGRAM: &str = "fusermount3";

/// The environment variable that contains the number of the helper's socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts through the helper. Returns the device of the mount.
pub(super) fn attach_with_helper(mountpoint: &Path, attachment: &MountParameters) -> Result<FuseDevice> {
    let refused = |source| MountError::Refused { mountpoint: mountpoint.into(), source };
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| refused(error.into()))?;
    let mut command = Command::new(PROGRAM);
    command
        .arg("-o")
        .arg(format_helper_options(attachment))
        // Otherwise a mountpoint that begins with a dash would be taken for an option.
        .arg("--")
        .arg(mountpoint)
        // The socket is the standard input, descriptor 0.
        .env(SOCKET_VARIABLE, "0")
        .stdin(Stdio::from(its))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| map_missing_helper(error, refused))?;
    // The command holds the helper's end of the socket. It has to be closed here, or reading from ours would not end.
    drop(command);
    // The helper ends when it has sent the device, which stays in the socket until it is received.
    let output = child.wait_with_output().map_err(refused)?;
    match receive_descriptor(&ours) {
        Ok(Some(device)) if output.status.success() => Ok(FuseDevice::from(device)),
        Ok(_) => Err(refused(io::Error::other(format_helper_output(&output)))),
        Err(error) => Err(refused(error)),
    }
}

/// Unmounts through the helper, which permits it for mounts of the same user.
pub(super) fn unmount_with_helper(mountpoint: &Path, arguments: &[&str]) -> Result<()> {
    let failed = |source| MountError::Unmount { mountpoint: mountpoint.into(), source };
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg("--").arg(mountpoint).stdin(Stdio::null());
    let output = command.output().map_err(|error| map_missing_helper(error, failed))?;
    let said = format_helper_output(&output);
    match output.status.success() {
        true => Ok(()),
        // The helper has no exit code for this, only its message.
        false if said.contains("busy") => Err(MountError::Busy(mountpoint.into())),
        false => Err(failed(io::Error::other(said))),
    }
}

fn map_missing_helper(error: io::Error, other: impl FnOnce(io::Error) -> MountError) -> MountError {
    if error.kind() == io::ErrorKind::NotFound { MountError::NoHelper } else { other(error) }
}

/// The options of the helper. Commas in the name are escaped: they separate options.
fn format_helper_options(attachment: &MountParameters) -> String {
    let name = attachment.name.replace('\\', "\\\\").replace(',', "\\,");
    let access = if attachment.read_only { "ro" } else { "rw" };
    let exec = if attachment.no_exec { "noexec," } else { "" };
    format!("fsname={name},{access},{exec}{}", attachment.format_mount_options())
}

fn format_helper_output(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// Receives the descriptor that was sent; None if the other end was closed without sending one.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    // A message needs at least one byte of ordinary data to carry a descriptor.
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    #[test]
    fn a_comma_does_not_end_a_name() {
        let attachment = MountParameters {
            name: r"vellum:a,b\c".into(),
            read_only: true,
            allow_other: false,
            no_exec: true,
        };
        let expected = r"fsname=vellum:a\,b\\c,ro,noexec,default_permissions,subtype=vellum";
        assert_eq!(format_helper_options(&attachment), expected);
    }

    #[test]
    fn a_sent_descriptor_is_received_and_none_if_the_helper_just_ends() {
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (ours, its) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut room);
        let descriptors = [null.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&its, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).unwrap();
        let sent = std::fs::File::from(receive_descriptor(&ours).unwrap().unwrap());
        assert_eq!(sent.metadata().unwrap().file_type(), null.metadata().unwrap().file_type());

        let (ours, its) = pair();
        drop(its);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }
}
