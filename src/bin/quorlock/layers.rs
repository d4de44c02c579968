//! Options from variables and from the configuration file.
//!
//! The command line is parsed twice. The second time, variables and the file are the options' defaults: an option
//! beats its default, and no default conflicts with an option.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::args::Arguments;
use crate::config::File;
use crate::event::{Event, Weight};
use crate::exit::Failure;
use crate::report::Report;
use crate::setting::{PREFIX, Setting, check, is_off, key, options};
use crate::{usage, variables};

/// Variables that are no settings: those that a command gets, of the log, and of the testbed.
const OTHER_VARIABLES: [&str; 5] = [
    variables::RESOURCE,
    variables::FENCING_TOKEN,
    variables::PERIOD,
    variables::LOG,
    variables::REDIS_SERVER,
];
/// The options that tell the nodes' password.
const PASSWORDS: [&str; 2] = ["password_file", "credentials_command"];

/// The command line alone.
pub(crate) struct Given {
    words: Vec<OsString>,
    matches: ArgMatches,
    /// The options without variables and file.
    pub(crate) arguments: Arguments,
}

impl Given {
    pub(crate) fn parse(words: Vec<OsString>) -> Result<Given, clap::Error> {
        let read = || {
            let matches = without_variables().try_get_matches_from(&words)?;
            let arguments = Arguments::from_arg_matches(&matches)?;
            Ok((matches, arguments))
        };
        match read() {
            Ok((matches, arguments)) => Ok(Given {
                words,
                matches,
                arguments,
            }),
            // The help names the variables.
            Err(error) if usage::is_help(&error) => {
                Err(described().try_get_matches_from(&words).err().unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Adds variables and the configuration file.
    pub(crate) fn complete(self, report: &Report) -> Result<Arguments, Failure> {
        let mut known = described();
        known.build();
        let Some((command, given)) = self.matches.subcommand().and_then(|(name, given)| {
            let command = known.find_subcommand(name)?;
            Some((command, given))
        }) else {
            return Ok(self.arguments);
        };
        let options: Vec<&Arg> = command.get_arguments().filter(|arg| key(arg).is_some()).collect();
        if options.is_empty() {
            return Ok(self.arguments);
        }
        warn_of_unknown_variables(&known, report);
        let in_file = match File::find(self.arguments.config.as_deref())? {
            Some(file) => {
                let settings = file.settings(&known)?;
                file.warn_if_exposed(&settings, report);
                settings
            }
            None => Vec::new(),
        };
        let settings = chosen(command, given, [from_environment(&options), in_file])?;
        let defaults = without_variables().mut_subcommand(command.get_name(), |command| {
            settings.into_iter().fold(command, |command, setting| {
                command.mut_arg(setting.option.get_id().as_str(), |arg| {
                    arg.default_values(setting.values)
                })
            })
        });
        let matches = defaults.try_get_matches_from(self.words);
        matches
            .and_then(|matches| Arguments::from_arg_matches(&matches))
            .map_err(|error| Failure::usage(usage::words(&error)))
    }
}

/// Returns the command line for help, completions and manual pages. It has no values of variables, which may be secret.
pub(crate) fn described() -> Command {
    each_option(Arguments::command(), |arg| arg.hide_env_values(true))
}

fn without_variables() -> Command {
    each_option(Arguments::command(), |arg| match arg.get_long() {
        Some(_) => arg.env(None::<&'static str>),
        None => arg,
    })
}

fn each_option(command: Command, change: fn(Arg) -> Arg) -> Command {
    command
        .mut_args(change)
        .mut_subcommands(|command| each_option(command, change))
}

/// Warns of variables that look like settings, and have no effect.
fn warn_of_unknown_variables(known: &Command, report: &Report) {
    let options = options(known).chain(known.get_arguments());
    let of_options = options.filter_map(Arg::get_env);
    let effective: Vec<&OsStr> = of_options.chain(OTHER_VARIABLES.map(OsStr::new)).collect();
    let mut unknown: Vec<String> = std::env::vars_os()
        .filter(|(name, value)| !value.is_empty() && !effective.contains(&&**name))
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    unknown.sort_unstable();
    if !unknown.is_empty() {
        report.event(&Event::Log {
            weight: Weight::Warning,
            text: &format!("unknown variables, which have no effect: {}", unknown.join(", ")),
        });
    }
}

/// Returns the variables that are set. An empty one counts as unset.
fn from_environment<'a>(options: &[&'a Arg]) -> Vec<Setting<'a>> {
    let setting = |option: &&'a Arg| {
        let variable = option.get_env()?;
        let value = std::env::var_os(variable).filter(|value| !value.is_empty())?;
        Some(Setting {
            option,
            values: vec![value],
            place: variable.to_string_lossy().into_owned(),
        })
    };
    options.iter().filter_map(setting).collect()
}

/// Returns the settings that count for this command. Layers come in the order of their precedence, after the command line.
fn chosen<'a>(
    command: &'a Command,
    given: &ArgMatches,
    layers: [Vec<Setting<'a>>; 2],
) -> Result<Vec<Setting<'a>>, Failure> {
    let is_given = |arg: &&Arg| {
        !arg.is_global_set() && given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let given = command.get_arguments().filter(is_given);
    let mut taken: Vec<Taken> = given.map(|option| Taken { option, is_on: true }).collect();
    let mut chosen = Vec::new();
    for layer in layers {
        let layer = not_replaced(command, &taken, layer)?;
        layer.iter().try_for_each(check)?;
        taken.extend(layer.iter().map(|setting| Taken {
            option: setting.option,
            is_on: !is_off(setting),
        }));
        chosen.extend(layer);
    }
    Ok(chosen)
}

/// An option that a stronger layer sets.
struct Taken<'a> {
    option: &'a Arg,
    /// `false` for a flag that is switched off, which excludes nothing.
    is_on: bool,
}

impl Taken<'_> {
    /// Returns whether a setting of a weaker layer does not count.
    fn replaces(&self, command: &Command, option: &Arg) -> bool {
        let is_same = self.option.get_id() == option.get_id();
        is_same || self.is_on && (exclude(command, self.option, option) || self.is_elsewhere(option))
    }

    /// Returns whether the option is the password for other nodes than these, which must not get it.
    fn is_elsewhere(&self, option: &Arg) -> bool {
        self.option.get_id() == "node" && PASSWORDS.contains(&option.get_id().as_str())
    }
}

/// Returns the settings of this command that nothing stronger replaces or rules out.
fn not_replaced<'a>(
    command: &'a Command,
    taken: &[Taken<'_>],
    layer: Vec<Setting<'a>>,
) -> Result<Vec<Setting<'a>>, Failure> {
    let mut left: Vec<Setting<'a>> = Vec::new();
    for setting in layer {
        let option = setting.option;
        if !has(command, option) || taken.iter().any(|taken| taken.replaces(command, option)) {
            continue;
        }
        let both =
            |other: &&Setting| !is_off(other) && !is_off(&setting) && exclude(command, other.option, option);
        if let Some(other) = left.iter().find(both) {
            return Err(Failure::usage(format!(
                "{} and {} exclude each other: remove one of them",
                other.place, setting.place
            )));
        }
        left.push(setting);
    }
    Ok(left)
}

fn has(command: &Command, option: &Arg) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == option.get_id())
}

/// Returns whether two options of a command cannot be given together.
fn exclude(command: &Command, one: &Arg, other: &Arg) -> bool {
    let rules_out = |one: &Arg, other: &Arg| {
        let conflicts = command.get_arg_conflicts_with(one);
        conflicts.iter().any(|arg| arg.get_id() == other.get_id())
    };
    rules_out(one, other) || rules_out(other, one)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_option_is_a_setting_in_every_command_that_has_it() {
        let known = described();
        let options = || options(&known);
        let keys: BTreeMap<_, _> = options()
            .filter_map(|option| Some((option.get_id(), key(option)?)))
            .collect();
        assert!(keys.len() > 10);
        for option in options() {
            assert_eq!(key(option).as_ref(), keys.get(option.get_id()), "{option}");
        }
    }
}
