//! The tools described in JSON: commands, options, tunables, reasons.
//!
//! Manual pages, completions and the documentation's tests are made from it, so that they cannot
//! differ from the options of the commands.

use clap::{Arg, ArgAction, Command, CommandFactory};
use sdp_config::tunables::KEYS;
use sdp_stats::Reason;
use serde_json::{Value, json};

use crate::netstat;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Everything that `sdp` (described by `command`) and `sdpnetstat` take.
pub fn all(command: &Command) -> Value {
    let tunables = KEYS.iter().map(|k| {
        json!({
            "name": k.name, "environment": k.env, "default": k.default, "range": k.range,
            "meaning": k.meaning,
        })
    });
    let reasons = Reason::ALL.iter().map(
        |r| json!({"code": r.code(), "word": r.word(), "what": r.what(), "advice": r.advice()}),
    );
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "commands": [one(command), one(&netstat::Options::command())],
        "tunables": tunables.collect::<Vec<_>>(),
        "reasons": reasons.collect::<Vec<_>>(),
    })
}

fn one(command: &Command) -> Value {
    let visible = |a: &&Arg| !a.is_hide_set();
    json!({
        "name": command.get_name(),
        "about": command.get_about().map(ToString::to_string).unwrap_or_default(),
        "options": command.get_arguments().filter(|a| !a.is_positional()).filter(visible)
            .map(option).collect::<Vec<_>>(),
        "operands": command.get_positionals().filter(visible).map(operand).collect::<Vec<_>>(),
        "commands": command.get_subcommands().filter(|c| !c.is_hide_set()).map(one)
            .collect::<Vec<_>>(),
    })
}

fn values(argument: &Arg) -> Vec<String> {
    if !argument.get_action().takes_values() {
        return Vec::new();
    }
    argument.get_possible_values().iter().map(|v| v.get_name().to_string()).collect()
}

fn value_name(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.first().map_or_else(|| argument.get_id().to_string().to_uppercase(), ToString::to_string)
}

fn help(argument: &Arg) -> String {
    argument.get_help().map(ToString::to_string).unwrap_or_default()
}

fn option(argument: &Arg) -> Value {
    let takes_value = argument.get_action().takes_values();
    let repeats = matches!(argument.get_action(), ArgAction::Append | ArgAction::Count);
    json!({
        "long": argument.get_long(),
        "short": argument.get_short().map(|c| c.to_string()),
        "value": takes_value.then(|| value_name(argument)),
        // It may be left out, and otherwise follows an equals sign: --trace[=DIR].
        "optional": takes_value && argument.get_num_args().is_some_and(|n| n.min_values() == 0),
        "values": values(argument),
        "repeats": repeats,
        "help": help(argument),
    })
}

fn operand(argument: &Arg) -> Value {
    let repeats = argument.get_num_args().is_some_and(|n| n.max_values() > 1)
        || matches!(argument.get_action(), ArgAction::Append);
    json!({
        "name": value_name(argument),
        "values": values(argument),
        "required": argument.is_required_set(),
        "repeats": repeats,
        "help": help(argument),
    })
}
