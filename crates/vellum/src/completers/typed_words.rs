//! The words of the line that is being completed: a shell hands them over behind `--`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The words after the name of the program, in which the one that is being completed may be anywhere.
pub fn list_words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(2).collect()
}

/// The directory that `-C` names.
pub fn find_directory() -> Option<PathBuf> {
    find_directory_in(&list_words())
}

fn find_directory_in(words: &[OsString]) -> Option<PathBuf> {
    // Not parsed by clap, which refuses a line that is not complete yet.
    let at = words.iter().position(|word| word.as_bytes().starts_with(b"-C"))?;
    let attached = words.get(at)?.as_bytes().strip_prefix(b"-C").unwrap_or_default();
    if attached.is_empty() {
        return words.get(at + 1).map(PathBuf::from);
    }
    let attached = attached.strip_prefix(b"=").unwrap_or(attached);
    Some(OsString::from_vec(attached.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(words: &[&str]) -> Option<PathBuf> {
        find_directory_in(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_directory_of_the_command_is_found() {
        assert_eq!(find(&["ls", "HEAD"]), None);
        assert_eq!(find(&["-C", "/a", "ls"]), Some("/a".into()));
        assert_eq!(find(&["ls", "-C/a"]), Some("/a".into()));
        assert_eq!(find(&["ls", "-C"]), None);
    }
}
