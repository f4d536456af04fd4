//! The three kinds of package: how one tree of files becomes each of them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::{Content, NAME, Places, Release, Tree, source, tree, write};
use crate::process::{is_present, output_of, run};

/// A package, or what is missing to make it.
pub(crate) enum Made {
    Package(PathBuf),
    Missing(&'static str),
}

/// Files of which an administrator's version is kept.
const SETTINGS: [&str; 3] =
    ["etc/libsdp.conf", "etc/logrotate.d/libsdp", "etc/sdp-nfs-gateway.conf"];

const MAINTAINER: &str = "Sockets Direct developers <sdp@localhost>";

fn moment(release: &Release) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(release.epoch.parse().unwrap_or(0))
}

/// Writes the tree below `stage`, everything of one time.
fn lay_out(tree: &Tree, release: &Release, stage: &Path) -> Result<(), String> {
    for (name, content) in tree {
        let path = stage.join(name);
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        match content {
            Content::File(bytes, mode) => {
                write(&path, bytes)?;
                fs::set_permissions(&path, Permissions::from_mode(*mode)).map_err(failed)?;
                let file = File::options().append(true).open(&path).map_err(failed)?;
                file.set_modified(moment(release)).map_err(failed)?;
            }
            Content::Link(to) => {
                fs::create_dir_all(path.parent().unwrap_or(stage)).map_err(failed)?;
                symlink(to, &path).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Folders as every user may enter them, whatever the umask.
fn open_folders(of: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", of.display());
    fs::set_permissions(of, Permissions::from_mode(0o755)).map_err(failed)?;
    for entry in fs::read_dir(of).map_err(failed)?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

/// `packaging/NAME` with `@WORD@` replaced.
fn filled(name: &str, release: &Release, more: &[(&str, &str)]) -> Result<String, String> {
    let mut text = source(name)?;
    let version = &release.description.version;
    let words = [("@NAME@", NAME), ("@VERSION@", version), ("@LIBC@", &release.libc)];
    for (word, value) in words.iter().chain(more) {
        text = text.replace(word, value);
    }
    Ok(text)
}

/// Debian's names of this machine's architecture: package, folder of libraries.
const fn debian_architecture() -> (&'static str, &'static str) {
    if cfg!(target_arch = "aarch64") {
        ("arm64", "aarch64-linux-gnu")
    } else {
        ("amd64", "x86_64-linux-gnu")
    }
}

/// The Debian package.
pub(crate) fn debian(release: &Release, work: &Path, folder: &Path) -> Result<Made, String> {
    if !is_present("dpkg-deb") {
        return Ok(Made::Missing("the Debian package, for want of dpkg-deb (package dpkg)"));
    }
    let (architecture, triplet) = debian_architecture();
    let places =
        Places { lib: format!("usr/lib/{triplet}"), zsh: "usr/share/zsh/vendor-completions" };
    let mut tree = tree(release, &places, work)?;
    let date = output_of(
        Command::new("date")
            .args(["--utc", "--rfc-email", "--date"])
            .arg(format!("@{}", release.epoch)),
    )?;
    let changes = [("@MAINTAINER@", MAINTAINER), ("@DATE@", date.trim())];
    let changes = filled("debian/changelog", release, &changes)?;
    let changes = super::gzipped(changes.as_bytes(), work)?;
    tree.insert(format!("usr/share/doc/{NAME}/changelog.gz"), Content::File(changes, 0o644));

    let stage = work.join("debian");
    lay_out(&tree, release, &stage)?;
    let bytes: usize =
        tree.values().map(|c| if let Content::File(bytes, _) = c { bytes.len() } else { 0 }).sum();
    let size = bytes.div_ceil(1024).to_string();
    let control =
        [("@ARCHITECTURE@", architecture), ("@SIZE@", &size), ("@MAINTAINER@", MAINTAINER)];
    let mut parts = Tree::new();
    let plain = |text: String, mode| Content::File(text.into_bytes(), mode);
    parts.insert(
        "DEBIAN/control".into(),
        plain(filled("debian/control", release, &control)?, 0o644),
    );
    let settings: String = SETTINGS.iter().map(|name| format!("/{name}\n")).collect();
    parts.insert("DEBIAN/conffiles".into(), plain(settings, 0o644));
    parts.insert("DEBIAN/triggers".into(), plain(source("debian/triggers")?, 0o644));
    parts.insert("DEBIAN/prerm".into(), plain(source("leave-preload.sh")?, 0o755));
    parts.insert("DEBIAN/postrm".into(), plain(source("debian/postrm")?, 0o755));
    let files: Vec<&String> = tree
        .iter()
        .filter(|(name, c)| matches!(c, Content::File(..)) && !SETTINGS.contains(&name.as_str()))
        .map(|(name, _)| name)
        .collect();
    let sums = output_of(Command::new("md5sum").current_dir(&stage).args(files))?;
    parts.insert("DEBIAN/md5sums".into(), plain(sums, 0o644));
    lay_out(&parts, release, &stage)?;
    open_folders(&stage)?;

    let version = &release.description.version;
    let out = folder.join(format!("{NAME}_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", &release.epoch);
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&stage).arg(&out);
    output_of(&mut pack)?;
    Ok(Made::Package(out))
}

/// The RPM.
pub(crate) fn rpm(release: &Release, work: &Path, folder: &Path) -> Result<Made, String> {
    if !is_present("rpmbuild") {
        return Ok(Made::Missing("the RPM, for want of rpmbuild (package rpm or rpm-build)"));
    }
    let places = Places { lib: "usr/lib64".to_owned(), zsh: "usr/share/zsh/site-functions" };
    let tree = tree(release, &places, work)?;
    let stage = work.join("rpm-stage");
    lay_out(&tree, release, &stage)?;
    open_folders(&stage)?;
    let list = |(name, content): (&String, &Content)| {
        let is_link = matches!(content, Content::Link(_));
        let kind = if SETTINGS.contains(&name.as_str()) { "%config(noreplace) " } else { "" };
        let mode = if is_link { "" } else { "%attr(-,root,root) " };
        format!("{kind}{mode}/{name}\n")
    };
    let files: String = tree.iter().map(list).collect();
    let stage_path = stage.to_string_lossy();
    let leave = source("leave-preload.sh")?;
    let more = [
        ("@STAGE@", &*stage_path),
        ("@FILES@", files.trim_end()),
        ("@LEAVE_PRELOAD@", leave.trim_end()),
    ];
    let spec = work.join("sdp.spec");
    write(&spec, filled("rpm/sdp.spec", release, &more)?.as_bytes())?;
    let top = work.join("rpm");
    let mut pack = Command::new("rpmbuild");
    pack.env("SOURCE_DATE_EPOCH", &release.epoch);
    for (name, value) in [
        ("_topdir", &*top.to_string_lossy()),
        ("_rpmdir", &*folder.to_string_lossy()),
        ("_rpmfilename", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"),
        ("_buildhost", "localhost"),
        ("use_source_date_epoch_as_buildtime", "1"),
        ("clamp_mtime_to_source_date_epoch", "1"),
        ("_build_id_links", "none"),
        ("__os_install_post", "%{nil}"),
        ("debug_package", "%{nil}"),
    ] {
        pack.arg("--define").arg(format!("{name} {value}"));
    }
    pack.args(["-bb", "--quiet"]).arg(&spec);
    output_of(&mut pack)?;
    let version = &release.description.version;
    let architecture = std::env::consts::ARCH;
    Ok(Made::Package(folder.join(format!("{NAME}-{version}-1.{architecture}.rpm"))))
}

/// The tarball: a folder with `bin`, `lib`, `share` and `etc`, which works from where it is
/// unpacked.
pub(crate) fn tarball(release: &Release, work: &Path, folder: &Path) -> Result<Made, String> {
    let places = Places { lib: "usr/lib".to_owned(), zsh: "usr/share/zsh/site-functions" };
    let short = |(name, content): (String, Content)| {
        (name.strip_prefix("usr/").map(str::to_owned).unwrap_or(name), content)
    };
    let tree: Tree = tree(release, &places, work)?.into_iter().map(short).collect();
    let architecture = std::env::consts::ARCH;
    let top = format!("{NAME}-{}-{architecture}-linux-gnu", release.description.version);
    let stage = work.join("tarball");
    lay_out(&tree, release, &stage.join(&top))?;
    open_folders(&stage)?;
    let plain = work.join("tarball.tar");
    run(Command::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
        .arg(format!("--mtime=@{}", release.epoch))
        .arg("-C")
        .arg(&stage)
        .arg("-cf")
        .arg(&plain)
        .arg(&top))?;
    run(Command::new("xz").args(["--threads=1", "--force"]).arg(&plain))?;
    let out = folder.join(format!("{top}.tar.xz"));
    let packed = work.join("tarball.tar.xz");
    fs::rename(&packed, &out).map_err(|e| format!("{}: {e}", out.display()))?;
    Ok(Made::Package(out))
}
