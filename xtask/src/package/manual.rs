//! Manual pages: names and options from what the tools say of themselves, prose from
//! `packaging/man`.
//!
//! A command without prose fails the run, so that none is shipped without its page.

use super::{Flag, Operand, Release, Tool, source, text};

/// The place in a page's prose where the generated options go.
const OPTIONS: &str = "@OPTIONS@";

/// Pages by name, as in `sdp-run.1`.
pub(crate) fn pages(release: &Release) -> Result<Vec<(String, String)>, String> {
    let mut pages = Vec::new();
    for tool in &release.description.tools {
        let section = if tool.commands.is_empty() { 8 } else { 1 };
        pages.push(page(release, tool, &tool.name, section)?);
        for command in &tool.commands {
            let name = format!("{} {}", tool.name, command.name);
            pages.push(page(release, command, &name, 1)?);
        }
    }
    let day = day(release);
    for (name, title) in [("libsdp.conf.5", "LIBSDP.CONF 5"), ("sdp.7", "SDP 7")] {
        let prose = source(&format!("man/{name}"))?;
        let prose = prose.replace("@TUNABLES@", &tunables(release));
        let prose = prose.replace("@REASONS@", &reasons(release));
        pages.push((name.to_owned(), head(title, &day, release) + &prose));
    }
    Ok(pages)
}

/// The day of the release, from the seconds since 1970.
fn day(release: &Release) -> String {
    let days = release.epoch.parse::<i64>().unwrap_or(0).div_euclid(86_400);
    // Days to a date of the Gregorian calendar, whose years here begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn head(title: &str, day: &str, release: &Release) -> String {
    format!(".TH {title} {day} \"sdp {}\" \"Sockets Direct\"\n", release.description.version)
}

/// Text as roff takes it.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn page(
    release: &Release,
    tool: &Tool,
    command: &str,
    section: u8,
) -> Result<(String, String), String> {
    let name = command.replace(' ', "-");
    let prose = source(&format!("man/{name}.in"))?;
    let Some((before, after)) = prose.split_once(OPTIONS) else {
        return Err(format!("packaging/man/{name}.in: no {OPTIONS}"));
    };
    let title = format!("{} {section}", name.to_uppercase());
    let mut out = head(&title, &day(release), release);
    out += &format!(".SH NAME\n{} \\- {}\n", escaped(&name), escaped(&tool.about));
    out += ".SH SYNOPSIS\n";
    if tool.commands.is_empty() {
        out += &synopsis(command, tool);
    } else {
        for sub in &tool.commands {
            out += &synopsis(&format!("{command} {}", sub.name), sub);
        }
    }
    out += before.trim_start();
    if tool.commands.is_empty() {
        out += ".SH OPTIONS\n";
        out += &entries(tool);
    } else {
        out += ".SH COMMANDS\n";
        for sub in &tool.commands {
            if section == 1 && command.contains(' ') {
                out += &format!(".SS {}\n", escaped(&format!("{command} {}", sub.name)));
                out += &format!("{}.\n", escaped(&sub.about));
                out += &entries(sub);
            } else {
                let page = format!("{}\\-{}", escaped(command), escaped(&sub.name));
                out += &format!(".TP\n.BR {page} (1)\n{}.\n", escaped(&sub.about));
            }
        }
    }
    out += after.trim_start();
    Ok((format!("{name}.{section}"), out))
}

fn synopsis(command: &str, tool: &Tool) -> String {
    let mut out = format!(".SY \"{}\"\n", escaped(command));
    if !tool.commands.is_empty() {
        return out + ".I COMMAND\n\\&...\n.YS\n";
    }
    for flag in &tool.flags {
        let name = match (&flag.long, &flag.short) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        out += &match &flag.value {
            Some(value) if flag.is_optional => {
                format!(".RB [ {}[=\\fI{}\\fB] ]\n", escaped(&name), escaped(value))
            }
            Some(value) => format!(".OP {} {}\n", escaped(&name), escaped(value)),
            None => format!(".OP {}\n", escaped(&name)),
        };
    }
    for operand in &tool.operands {
        let dots = if operand.repeats { "\\~\\&..." } else { "" };
        let name = escaped(&operand.name);
        out += &match operand.is_required {
            true => format!(".I {name}{dots}\n"),
            false => format!(".RI [ {name}{dots} ]\n"),
        };
    }
    out + ".YS\n"
}

fn entries(tool: &Tool) -> String {
    let mut out = String::new();
    for operand in &tool.operands {
        out += &entry_of_operand(operand);
    }
    for flag in &tool.flags {
        out += &entry(flag);
    }
    if !tool.flags.iter().any(|f| f.long.as_deref() == Some("help")) {
        out += ".TP\n.BR \\-h \", \" \\-\\-help\nPrint help.\n";
    }
    out
}

fn one_of(values: &[String]) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!("One of {}.\n", escaped(&values.join(", ")))
}

fn entry_of_operand(operand: &Operand) -> String {
    let (name, help) = (escaped(&operand.name), escaped(&operand.help));
    format!(".TP\n.I {name}\n{help}.\n{}", one_of(&operand.values))
}

fn entry(flag: &Flag) -> String {
    let long = flag.long.as_ref().map(|l| format!("\\fB{}\\fR", escaped(&format!("--{l}"))));
    let short = flag.short.as_ref().map(|s| format!("\\fB{}\\fR", escaped(&format!("-{s}"))));
    let names: Vec<String> = [short, long].into_iter().flatten().collect();
    let value = flag.value.as_ref().map(|v| match flag.is_optional {
        true => format!("[=\\fI{}\\fR]", escaped(v)),
        false => format!(" \\fI{}\\fR", escaped(v)),
    });
    format!(
        ".TP\n{}{}\n{}.\n{}",
        names.join(", "),
        value.unwrap_or_default(),
        escaped(flag.help.trim_end_matches('.')),
        one_of(&flag.values)
    )
}

fn tunables(release: &Release) -> String {
    let one = |t: &crate::json::Json| {
        let get = |key: &str| escaped(&text(t.get(key)));
        format!(
            ".TP\n.BR {} \" (\" {} )\n{}.\nDefault: {}. Values: {}.\n",
            get("name"),
            get("environment"),
            capital(&get("meaning")),
            get("default"),
            get("range")
        )
    };
    let all: String = release.description.json.get("tunables").list().iter().map(one).collect();
    all.trim_end().to_owned()
}

fn reasons(release: &Release) -> String {
    let one = |r: &crate::json::Json| {
        let get = |key: &str| escaped(&text(r.get(key)));
        format!(".TP\n.B {}\n{}\n{}\n", get("word"), get("what"), get("advice"))
    };
    let all: String = release.description.json.get("reasons").list().iter().map(one).collect();
    all.trim_end().to_owned()
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_does_not_take_text_for_requests() {
        assert_eq!(escaped(".x"), "\\&.x");
        assert_eq!(escaped("a-b\\c"), "a\\-b\\ec");
    }
}
