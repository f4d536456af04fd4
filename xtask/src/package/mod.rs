//! Packages: a Debian package, an RPM and a tarball, each the same bytes whenever it is made of the
//! same sources.
//!
//! What is not code lies in `packaging/`; manual pages and completions are made from what the built
//! tool says of itself (`sdp describe`), so that they cannot differ from it. A packer that is not
//! installed is named, and the others do their work.

mod completion;
mod formats;
mod manual;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts;
use crate::json::Json;
use crate::process::{output_of, root, run, target_dir};

/// Name of the package.
pub(crate) const NAME: &str = "sdp";

/// One option of a command.
pub(crate) struct Flag {
    pub(crate) long: Option<String>,
    pub(crate) short: Option<String>,
    /// Name of the value; none: a switch.
    pub(crate) value: Option<String>,
    /// The value may be left out, and otherwise follows an equals sign.
    pub(crate) is_optional: bool,
    /// The only values it takes; empty: any.
    pub(crate) values: Vec<String>,
    pub(crate) help: String,
}

/// One operand of a command.
pub(crate) struct Operand {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    pub(crate) is_required: bool,
    pub(crate) repeats: bool,
    pub(crate) help: String,
}

/// A command or sub-command.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) flags: Vec<Flag>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) commands: Vec<Self>,
}

/// What the tools say of themselves.
pub(crate) struct Description {
    pub(crate) version: String,
    pub(crate) tools: Vec<Tool>,
    pub(crate) json: Json,
}

impl Description {
    fn of(sdp: &Path) -> Result<Self, String> {
        let json = Json::parse(&output_of(Command::new(sdp).arg("describe"))?)?;
        let version = text(json.get("version"));
        let tools = json.get("commands").list().iter().map(tool).collect();
        Ok(Self { version, tools, json })
    }

    /// Names of all tunables.
    pub(crate) fn tunables(&self) -> Vec<String> {
        self.json.get("tunables").list().iter().map(|t| text(t.get("name"))).collect()
    }
}

/// The text of a string; empty for anything else.
pub(crate) fn text(json: &Json) -> String {
    json.text().unwrap_or_default().to_owned()
}

fn texts(json: &Json) -> Vec<String> {
    json.list().iter().map(text).collect()
}

fn tool(json: &Json) -> Tool {
    let flag = |f: &Json| Flag {
        long: f.get("long").text().map(str::to_owned),
        short: f.get("short").text().map(str::to_owned),
        value: f.get("value").text().map(str::to_owned),
        is_optional: matches!(f.get("optional"), Json::Bool(true)),
        values: texts(f.get("values")),
        help: text(f.get("help")),
    };
    let operand = |o: &Json| Operand {
        name: text(o.get("name")),
        values: texts(o.get("values")),
        is_required: o.get("required") == &Json::Bool(true),
        repeats: o.get("repeats") == &Json::Bool(true),
        help: text(o.get("help")),
    };
    Tool {
        name: text(json.get("name")),
        about: text(json.get("about")),
        flags: json.get("options").list().iter().map(flag).collect(),
        operands: json.get("operands").list().iter().map(operand).collect(),
        commands: json.get("commands").list().iter().map(tool).collect(),
    }
}

/// What one installed file is.
pub(crate) enum Content {
    /// Bytes and mode.
    File(Vec<u8>, u32),
    /// A symbolic link to this.
    Link(&'static str),
}

/// Installed files by their path, without the leading slash.
pub(crate) type Tree = BTreeMap<String, Content>;

/// Where one kind of package puts what distributions do not agree about.
pub(crate) struct Places {
    /// The library's folder.
    pub(crate) lib: String,
    /// Completions for zsh.
    pub(crate) zsh: &'static str,
}

/// What all packages of one run have in common.
pub(crate) struct Release {
    pub(crate) description: Description,
    /// Seconds since 1970 of the last commit: the time of everything in a package.
    pub(crate) epoch: String,
    /// Newest version of libc's symbols that a program of ours wants.
    pub(crate) libc: String,
}

/// A file of `packaging/`.
pub(crate) fn source(name: &str) -> Result<String, String> {
    let path = root().join("packaging").join(name);
    fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file and the folders above it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    fs::write(path, bytes).map_err(failed)
}

/// What `xtask package` was asked for.
pub(crate) fn make(arguments: &[String]) -> Result<(), String> {
    let mut folder = target_dir().join("package");
    let mut is_built = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match (argument.as_str(), rest.clone().next()) {
            ("--no-build", _) => is_built = true,
            ("--output", Some(path)) => {
                rest.next();
                folder = PathBuf::from(path);
            }
            _ => return Err(format!("package: unexpected argument: {argument}")),
        }
    }
    if !is_built {
        artifacts::build()?;
    }
    let release = Release {
        description: Description::of(&artifacts::sdp())?,
        epoch: epoch()?,
        libc: newest_symbol_version()?,
    };
    // What an earlier run left must not be taken for ours.
    let work = folder.join("work");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let made = [
        formats::debian(&release, &work, &folder),
        formats::rpm(&release, &work, &folder),
        formats::tarball(&release, &work, &folder),
    ];
    let _ = fs::remove_dir_all(&work);
    let mut missing = Vec::new();
    for one in made {
        match one? {
            formats::Made::Package(path) => {
                let size = fs::metadata(&path).map_or(0, |m| m.len());
                println!("{size:>9} bytes  {}", path.display());
            }
            formats::Made::Missing(what) => missing.push(what),
        }
    }
    for what in &missing {
        println!("not made: {what}");
    }
    Ok(())
}

fn epoch() -> Result<String, String> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(given);
    }
    let mut git = Command::new("git");
    git.current_dir(root()).args(["log", "-1", "--format=%ct"]);
    Ok(output_of(&mut git)?.trim().to_owned())
}

/// Built files that go into packages.
fn programs() -> [(&'static str, PathBuf); 3] {
    let release = target_dir().join("release");
    [
        ("libsdp.so.1", artifacts::library()),
        ("sdp", artifacts::sdp()),
        ("sdpnetstat", release.join("sdpnetstat")),
    ]
}

/// Of all programs of ours, the newest version of libc's symbols that they need.
fn newest_symbol_version() -> Result<String, String> {
    let mut newest = (0, 0);
    for (_, path) in programs() {
        let symbols = output_of(Command::new("objdump").arg("-T").arg(&path))?;
        for version in symbols.split("GLIBC_").skip(1) {
            let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
            if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) {
                newest = newest.max((major, minor));
            }
        }
    }
    let (major, minor): (u32, u32) = newest;
    Ok(format!("{major}.{minor}"))
}

/// A program of ours without what only debuggers read.
fn stripped(path: &Path, work: &Path) -> Result<Vec<u8>, String> {
    let copy = work.join("stripped");
    let strip = ["--strip-unneeded", "--enable-deterministic-archives", "-o"];
    run(Command::new("strip").args(strip).arg(&copy).arg(path))?;
    let bytes = fs::read(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    fs::remove_file(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    Ok(bytes)
}

/// `bytes` compressed, with no time and no name in them.
fn gzipped(bytes: &[u8], work: &Path) -> Result<Vec<u8>, String> {
    let plain = work.join("plain");
    write(&plain, bytes)?;
    run(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(&plain))?;
    let packed = work.join("plain.gz");
    let bytes = fs::read(&packed).map_err(|e| format!("{}: {e}", packed.display()))?;
    fs::remove_file(&packed).map_err(|e| format!("{}: {e}", packed.display()))?;
    Ok(bytes)
}

/// Everything that a package installs.
fn tree(release: &Release, places: &Places, work: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let [library, sdp, sdpnetstat] = programs();
    let lib = &places.lib;
    tree.insert(format!("{lib}/{}", library.0), Content::File(stripped(&library.1, work)?, 0o644));
    tree.insert(format!("{lib}/libsdp.so"), Content::Link(library.0));
    for (name, path) in [sdp, sdpnetstat] {
        tree.insert(format!("usr/bin/{name}"), Content::File(stripped(&path, work)?, 0o755));
    }
    let plain = |text: String| Content::File(text.into_bytes(), 0o644);
    tree.insert("etc/libsdp.conf".into(), plain(source("libsdp.conf")?));
    tree.insert("etc/sdp-nfs-gateway.conf".into(), plain(source("sdp-nfs-gateway.conf")?));
    let unit = "sdp-nfs-gateway.service";
    let text = source(&format!("systemd/{unit}"))?;
    tree.insert(format!("usr/lib/systemd/system/{unit}"), plain(text));
    tree.insert("usr/include/sdp.h".into(), plain(source("sdp.h")?));
    tree.insert("etc/logrotate.d/libsdp".into(), plain(source("logrotate")?));
    tree.insert("usr/lib/systemd/system/run-sdp.mount".into(), plain(source("run-sdp.mount")?));
    tree.insert("usr/lib/tmpfiles.d/sockets-direct.conf".into(), plain(source("tmpfiles.conf")?));
    for (page, roff) in manual::pages(release)? {
        let section = page.rsplit('.').next().unwrap_or_default().to_owned();
        let bytes = gzipped(roff.as_bytes(), work)?;
        tree.insert(format!("usr/share/man/man{section}/{page}.gz"), Content::File(bytes, 0o644));
    }
    let description = &release.description;
    for tool in &description.tools {
        let bash = format!("usr/share/bash-completion/completions/{}", tool.name);
        tree.insert(bash, plain(completion::bash(tool, description)));
        let zsh = format!("{}/_{}", places.zsh, tool.name);
        tree.insert(zsh, plain(completion::zsh(tool, description)));
        let fish = format!("usr/share/fish/vendor_completions.d/{}.fish", tool.name);
        tree.insert(fish, plain(completion::fish(tool, description)));
    }
    let doc = format!("usr/share/doc/{NAME}");
    tree.insert(format!("{doc}/copyright"), plain(source("copyright")?));
    let changes = root().join("CHANGELOG.md");
    let changes = fs::read(&changes).map_err(|e| format!("{}: {e}", changes.display()))?;
    tree.insert(format!("{doc}/NEWS.md.gz"), Content::File(gzipped(&changes, work)?, 0o644));
    for (name, folder) in [("grafana", "packaging/grafana"), ("schema", "docs/schema")] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for path in entries.flatten().map(|e| e.path()) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            tree.insert(format!("usr/share/{NAME}/{name}/{file}"), Content::File(bytes, 0o644));
        }
    }
    Ok(tree)
}
