//! The check of the directory in which connections between containers meet, and of what else they need.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sdp_config::tunables::Tunables;

use super::{Doctor, Grade};

const CHECK: &str = "containers";
/// The mode that lets nobody list or remove the names of others.
const ADVICE_MODE: &str = "Mount it as docs/containers.md says: a tmpfs of its own with mode 1733.";
/// Bits of a mode: others may write, names are their owners'.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

impl Doctor {
    /// Where the directory is not there this says so, and no more.
    pub(super) fn containers(&mut self) {
        let named = std::env::var("SDP_RENDEZVOUS_DIR").ok();
        let mut tunables = Tunables::DEFAULT;
        if let Some(path) = &named {
            let _ = tunables.set(b"rendezvous_dir", path.as_bytes());
        }
        let path = String::from_utf8_lossy(tunables.rendezvous_dir.as_bytes()).into_owned();
        if path.is_empty() {
            return self.ok(
                CHECK,
                "connections between containers stay TCP: rendezvous_dir is none".into(),
            );
        }
        let Ok(found) = self.path(path.trim_start_matches('/')).metadata() else {
            let what = format!("no {path}: connections between containers stay TCP");
            let grade = if named.is_some() { Grade::Slow } else { Grade::Ok };
            let advice = if named.is_some() { ADVICE_MODE } else { "" };
            return self.add(CHECK, grade, what, advice);
        };
        if let Some(what) = fault(&path, &found) {
            return self.add(CHECK, Grade::Slow, what, ADVICE_MODE);
        }
        let mut is_well = true;
        if self.is_here
            && found.uid() != 0
            && found.uid() != sdp_sys::pid::effective_user().unwrap_or(0)
            && is_mapped(self)
        {
            is_well = false;
            let what = format!("{path} is user {}'s, so it is not used", found.uid());
            self.add(CHECK, Grade::Slow, what, "Give it to root.");
        }
        if self.text("proc/sys/net/core/tstamp_allow_data").is_some_and(|text| text.trim() == "0") {
            is_well = false;
            let what = "net.core.tstamp_allow_data is 0: no process learns the first numbers of its connections";
            self.add(CHECK, Grade::Slow, what.into(), "sysctl net.core.tstamp_allow_data=1");
        }
        if is_well {
            self.ok(
                CHECK,
                format!("{path} is there: connections between containers that have it meet"),
            );
        }
    }
}

/// Why the library does not use such a directory.
fn fault(path: &str, found: &Metadata) -> Option<String> {
    let mode = found.permissions().mode();
    if !found.is_dir() {
        return Some(format!("{path} is no directory"));
    }
    (mode & WRITABLE != 0 && mode & STICKY == 0).then(|| {
        format!(
            "{path} has mode {:o}: others may take names away, so it is not used",
            mode & 0o7777
        )
    })
}

/// What becomes of a connection to a container of this host, by the tunable `rendezvous_dir`.
pub(crate) fn prospect(tunables: &Tunables) -> String {
    let path = String::from_utf8_lossy(tunables.rendezvous_dir.as_bytes()).into_owned();
    if path.is_empty() {
        return "TCP, rendezvous_dir is none".into();
    }
    match std::fs::metadata(&path) {
        Err(_) => format!("TCP, there is no {path} (docs/containers.md)"),
        Ok(found) => match fault(&path, &found) {
            Some(fault) => format!("TCP, {fault}"),
            None => format!("SDP if it has {path}, too"),
        },
    }
}

/// Whether every user has a name here, so that the owner is the user that it seems to be.
fn is_mapped(doctor: &Doctor) -> bool {
    doctor.text("proc/self/uid_map").is_some_and(|map| map.contains("4294967295"))
}
