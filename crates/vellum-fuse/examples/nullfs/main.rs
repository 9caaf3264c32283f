//! The null filesystem: the floor beneath every mount of ours.
//!
//! It asks of the kernel what Vellum asks, so that it gets the same requests, and answers them from memory: what a
//! program waits for on it is the price of FUSE alone. `bench/run.py floor` measures it beside Vellum. Invariant: it
//! negotiates by Vellum's own handshake and encodes by Vellum's own wire types, so that it cannot drift from what it is
//! compared with. Deliberately absent: everything that keeps content (it is gone with the process), permissions (which the
//! kernel checks), and extended attributes, of which there are none.
//!
//!     nullfs [--session] MOUNTPOINT
//!
//! One thread waits on the device, which is the cheapest way to serve it; with `--session` the threads of a Vellum
//! mount do, by rings where the kernel offers them. It needs root, and ends when it is unmounted.

mod tree;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, io};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use vellum_fuse::MountPosture;
use vellum_fuse::mount::{THREADS, raise_mount_limits};
use vellum_fuse::transport::{
    DeferredReply, FuseConnection, FuseDevice, MAX_WRITE, RequestService, perform_handshake,
};
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest};

use tree::NullTree;

/// Room for a request: the largest write, and its head.
const REQUEST_MAX: usize = MAX_WRITE + 4096;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    let by_session = arguments.first().is_some_and(|first| first == "--session");
    if by_session {
        arguments.remove(0);
    }
    let [mountpoint] = arguments.as_slice() else {
        eprintln!("usage: nullfs [--session] MOUNTPOINT");
        return ExitCode::from(3);
    };
    match serve_mount(Path::new(mountpoint), by_session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nullfs: {}: {error}", Path::new(mountpoint).display());
            ExitCode::from(2)
        }
    }
}

fn serve_mount(mountpoint: &Path, by_session: bool) -> io::Result<()> {
    let device = FuseDevice::open()?;
    attach_mount(&device, mountpoint)?;
    let rings = perform_handshake(&device, by_session, MountPosture::Exclusive)?;
    let service = NullFilesystem(NullTree::new());
    if by_session {
        let connection = FuseConnection::start(device, rings, service, THREADS)?;
        raise_mount_limits(mountpoint);
        return connection.wait_until_unmounted();
    }
    // It asks the mount for its number, and so has to be answered meanwhile.
    let place = mountpoint.to_owned();
    std::thread::spawn(move || raise_mount_limits(&place));
    serve_device(&Arc::new(device), &service)
}

/// Mounts where Vellum would, with its options.
fn attach_mount(device: &FuseDevice, mountpoint: &Path) -> io::Result<()> {
    let fd = device.as_fd().as_raw_fd();
    let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions,subtype=null");
    let options = CString::new(options)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    rustix::mount::mount("null", mountpoint, "fuse", flags, options.as_c_str())?;
    Ok(())
}

fn serve_device(device: &Arc<FuseDevice>, service: &NullFilesystem) -> io::Result<()> {
    let mut room = vec![0; REQUEST_MAX];
    while let Some(bytes) = device.read_request(&mut room)? {
        let request = FuseRequest::decode(bytes).map_err(io::Error::other)?;
        let answer = request
            .decode_operation()
            .map_or(FuseAnswer::Failed(Errno::IO), |it| service.0.answer_request(&request, it));
        device.send_answer(request.header.unique, answer);
    }
    Ok(())
}

struct NullFilesystem(NullTree);

impl RequestService for NullFilesystem {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        _later: DeferredReply<'_>,
    ) -> FuseAnswer {
        self.0.answer_request(request, operation)
    }
}
