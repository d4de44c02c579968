//! A setting: an option with a variable (`env` in `args/`). It may also stand in the configuration file, under the variable's name
//! without `QUORLOCK_`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

use crate::exit::Failure;
use crate::nodes;
use crate::variables::CONFIG;

pub(crate) const PREFIX: &str = "QUORLOCK_";

/// A value for an option, and the name of its place for messages.
pub(crate) struct Setting<'a> {
    pub(crate) option: &'a Arg,
    pub(crate) values: Vec<OsString>,
    pub(crate) place: String,
}

/// Returns the options of all commands.
pub(crate) fn options(known: &Command) -> impl Iterator<Item = &Arg> {
    known.get_subcommands().flat_map(Command::get_arguments)
}

/// Returns an option's key in the file. `None` if the option is no setting.
pub(crate) fn key(option: &Arg) -> Option<String> {
    let variable = option.get_env()?.to_str()?;
    let is_setting = option.get_long().is_some() && variable != CONFIG;
    let name = variable.strip_prefix(PREFIX).filter(|_| is_setting)?;
    Some(name.to_lowercase().replace('_', "-"))
}

/// Returns whether the setting is a flag that is switched off, which excludes nothing.
pub(crate) fn is_off(setting: &Setting<'_>) -> bool {
    matches!(setting.option.get_action(), ArgAction::SetTrue) && setting.values == ["false"]
}

/// Checks that the option takes the values. The message names their place.
pub(crate) fn check(setting: &Setting<'_>) -> Result<(), Failure> {
    let Setting { option, place, .. } = setting;
    for value in &setting.values {
        let alone = Arg::new("value")
            .value_parser(option.get_value_parser().clone())
            .allow_hyphen_values(true);
        let parsed = Command::new("")
            .no_binary_name(true)
            .arg(alone)
            .try_get_matches_from([value]);
        let Err(error) = parsed else {
            if let (true, Some(list)) = (option.get_id() == "node", value.to_str()) {
                nodes::check(list).map_err(|error| Failure::usage(format!("{place}: {error}")))?;
            }
            continue;
        };
        // The message leaves the value out: it may be a part of a password.
        let Some(value) = value.to_str() else {
            let in_url = match option.get_id() == "node" {
                true => ": in a URL, write other bytes as %XX, such as %FC",
                false => "",
            };
            return Err(Failure::usage(format!("{place} is not UTF-8{in_url}")));
        };
        let expected = match std::error::Error::source(&error) {
            Some(reason) => reason.to_string(),
            None => "expected true or false".to_owned(),
        };
        return Err(Failure::usage(format!(
            "{place}: invalid value {value:?} for {option}: {expected}"
        )));
    }
    Ok(())
}
