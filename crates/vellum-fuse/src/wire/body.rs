//! The fixed parts of request bodies, as `linux/fuse.h` lays them out. Names and data follow them.
//!
//! Invariant: each struct has all fields of the kernel's struct, in the kernel's order. A leading underscore marks a
//! field that means nothing here, such as most file handles: a node says enough, but for who closes what is locked.
//!
//! Deliberately absent: the bodies of `getattr`, `statx`, `readlink`, `releasedir` and `destroy`, of which nothing is
//! used.

use super::fields::{MalformedRequest, RequestFields};

/// Declares structs that are read field by field, in the order in which the fields are declared.
macro_rules! request_bodies {
    ($($(#[$doc:meta])+ $name:ident { $($field:ident: $number:ty),+ $(,)? })+) => {$(
        $(#[$doc])+
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $name {
            $(pub $field: $number,)+
        }

        impl $name {
            /// Reads the fields. Fails if one is missing.
            pub fn read(fields: &mut RequestFields<'_>) -> Result<Self, MalformedRequest> {
                Ok(Self { $($field: fields.read_number()?,)+ })
            }
        }
    )+};
}

request_bodies! {
    /// `fuse_forget_in`.
    ForgetBody { lookups: u64 }

    /// `fuse_batch_forget_in`; as many [`ForgottenNode`] follow as it counts.
    BatchForgetBody { count: u32, _dummy: u32 }

    /// `fuse_forget_one`.
    ForgottenNode { node: u64, lookups: u64 }

    /// `fuse_setattr_in`; `valid` states which of the attributes are to be set.
    SetattrBody {
        valid: u32,
        _padding: u32,
        _handle: u64,
        size: u64,
        _lock_owner: u64,
        atime_secs: i64,
        mtime_secs: i64,
        ctime_secs: i64,
        atime_nanos: u32,
        mtime_nanos: u32,
        ctime_nanos: u32,
        mode: u32,
        _unused4: u32,
        uid: u32,
        gid: u32,
        _unused5: u32,
    }

    /// `fuse_mknod_in`; the name follows.
    MknodBody { mode: u32, device: u32, umask: u32, _padding: u32 }

    /// `fuse_mkdir_in`; the name follows.
    MkdirBody { mode: u32, umask: u32 }

    /// `fuse_create_in`; the name follows. Also of `tmpfile`, in which the kernel uses the name by itself.
    CreateBody { flags: u32, mode: u32, umask: u32, _open_flags: u32 }

    /// `fuse_lk_in`.
    LockBody { handle: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, flags: u32, _padding: u32 }

    /// `fuse_flush_in`.
    FlushBody { handle: u64, _unused: u32, _padding: u32, owner: u64 }

    /// `fuse_release_in`.
    ReleaseBody { handle: u64, _flags: u32, release_flags: u32, owner: u64 }

    /// `fuse_interrupt_in`.
    InterruptBody { unique: u64 }

    /// `fuse_open_in`; also of `opendir`.
    OpenBody { flags: u32, _open_flags: u32 }

    /// `fuse_rename_in`; both names follow.
    RenameBody { to_dir: u64 }

    /// `fuse_rename2_in`; both names follow.
    Rename2Body { to_dir: u64, flags: u32, _padding: u32 }

    /// `fuse_link_in`; the new name follows.
    LinkBody { node: u64 }

    /// `fuse_read_in`; also of `readdir` and `readdirplus`.
    ReadBody {
        _handle: u64,
        offset: u64,
        len: u32,
        _read_flags: u32,
        _lock_owner: u64,
        open_flags: u32,
        _padding: u32,
    }

    /// `fuse_write_in`; the data follows.
    WriteBody {
        _handle: u64,
        offset: u64,
        len: u32,
        write_flags: u32,
        _lock_owner: u64,
        open_flags: u32,
        _padding: u32,
    }

    /// `fuse_fsync_in`.
    FsyncBody { _handle: u64, flags: u32, _padding: u32 }

    /// The beginning of `fuse_setxattr_in`; name and value follow, or first a [`SetxattrExtension`].
    SetxattrBody { len: u32, flags: u32 }

    /// The end of `fuse_setxattr_in`.
    SetxattrExtension { flags: u32, padding: u32 }

    /// `fuse_getxattr_in`; also of `listxattr`. The name follows.
    GetxattrBody { room: u32, _padding: u32 }

    /// `fuse_ioctl_in`; the input follows.
    IoctlBody { _handle: u64, _flags: u32, command: u32, _argument: u64, input_len: u32, room: u32 }

    /// `fuse_fallocate_in`.
    FallocateBody { _handle: u64, offset: u64, len: u64, mode: u32, _padding: u32 }

    /// `fuse_lseek_in`.
    LseekBody { _handle: u64, offset: u64, whence: u32, _padding: u32 }

    /// `fuse_copy_file_range_in`.
    CopyFileRangeBody {
        _handle: u64,
        offset: u64,
        to: u64,
        _to_handle: u64,
        to_offset: u64,
        len: u64,
        _flags: u64,
    }
}
