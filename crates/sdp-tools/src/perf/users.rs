//! Two users, one for each of two measuring processes: as production has them.
//!
//! Root only: each process gives up what root has before it executes the tool again, so the tool's own file and
//! the library must be where both users can read them.

use std::ffi::{CStr, CString};
use std::io;
use std::process::Command;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::peer::Side;
use crate::Failure;
use crate::sys;

/// The option.
#[derive(Debug, Clone, Copy, Default, Args)]
#[group(id = "users-of-pair")]
pub struct Options {
    /// Users of server and client, names or numbers; root only (default: the caller)
    #[arg(long, value_name = "SERVER:CLIENT")]
    pub users: Option<Users>,
}

/// A user with the group that it has by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user's number.
    pub const fn uid(self) -> u32 {
        self.uid
    }
}

impl FromStr for User {
    type Err = Failure;

    fn from_str(word: &str) -> Result<Self, Failure> {
        let by_number = word.parse().ok().map(|uid| (uid, sys::passwd_of_number(uid)));
        let name = CString::new(word).map_err(|_| Failure(format!("{word:?} is no user")))?;
        match by_number {
            Some((uid, known)) => Ok(Self { uid, gid: known.map_or(uid, |(_, gid)| gid) }),
            None => sys::passwd_of_name(AsRef::<CStr>::as_ref(&name))
                .map(|(uid, gid)| Self { uid, gid })
                .ok_or_else(|| Failure(format!("no user {word:?}"))),
        }
    }
}

/// Both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Users {
    server: User,
    client: User,
}

impl FromStr for Users {
    type Err = Failure;

    fn from_str(words: &str) -> Result<Self, Failure> {
        let (server, client) =
            words.split_once(':').ok_or_else(|| Failure("wanted: SERVER:CLIENT".into()))?;
        Ok(Self { server: server.parse()?, client: client.parse()? })
    }
}

impl Users {
    /// The words on the command line, with numbers.
    pub fn title(&self) -> String {
        match self.server == self.client {
            true => format!("user {}", self.server.uid),
            false => format!("users {}:{}", self.server.uid, self.client.uid),
        }
    }

    /// Has the process of one side become its user before it executes anything.
    pub fn apply(self, side: Side, command: &mut Command) {
        let User { uid, gid } = match side {
            Side::Server => self.server,
            Side::Client => self.client,
        };
        sys::before_exec(command, move || match sys::become_user(uid, gid) {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_or_numbers() {
        let both: Users = "root:12345".parse().unwrap();
        assert_eq!(
            (both.server, both.client),
            (User { uid: 0, gid: 0 }, User { uid: 12345, gid: 12345 })
        );
        assert_eq!(both.title(), "users 0:12345");
        assert_eq!("7:7".parse::<Users>().unwrap().title(), "user 7");
        for bad in ["root", "root:", ":", "no such user:0", "-1:0"] {
            assert!(bad.parse::<Users>().is_err(), "{bad}");
        }
    }
}
