//! The opcodes of the requests that a mount answers, by the numbers of `linux/fuse.h`.

/// Declares the opcodes, each with its number and its name.
macro_rules! opcodes {
    ($($opcode:ident = $number:literal $name:literal)+) => {
        /// The operation that the kernel requests (`FUSE_…`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "they have the names of FUSE")]
        pub enum Opcode {
            $($opcode,)+
        }

        impl Opcode {
            /// The opcode with this number; None if no mount answers it.
            #[must_use]
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$opcode),)+
                    _ => None,
                }
            }

            /// Its number.
            #[must_use]
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$opcode => $number,)+
                }
            }

            /// The name in `linux/fuse.h`. A later form of a request has the name of the first.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$opcode => $name,)+
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1 "LOOKUP"
    Forget = 2 "FORGET"
    Getattr = 3 "GETATTR"
    Setattr = 4 "SETATTR"
    Readlink = 5 "READLINK"
    Symlink = 6 "SYMLINK"
    Mknod = 8 "MKNOD"
    Mkdir = 9 "MKDIR"
    Unlink = 10 "UNLINK"
    Rmdir = 11 "RMDIR"
    Rename = 12 "RENAME"
    Link = 13 "LINK"
    Open = 14 "OPEN"
    Read = 15 "READ"
    Write = 16 "WRITE"
    Statfs = 17 "STATFS"
    Release = 18 "RELEASE"
    Fsync = 20 "FSYNC"
    Setxattr = 21 "SETXATTR"
    Getxattr = 22 "GETXATTR"
    Listxattr = 23 "LISTXATTR"
    Removexattr = 24 "REMOVEXATTR"
    Flush = 25 "FLUSH"
    Init = 26 "INIT"
    Opendir = 27 "OPENDIR"
    Readdir = 28 "READDIR"
    Releasedir = 29 "RELEASEDIR"
    Fsyncdir = 30 "FSYNCDIR"
    Getlk = 31 "GETLK"
    Setlk = 32 "SETLK"
    Setlkw = 33 "SETLKW"
    Create = 35 "CREATE"
    Interrupt = 36 "INTERRUPT"
    Destroy = 38 "DESTROY"
    Ioctl = 39 "IOCTL"
    BatchForget = 42 "BATCH_FORGET"
    Fallocate = 43 "FALLOCATE"
    Readdirplus = 44 "READDIRPLUS"
    Rename2 = 45 "RENAME"
    Lseek = 46 "LSEEK"
    CopyFileRange = 47 "COPY_FILE_RANGE"
    Tmpfile = 51 "TMPFILE"
    Statx = 52 "STATX"
    CopyFileRange64 = 53 "COPY_FILE_RANGE"
    // Not the kernel's, whose numbers are below 2^16: a client of a shared worktree has stored what a program writes.
    WriteStored = 0x1_0001 "WRITE"
}
