//! Which crate may depend on which, and on what from outside.
//!
//! The table is the architecture: engine crates know no fabric, fabrics know no engine, and what
//! ends up in the preload library depends on nothing but `libc`.

use std::collections::{BTreeMap, BTreeSet};

use crate::json::Json;
use crate::process::{cargo, output_of};

/// Crate, and the crates of this workspace that it may use (not counting test dependencies).
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("sdp-blake2s", &[]),
    ("sdp-guard", &["sdp-blake2s"]),
    ("sdp-rdma", &[]),
    ("sdp-rpcrdma", &[]),
    ("sdp-nfs", &["sdp-fabric-verbs", "sdp-rdma", "sdp-rpcrdma"]),
    ("sdp-config", &[]),
    ("sdp-sys", &[]),
    ("sdp-stats", &["sdp-sys"]),
    ("sdp-proto", &["sdp-rdma"]),
    ("sdp-remote", &["sdp-guard", "sdp-proto", "sdp-rdma"]),
    ("sdp-shm", &["sdp-sys"]),
    ("sdp-fabric-sim", &["sdp-rdma"]),
    ("sdp-fabric-shm", &["sdp-blake2s", "sdp-rdma", "sdp-shm", "sdp-sys"]),
    ("sdp-fabric-verbs", &["sdp-rdma", "sdp-sys"]),
    ("sdp-fabric-tests", &["sdp-rdma"]),
    // For tests, as are its users.
    ("sdp-fake-verbs", &["sdp-fabric-verbs", "sdp-sys"]),
    (
        "sdp-socket",
        &[
            "sdp-config",
            "sdp-fabric-shm",
            "sdp-fabric-verbs",
            "sdp-proto",
            "sdp-rdma",
            "sdp-remote",
            "sdp-shm",
            "sdp-stats",
            "sdp-sys",
        ],
    ),
    // The stand-in only with a feature, for tests.
    ("sdp-preload", &["sdp-config", "sdp-fake-verbs", "sdp-socket", "sdp-stats", "sdp-sys"]),
    (
        "sdp-tools",
        &[
            "sdp-config",
            "sdp-fabric-verbs",
            "sdp-fake-verbs",
            "sdp-nfs",
            "sdp-proto",
            "sdp-rdma",
            "sdp-rpcrdma",
            "sdp-shm",
            "sdp-stats",
            "sdp-sys",
        ],
    ),
    // The model checker: for tests, whose dependencies are not counted.
    ("sdp-model", &[]),
    (
        "sdp-fuzz",
        &["sdp-config", "sdp-fabric-shm", "sdp-proto", "sdp-rdma", "sdp-rpcrdma", "sdp-shm"],
    ),
    ("xtask", &[]),
];

/// What may never be used, even by tests: the engine and the fabrics stay strangers.
const NEVER: &[(&str, &str)] = &[
    ("sdp-rdma", "sdp-proto"),
    ("sdp-fabric-sim", "sdp-proto"),
    ("sdp-fabric-shm", "sdp-proto"),
    ("sdp-fabric-verbs", "sdp-proto"),
    ("sdp-fabric-tests", "sdp-proto"),
    ("sdp-rpcrdma", "sdp-proto"),
    ("sdp-rpcrdma", "sdp-fabric-verbs"),
];

/// What the preload library's closure may use from outside.
const LIBRARY_DEPENDENCIES: &[&str] = &["libc"];

/// Licences of crates from outside that may be used; a choice (`OR`) needs one of them.
const LICENCES: &[&str] = &["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "ISC"];

/// The one place from which crates of others come.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

struct Package {
    name: String,
    source: Option<String>,
    licence: String,
    /// Name and whether it is only for tests.
    uses: Vec<(String, bool)>,
}

fn packages() -> Result<Vec<Package>, String> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--locked"]);
    let metadata = Json::parse(&output_of(&mut command)?)?;
    let text = |json: &Json| json.text().unwrap_or_default().to_owned();
    let uses = |package: &Json| {
        let list = package.get("dependencies").list().iter();
        list.map(|d| (text(d.get("name")), d.get("kind").text() == Some("dev"))).collect()
    };
    let packages = metadata.get("packages").list().iter();
    Ok(packages
        .map(|package| Package {
            name: text(package.get("name")),
            source: package.get("source").text().map(str::to_owned),
            licence: text(package.get("license")),
            uses: uses(package),
        })
        .collect())
}

/// Crates of this workspace use only those that the table allows.
pub(super) fn directions() -> Result<Vec<String>, String> {
    Ok(direction_findings(&packages()?))
}

fn direction_findings(packages: &[Package]) -> Vec<String> {
    let ours: BTreeSet<&str> =
        packages.iter().filter(|p| p.source.is_none()).map(|p| p.name.as_str()).collect();
    let table: BTreeMap<&str, &[&str]> = DIRECTIONS.iter().copied().collect();
    let mut findings = Vec::new();
    for package in packages.iter().filter(|p| p.source.is_none()) {
        let name = package.name.as_str();
        let Some(allowed) = table.get(name) else {
            findings.push(format!("{name} is not in the table of directions"));
            continue;
        };
        for (used, for_tests) in &package.uses {
            let used = used.as_str();
            if NEVER.contains(&(name, used)) {
                findings.push(format!("{name} must never use {used}"));
            } else if ours.contains(used) && !for_tests && !allowed.contains(&used) {
                findings.push(format!("{name} may not use {used}"));
            }
        }
    }
    findings
}

/// Crates from outside: known source, acceptable licence, nothing but `libc` in the library.
pub(super) fn dependencies() -> Result<Vec<String>, String> {
    Ok(dependency_findings(&packages()?))
}

fn dependency_findings(packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages {
        let Some(source) = &package.source else { continue };
        if source != SOURCE {
            findings.push(format!("{} comes from {source}", package.name));
        }
        let offered = package.licence.replace(['(', ')', '/'], " ");
        if !offered.split_whitespace().any(|word| LICENCES.contains(&word)) {
            findings.push(format!("{} has licence {:?}", package.name, package.licence));
        }
    }
    for name in closure(packages, "sdp-preload") {
        let is_ours = packages.iter().any(|p| p.name == name && p.source.is_none());
        if !is_ours && !LIBRARY_DEPENDENCIES.contains(&name.as_str()) {
            findings.push(format!("libsdp.so must not contain {name}"));
        }
    }
    findings
}

/// Everything `start` uses, directly or not. Optional dependencies of crates from outside are
/// not followed: the library's own crates switch default features off.
fn closure(packages: &[Package], start: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![start.to_owned()];
    while let Some(name) = next.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let ours = packages.iter().find(|p| p.name == name && p.source.is_none());
        let uses = ours.into_iter().flat_map(|p| p.uses.iter());
        next.extend(uses.filter(|(_, for_tests)| !for_tests).map(|(used, _)| used.clone()));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, source: Option<&str>, licence: &str, uses: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_owned(),
            source: source.map(str::to_owned),
            licence: licence.to_owned(),
            uses: uses.iter().map(|(name, dev)| ((*name).to_owned(), *dev)).collect(),
        }
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let packages = [
            package("sdp-proto", None, "MIT", &[("sdp-fabric-shm", false), ("sdp-rdma", false)]),
            package("sdp-fabric-shm", None, "MIT", &[("sdp-proto", true)]),
            package("sdp-rdma", None, "MIT", &[]),
            package("sdp-new", None, "MIT", &[]),
        ];
        assert_eq!(
            direction_findings(&packages),
            [
                "sdp-proto may not use sdp-fabric-shm",
                "sdp-fabric-shm must never use sdp-proto",
                "sdp-new is not in the table of directions"
            ]
        );
    }

    #[test]
    fn the_library_stays_lean() {
        let packages = [
            package("sdp-preload", None, "MIT", &[("sdp-sys", false), ("proptest", true)]),
            package("sdp-sys", None, "MIT", &[("libc", false), ("once", false)]),
            package("libc", Some(SOURCE), "MIT OR Apache-2.0", &[]),
            package("once", Some("git+https://example.org"), "GPL-3.0", &[]),
        ];
        assert_eq!(
            dependency_findings(&packages),
            [
                "once comes from git+https://example.org",
                "once has licence \"GPL-3.0\"",
                "libsdp.so must not contain once"
            ]
        );
    }
}
