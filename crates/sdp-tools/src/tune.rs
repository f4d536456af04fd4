//! `sdp tune`: tunables in force, and new values for running programs ([`crate::asking`]) and programs to come.
//!
//! Values are saved as `option` statements of the rule file: the file is replaced in one step, with its
//! owner and mode, and everything else in it as it was. Processes that run and go by that file take the values
//! over when they make their next connection, at most a second later, where their environment does not say
//! otherwise.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use clap::Args;
use sdp_config::tunables::{KEYS, Key, SetError, Tunables};

use crate::asking::{self, Answer, Outcome, Whom};
use crate::perf::users::User;
use crate::rules::{DEFAULT_FILE, FILE_VARIABLE, Texts};
use crate::run::RULES_VARIABLE;
use crate::{Failure, hints, show};

/// Names of the same tunables in older generations.
const FORMER: [(&str, &str); 3] = [
    ("debug_level", "sdp_debug_level"),
    ("data_debug_level", "sdp_data_debug_level"),
    ("zcopy_thresh", "sdp_zcopy_thresh"),
];
/// Tunables that have an effect between hosts only, where both ends set them.
const BETWEEN_HOSTS: [&str; 1] = ["sdp_zcopy_thresh"];

const BETWEEN_HOSTS_ONLY: &str = " (between hosts, where both ends set it)";

/// Options of `sdp tune`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Save the values in the rule file, for programs to come
    #[arg(long)]
    pub save: bool,
    /// Of this running process (may be repeated)
    #[arg(long, value_name = "PID", conflicts_with_all = ["user", "all"])]
    pub pid: Vec<u32>,
    /// Of the running processes of this user, name or number
    #[arg(long, value_name = "USER", conflicts_with = "all")]
    pub user: Option<User>,
    /// Of all running processes: one's own, or, for root, everybody's
    #[arg(long)]
    pub all: bool,
    /// This rule file (default: the one that programs would use)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read modprobe's files below this folder: a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub sysroot: PathBuf,
    /// What to show, or to set; nothing: show all. At run time the value `default` takes a value back
    #[arg(value_name = "KEY[=VALUE]")]
    pub settings: Vec<String>,
}

fn key(name: &str) -> Result<&'static Key, Failure> {
    if let Some(key) = KEYS.iter().find(|k| k.name == name) {
        return Ok(key);
    }
    if let Some((_, now)) = FORMER.iter().find(|(former, _)| *former == name) {
        return key(now);
    }
    let names: Vec<_> = KEYS.iter().map(|k| k.name).collect();
    Err(Failure::new(name, format_args!("no such tunable; there are {}", names.join(", "))))
}

/// Whether a line sets this tunable, well or not.
fn sets(line: &str, key: &Key) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|w| w.eq_ignore_ascii_case("option")) && words.next() == Some(key.name)
}

/// The text with these values: where a tunable was set first, it is set now, and nowhere else.
fn with_values(text: &str, values: &[(&'static Key, String)]) -> String {
    let mut written = vec![false; values.len()];
    let mut out = String::new();
    for line in text.lines() {
        match values.iter().position(|(key, _)| sets(line, key)) {
            None => out = out + line.strip_suffix('\r').unwrap_or(line) + "\n",
            Some(at) if !written[at] => {
                written[at] = true;
                out += &format!("option {} {}\n", values[at].0.name, values[at].1);
            }
            Some(_) => {}
        }
    }
    for ((key, value), written) in values.iter().zip(written) {
        if !written {
            out += &format!("option {} {value}\n", key.name);
        }
    }
    out
}

/// Puts `text` in a file's place in one step, with the owner and mode that it had.
pub(crate) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let before = fs::metadata(&path).ok();
    let mode = before.as_ref().map_or(0o644, |m| m.mode() & 0o777);
    let mut beside = path.clone().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let written = || -> std::io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&beside)?;
        if let Some(before) = &before {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    let done = written();
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

/// Runs the sub-command.
///
/// # Errors
/// No tunable has that name, it cannot have that value, or the file cannot be written.
pub fn main(options: &Options) -> Result<(), Failure> {
    let whom = match (&options.pid[..], options.user, options.all) {
        ([], None, false) => None,
        ([], None, true) => Some(Whom::All),
        ([], Some(user), _) => Some(Whom::User(user.uid())),
        (pids, ..) => Some(Whom::Processes(pids.to_vec())),
    };
    let mut shown = Vec::new();
    let mut values = Vec::new();
    for setting in &options.settings {
        let (name, value) = match setting.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (setting.as_str(), None),
        };
        let key = key(name)?;
        shown.push(key.name);
        let Some(value) = value else { continue };
        let is_back = value == asking::DEFAULT && whom.is_some() && !options.save;
        if let Err(SetError::BadValue(key)) = if is_back {
            Ok(())
        } else {
            Tunables::DEFAULT.clone().set(key.name.as_bytes(), value.as_bytes())
        } {
            return Err(Failure::new(setting, format_args!("{} takes {}", key.name, key.range)));
        }
        values.retain(|(other, _): &(&'static Key, String)| other.name != key.name);
        values.push((key, value.to_string()));
    }
    if !values.is_empty() && !options.save && whom.is_none() {
        return Err(Failure(
            "whose? --pid PID, --user USER or --all for running processes; --save for the rule file: programs to \
             come have it, and those that run take it over within a second when they make a connection; for one \
             program: sdp run --set KEY=VALUE"
                .into(),
        ));
    }
    if options.save {
        save(options, &values)?;
    }
    if let Some(whom) = whom {
        return at_run_time(options, &whom, &values, &shown);
    }
    let front = std::env::var_os(RULES_VARIABLE).unwrap_or_default();
    let front = std::os::unix::ffi::OsStringExt::into_vec(front);
    let texts = Texts::load(front, options.config.as_deref())?;
    let mut all = show::tunables(&texts, std::env::vars_os());
    all.retain(|t| shown.is_empty() || shown.contains(&t.key));
    let mut hints = hints::find(&options.sysroot, |name| key(name).ok().map(|key| key.name));
    hints.retain(|h| shown.is_empty() || shown.contains(&&*h.key));
    if options.json {
        let form = serde_json::json!({"schema": show::SCHEMA, "tunables": all, "hints": hints});
        crate::print(&crate::json(&form)?);
        return Ok(());
    }
    for tunable in &all {
        let scope = scope_note(tunable.key, &tunable.value);
        crate::print(&format!(
            "{:<21} {:<12} {}{scope}\n",
            tunable.key,
            show::clean(&tunable.value),
            tunable.origin
        ));
    }
    for hint in &hints {
        let taken = if hint.is_taken { "" } else { ", which it cannot be here" };
        let (file, value) = (show::clean(&hint.file), show::clean(&hint.value));
        crate::print(&format!(
            "hint: {file}:{} sets {} of the historic module to {value}{taken}\n",
            hint.line, hint.key
        ));
    }
    if let Some(command) = hints::command(&hints) {
        crate::print(&format!("hint: to have that for programs to come: {command}\n"));
    }
    Ok(())
}

/// The part for running processes: exit status 0 if all of them have taken over the requested
/// settings.
fn at_run_time(
    options: &Options,
    whom: &Whom,
    values: &[(&'static Key, String)],
    shown: &[&'static str],
) -> Result<(), Failure> {
    let processes = asking::find(whom);
    let is_missing = |pid: &&u32| !processes.iter().any(|p| p.pid == **pid);
    if let Some(pid) = options.pid.iter().find(is_missing) {
        return Err(Failure(crate::stat::why_no_page(*pid)));
    }
    if processes.is_empty() {
        return Err(Failure(
            "no such process has the library and a stream connection; for programs to come: --save"
                .into(),
        ));
    }
    let answers = asking::run(processes, values, shown);
    if options.json {
        let form = serde_json::json!({"schema": show::SCHEMA, "processes": answers});
        crate::print(&crate::json(&form)?);
    } else {
        answers.iter().for_each(|answer| crate::print(&answer_lines(answer, values)));
    }
    let missed = answers.iter().filter(|a| !matches!(a.outcome, None | Some(Outcome::Taken)));
    match missed.count() {
        0 => Ok(()),
        n => Err(Failure(format!("{n} of {} processes have not taken it", answers.len()))),
    }
}

/// A process's answer, a line for each tunable.
fn answer_lines(answer: &Answer, values: &[(&'static Key, String)]) -> String {
    let head = format!("{:>7} {:<15}", answer.pid, show::clean(&answer.program));
    let why = answer.why.as_deref().unwrap_or_default();
    let outcome = match answer.outcome {
        None => "",
        Some(Outcome::Taken) => "  taken",
        Some(Outcome::Pending) => {
            "  not yet: it takes it when it next waits on a connection or makes one"
        }
        Some(Outcome::Refused) => "  not taken by this version of the library: ",
        Some(Outcome::Failed) => "  cannot be asked: ",
    };
    if answer.tunables.is_empty() {
        let nothing = if answer.outcome.is_none() { "  tells of no tunables" } else { "" };
        return format!("{head}{nothing}{outcome}{}\n", show::clean(why));
    }
    let mut out = String::new();
    for one in &answer.tunables {
        let is_set = values.iter().any(|(key, _)| key.name == one.key);
        let outcome = if is_set { outcome } else { "" };
        let why = if is_set { show::clean(why) } else { String::new() };
        out += &format!(
            "{head} {:<21} {:<12} {}{}{outcome}{why}\n",
            one.key,
            show::clean(&one.value),
            one.origin,
            scope_note(one.key, &one.value)
        );
    }
    out
}

/// Where a tunable has an effect, if it has a value that is not its default.
pub(crate) fn scope_note(key: &str, value: &str) -> &'static str {
    let default = KEYS.iter().find(|k| k.name == key).map_or("", |k| k.default);
    if BETWEEN_HOSTS.contains(&key) && value != default {
        return BETWEEN_HOSTS_ONLY;
    }
    ""
}

fn save(options: &Options, values: &[(&'static Key, String)]) -> Result<(), Failure> {
    if values.is_empty() {
        return Err(Failure("--save needs KEY=VALUE".into()));
    }
    let named = || std::env::var_os(FILE_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let path = options.config.clone().or_else(named).unwrap_or_else(|| DEFAULT_FILE.into());
    let failed = |e: std::io::Error| Failure::new(path.display(), e);
    let text = match crate::rules::regular(&path) {
        Ok(_) => fs::read_to_string(&path).map_err(failed)?,
        Err(_) if !path.exists() => String::new(),
        Err(why) => return Err(why),
    };
    replace(&path, &with_values(&text, values)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_else_in_the_file_stays() {
        let of = |name: &str, value: &str| (key(name).unwrap(), value.to_string());
        let text = "# head\noption recv_poll 5 # old\nuse tcp client * *:1\noption recv_poll 6";
        let new = with_values(text, &[of("recv_poll", "0"), of("promote_calls", "4")]);
        let expected = "# head\noption recv_poll 0\nuse tcp client * *:1\noption promote_calls 4\n";
        assert_eq!(new, expected);
    }

    #[test]
    fn former_names_lead_to_the_present_ones() {
        assert_eq!(key("debug_level").unwrap().name, "sdp_debug_level");
        assert!(key("nothing").is_err());
    }
}
