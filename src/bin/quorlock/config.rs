//! The configuration file.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::builder::ValueHint;
use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::event::{Event, Weight};
use crate::exit::Failure;
use crate::nodes;
use crate::report::Report;
use crate::setting::{Setting, check, key, options};
use crate::variables::CONFIG;

/// Longest file, in bytes.
const LONGEST: u64 = 1_000_000;
const SYSTEM_WIDE: &str = "/etc/quorlock/config.toml";

pub(crate) struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// Reads the file that is named, otherwise the first one in the usual places. `None` if there is none.
    pub(crate) fn find(named: Option<&Path>) -> Result<Option<File>, Failure> {
        let variable = || {
            env::var_os(CONFIG)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        match named.map(Path::to_owned).or_else(variable) {
            Some(path) => File::read(path).map(Some),
            // A file that this user can see but not read is an error: without it, locks may be taken elsewhere.
            None => usual_places()
                .find(|path| is_there(path))
                .map(File::read)
                .transpose(),
        }
    }

    fn read(path: PathBuf) -> Result<File, Failure> {
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
        match read {
            Ok(_) if text.len() as u64 > LONGEST => Err(Failure::usage(format!(
                "the configuration file {} is longer than a megabyte",
                path.display()
            ))),
            Ok(_) => Ok(File { path, text }),
            Err(error) => Err(Failure::usage(format!(
                "cannot read the configuration file {}: {error} (--config /dev/null reads none)",
                path.display()
            ))),
        }
    }

    /// Returns the settings in the file. All of them are checked, also those of other commands.
    pub(crate) fn settings<'a>(&self, known: &'a Command) -> Result<Vec<Setting<'a>>, Failure> {
        let table = DeTable::parse(&self.text)
            .map_err(|error| self.wrong(error.span().unwrap_or_default(), error.message()))?;
        let mut settings = Vec::new();
        for (name, value) in table.get_ref() {
            let option = option(known, name.get_ref())
                .ok_or_else(|| self.wrong(name.span(), unknown(known, name.get_ref())))?;
            let values = self.values(option, value).ok_or_else(|| {
                self.wrong(
                    value.span(),
                    format!("{}: expected {}", name.get_ref(), kind(option)),
                )
            })?;
            let place = format!("{}: {}", self.line(name.span()), name.get_ref());
            let setting = Setting {
                option,
                values,
                place,
            };
            check(&setting)?;
            settings.push(setting);
        }
        Ok(settings)
    }

    /// Returns the values as the option takes them. `None` if they have another type.
    fn values(&self, option: &Arg, value: &Spanned<DeValue<'_>>) -> Option<Vec<OsString>> {
        match (option.get_action(), value.get_ref()) {
            (ArgAction::SetTrue, DeValue::Boolean(on)) => Some(vec![on.to_string().into()]),
            (ArgAction::SetTrue, _) => None,
            (ArgAction::Append, DeValue::Array(list)) => list
                .iter()
                .map(|item| Some(text(item)?.into_owned().into()))
                .collect(),
            _ => {
                let text = text(value)?;
                Some(vec![match option.get_value_hint() {
                    // A relative path begins where the file is.
                    ValueHint::AnyPath => self.path.parent()?.join(&*text).into(),
                    _ => text.into_owned().into(),
                }])
            }
        }
    }

    /// Warns if every user of this machine may read the nodes' passwords.
    pub(crate) fn warn_if_exposed(&self, settings: &[Setting<'_>], report: &Report) {
        let for_all = |metadata: fs::Metadata| metadata.permissions().mode() & 0o004 != 0;
        let nodes = settings
            .iter()
            .filter(|setting| key(setting.option).as_deref() == Some("nodes"));
        let mut lists = nodes
            .flat_map(|setting| &setting.values)
            .filter_map(|list| list.to_str());
        if lists.any(nodes::have_passwords) && fs::metadata(&self.path).is_ok_and(for_all) {
            let path = self.path.display();
            report.event(&Event::Log {
                weight: Weight::Warning,
                text: &format!("{path} contains passwords, and all users may read it: chmod o-r {path}"),
            });
        }
    }

    fn wrong(&self, place: Range<usize>, what: impl Display) -> Failure {
        Failure::usage(format!("{}: {what}", self.line(place)))
    }

    /// Returns the file and the line, for messages.
    fn line(&self, place: Range<usize>) -> String {
        let before = self.text.get(..place.start).unwrap_or_default();
        format!(
            "{}: line {}",
            self.path.display(),
            before.matches('\n').count() + 1
        )
    }
}

/// Returns whether there is a file, also if this user may not look for it.
fn is_there(path: &Path) -> bool {
    let is_missing = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
    fs::symlink_metadata(path).map_or_else(|error| !is_missing(error.kind()), |_| true)
}

fn usual_places() -> impl Iterator<Item = PathBuf> {
    let folder = |variable| {
        env::var_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let own = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    own.map(|folder| folder.join("quorlock/config.toml"))
        .into_iter()
        .chain([SYSTEM_WIDE.into()])
}

/// Returns the option with this key. All commands agree about the values of a key.
fn option<'a>(known: &'a Command, name: &str) -> Option<&'a Arg> {
    options(known).find(|option| key(option).as_deref() == Some(name))
}

fn unknown(known: &Command, name: &str) -> String {
    let mut keys: Vec<String> = options(known).filter_map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    format!("unknown key {name:?}; the keys are {}", keys.join(", "))
}

fn kind(option: &Arg) -> String {
    match option.get_action() {
        ArgAction::SetTrue => "true or false".to_owned(),
        ArgAction::Append => "a list of strings".to_owned(),
        _ => format!("a string, as for {option}"),
    }
}

fn text<'a>(value: &Spanned<DeValue<'a>>) -> Option<Cow<'a, str>> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.clone()),
        _ => None,
    }
}
