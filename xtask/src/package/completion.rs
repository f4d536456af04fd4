//! Completions for bash, zsh and fish.
//!
//! Each shell gets a file per command, with everything in it: nothing is asked of the tool while
//! somebody types. What a value is goes by its name in the command's help: `FILE` is a file, `PID`
//! a process, `KEY=VALUE` a tunable.

use std::fmt::Write;

use super::{Description, Flag, Tool};

/// What can stand for a value.
enum Kind {
    File,
    Process,
    Tunable,
    Words(Vec<String>),
    Anything,
}

fn kind(name: &str, values: &[String]) -> Kind {
    if !values.is_empty() {
        return Kind::Words(values.to_vec());
    }
    match name {
        "FILE" | "DIR" => Kind::File,
        "PID" => Kind::Process,
        "KEY=VALUE" => Kind::Tunable,
        "LEVEL[:DEST]" => Kind::Words((1..=9).map(|n| n.to_string()).collect()),
        _ => Kind::Anything,
    }
}

/// `--long` and `-s`, with `--help`, which every command has.
fn names(tool: &Tool) -> Vec<String> {
    let of = |flag: &Flag| {
        let long = flag.long.iter().map(|l| format!("--{l}"));
        long.chain(flag.short.iter().map(|s| format!("-{s}"))).collect::<Vec<_>>()
    };
    let mut all: Vec<String> = tool.flags.iter().flat_map(of).collect();
    if !all.iter().any(|n| n == "--help") {
        all.push("--help".to_owned());
    }
    all
}

/// Every command with its path of words, parents first.
fn flat<'a>(tool: &'a Tool, above: &str, out: &mut Vec<(String, &'a Tool)>) {
    let path = format!("{above}{}", tool.name);
    out.push((path.clone(), tool));
    for sub in &tool.commands {
        flat(sub, &format!("{path} "), out);
    }
}

/// True for a command that starts another one, which completes what comes behind it.
fn starts_another(tool: &Tool) -> bool {
    tool.operands.iter().any(|o| o.name == "COMMAND")
}

// ---- bash --------------------------------------------------------------------------------------

fn bash_values(kind: &Kind, tunables: &[String]) -> String {
    match kind {
        Kind::File => "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned(),
        Kind::Process => {
            "COMPREPLY=($(compgen -W \"$(cd /proc && echo [0-9]*)\" -- \"$cur\"))".to_owned()
        }
        Kind::Tunable => format!(
            "compopt -o nospace; COMPREPLY=($(compgen -S = -W '{}' -- \"$cur\"))",
            tunables.join(" ")
        ),
        Kind::Words(words) => {
            format!("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", words.join(" "))
        }
        Kind::Anything => "COMPREPLY=()".to_owned(),
    }
}

/// For bash.
pub(crate) fn bash(tool: &Tool, description: &Description) -> String {
    let mut commands = Vec::new();
    flat(tool, "", &mut commands);
    let function = format!("_{}", tool.name);
    let tunables = description.tunables();
    let mut out = format!("# Completion of {} for bash.\n{function}() {{\n", tool.name);
    out += "    local cur=${COMP_WORDS[COMP_CWORD]} path=";
    let _ = writeln!(out, "{} i word want=", tool.name);
    out += "    COMPREPLY=()\n    for ((i = 1; i < COMP_CWORD; i++)); do\n";
    out += "        word=${COMP_WORDS[i]}\n";
    out += "        if [[ $want ]]; then want=; continue; fi\n";
    out += "        case \"$path $word\" in\n";
    for (path, _) in commands.iter().skip(1) {
        let _ = writeln!(out, "            \"{path}\") path=\"{path}\"; continue ;;");
    }
    out += "        esac\n        case \"$path\" in\n";
    for (path, tool) in &commands {
        let with_value: Vec<String> = tool
            .flags
            .iter()
            .filter(|f| f.value.is_some() && !f.is_optional)
            .flat_map(|f| f.long.iter().map(|l| format!("\"--{l}\"")))
            .collect();
        if with_value.is_empty() && !starts_another(tool) {
            continue;
        }
        let _ = writeln!(out, "            \"{path}\")\n                case \"$word\" in");
        if !with_value.is_empty() {
            let _ = writeln!(out, "                    {}) want=$word ;;", with_value.join("|"));
        }
        if starts_another(tool) {
            out += "                    --) _sdp_other $((i + 1)); return ;;\n";
            out += "                    -*) ;;\n";
            out += "                    *) _sdp_other $i; return ;;\n";
        }
        out += "                esac ;;\n";
    }
    out += "        esac\n    done\n    case \"$path $want\" in\n";
    for (path, tool) in &commands {
        for flag in tool.flags.iter() {
            let (Some(long), Some(value)) = (&flag.long, &flag.value) else { continue };
            let reply = bash_values(&kind(value, &flag.values), &tunables);
            let _ = writeln!(out, "        \"{path} --{long}\") {reply}; return ;;");
        }
    }
    out += "    esac\n    case \"$path\" in\n";
    for (path, tool) in &commands {
        let mut words: Vec<String> = tool.commands.iter().map(|c| c.name.clone()).collect();
        words.extend(tool.operands.iter().flat_map(|o| o.values.clone()));
        let _ = writeln!(out, "        \"{path}\")");
        let _ = writeln!(out, "            if [[ $cur == -* ]]; then");
        let flags = names(tool).join(" ");
        let _ = writeln!(out, "                COMPREPLY=($(compgen -W '{flags}' -- \"$cur\"))");
        out += "            else\n";
        let reply = if starts_another(tool) {
            "COMPREPLY=($(compgen -c -- \"$cur\"))".to_owned()
        } else if tool.operands.iter().any(|o| o.name == "FILE") {
            bash_values(&Kind::File, &tunables)
        } else if tool.operands.iter().any(|o| o.name == "PROGRAM") {
            "COMPREPLY=($(compgen -c -- \"$cur\"))".to_owned()
        } else {
            bash_values(&Kind::Words(words), &tunables)
        };
        let _ = writeln!(out, "                {reply}\n            fi ;;");
    }
    out += "    esac\n}\n";
    if commands.iter().any(|(_, tool)| starts_another(tool)) {
        out += "\n# What another command, which begins at this word, completes by itself.\n";
        out += "_sdp_other() {\n    if declare -F _command_offset >/dev/null; then\n";
        out += "        _command_offset \"$1\"\n    elif ((COMP_CWORD == $1)); then\n";
        out += "        COMPREPLY=($(compgen -c -- \"${COMP_WORDS[COMP_CWORD]}\"))\n    else\n";
        out += "        COMPREPLY=($(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\"))\n    fi\n}\n";
    }
    let _ = writeln!(out, "\ncomplete -F {function} {}", tool.name);
    out
}

// ---- zsh ---------------------------------------------------------------------------------------

/// Text inside single quotes, in a place where brackets and colons have a meaning.
fn zsh_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\'' => out += "'\\''",
            '[' | ']' | ':' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

fn zsh_action(kind: &Kind, tunables: &[String]) -> String {
    match kind {
        Kind::File => "_files".to_owned(),
        Kind::Process => "_pids".to_owned(),
        Kind::Tunable => format!("compadd -S= -- {}", tunables.join(" ")),
        Kind::Words(words) => format!("({})", words.join(" ")),
        Kind::Anything => " ".to_owned(),
    }
}

fn zsh_function(tool: &Tool, path: &str, description: &Description, out: &mut String) {
    let function = format!("_{}", path.replace([' ', '-'], "_"));
    let tunables = description.tunables();
    let _ = writeln!(out, "{function}() {{\n    local line state ret=1");
    out.push_str("    _arguments -s -C");
    for flag in &tool.flags {
        let help = zsh_text(&flag.help);
        let value = flag.value.as_ref().map_or_else(String::new, |name| {
            let action = zsh_action(&kind(name, &flag.values), &tunables);
            let colon = if flag.is_optional { "::" } else { ":" };
            format!("{colon}{}:{action}", zsh_text(name))
        });
        let many = if flag.help.contains("repeatable") { "*" } else { "" };
        for name in flag.long.iter().map(|l| format!("--{l}")) {
            let equals = match (&flag.value, flag.is_optional) {
                (Some(_), true) => "=-",
                (Some(_), false) => "=",
                (None, _) => "",
            };
            let _ = write!(out, " \\\n        '{many}{name}{equals}[{help}]{value}'");
        }
        for name in flag.short.iter().map(|s| format!("-{s}")) {
            let _ = write!(out, " \\\n        '{many}{name}[{help}]{value}'");
        }
    }
    if !tool.flags.iter().any(|f| f.long.as_deref() == Some("help")) {
        out.push_str(" \\\n        '--help[Print help]'");
    }
    if tool.commands.is_empty() {
        for operand in &tool.operands {
            let name = zsh_text(&operand.name);
            let _ = match (operand.name.as_str(), operand.repeats) {
                ("COMMAND", _) => write!(
                    out,
                    " \\\n        '(-)1:command: _command_names -e' \\\n        '*::arguments: _normal'"
                ),
                ("PROGRAM", _) => write!(out, " \\\n        ':{name}: _command_names -e'"),
                (_, repeats) => {
                    let action = zsh_action(&kind(&operand.name, &operand.values), &tunables);
                    let star = if repeats { "*" } else { "" };
                    write!(out, " \\\n        '{star}:{name}:{action}'")
                }
            };
        }
        out.push_str(" && ret=0\n    return ret\n}\n\n");
        return;
    }
    out.push_str(" \\\n        '1:command:->command' '*::arguments:->arguments' && ret=0\n");
    out.push_str("    case $state in\n        command)\n            local -a commands=(\n");
    for sub in &tool.commands {
        let _ = writeln!(out, "                '{}:{}'", sub.name, zsh_text(&sub.about));
    }
    out.push_str("            )\n            _describe command commands && ret=0 ;;\n");
    out.push_str("        arguments)\n            case $line[1] in\n");
    for sub in &tool.commands {
        let name = format!("{function}_{}", sub.name.replace('-', "_"));
        let _ = writeln!(out, "                {}) {name} && ret=0 ;;", sub.name);
    }
    out.push_str("            esac ;;\n    esac\n    return ret\n}\n\n");
    for sub in &tool.commands {
        zsh_function(sub, &format!("{path} {}", sub.name), description, out);
    }
}

/// For zsh.
pub(crate) fn zsh(tool: &Tool, description: &Description) -> String {
    let mut out = format!("#compdef {0}\n# Completion of {0} for zsh.\n\n", tool.name);
    zsh_function(tool, &tool.name, description, &mut out);
    let _ = writeln!(out, "_{} \"$@\"", tool.name);
    out
}

// ---- fish --------------------------------------------------------------------------------------

fn fish_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

fn fish_commands(
    tool: &Tool,
    parents: &[String],
    program: &str,
    description: &Description,
    out: &mut String,
) {
    let subs: Vec<&str> = tool.commands.iter().map(|c| c.name.as_str()).collect();
    let seen = parents.iter().map(|p| format!("__fish_seen_subcommand_from {p}"));
    let mut conditions: Vec<String> = seen.collect();
    if !subs.is_empty() {
        conditions.push(format!("not __fish_seen_subcommand_from {}", subs.join(" ")));
    }
    let here = match conditions.join("; and ") {
        none if none.is_empty() => String::new(),
        some => format!(" -n '{some}'"),
    };
    for sub in &tool.commands {
        let about = fish_text(&sub.about);
        let _ = writeln!(out, "complete -c {program}{here} -f -a {} -d '{about}'", sub.name);
    }
    for flag in &tool.flags {
        let long = flag.long.as_ref().map_or_else(String::new, |l| format!(" -l {l}"));
        let short = flag.short.as_ref().map_or_else(String::new, |s| format!(" -s {s}"));
        let value =
            flag.value.as_ref().map_or_else(String::new, |name| match kind(name, &flag.values) {
                Kind::File => " -r -F".to_owned(),
                Kind::Process => " -x -a '(__fish_complete_pids)'".to_owned(),
                Kind::Tunable => {
                    let keys: Vec<_> =
                        description.tunables().iter().map(|t| format!("{t}=")).collect();
                    format!(" -x -a '{}'", keys.join(" "))
                }
                Kind::Words(words) => format!(" -x -a '{}'", words.join(" ")),
                Kind::Anything => " -x".to_owned(),
            });
        let help = fish_text(&flag.help);
        let _ = writeln!(out, "complete -c {program}{here}{short}{long}{value} -d '{help}'");
    }
    for operand in &tool.operands {
        let _ = match operand.name.as_str() {
            "COMMAND" => {
                writeln!(out, "complete -c {program}{here} -x -a '(__fish_complete_subcommand)'")
            }
            "PROGRAM" => {
                writeln!(out, "complete -c {program}{here} -x -a '(__fish_complete_command)'")
            }
            _ => Ok(()),
        };
    }
    for sub in &tool.commands {
        let path: Vec<String> = parents.iter().cloned().chain([sub.name.clone()]).collect();
        fish_commands(sub, &path, program, description, out);
    }
}

/// For fish.
pub(crate) fn fish(tool: &Tool, description: &Description) -> String {
    let mut out = format!("# Completion of {} for fish.\n", tool.name);
    fish_commands(tool, &[], &tool.name, description, &mut out);
    out
}
