//! How the tool ends: with an exit code, or by INT or QUIT.

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_current_process_group, setrlimit};

use crate::exit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Code(u8),
    /// By INT or QUIT. After an exit code, a shell would go on with its script or loop.
    Interrupt {
        signal: Signal,
        /// The command had the terminal, so the shell has not got the signal. Send it to this group.
        for_group: bool,
    },
}

impl End {
    pub(crate) fn by(signal: Signal) -> End {
        End::of_command(signal.as_raw(), false)
    }

    /// Returns how to end after the signal with this number ended the command.
    pub(crate) fn of_command(number: i32, had_terminal: bool) -> End {
        match Signal::from_named_raw(number) {
            Some(signal @ (Signal::INT | Signal::QUIT)) => End::Interrupt {
                signal,
                for_group: had_terminal,
            },
            _ => End::Code(exit::by_signal(number)),
        }
    }

    /// Ends this process if it is to end by a signal. Otherwise returns the exit code.
    pub(crate) fn exit(self) -> ExitCode {
        let code = match self {
            End::Code(code) => code,
            End::Interrupt { signal, for_group } => {
                interrupt(signal, for_group);
                exit::by_signal(signal.as_raw())
            }
        };
        ExitCode::from(code)
    }
}

/// Ends this process by `signal`. Returns only in the first process of a container, where the signal has no effect.
fn interrupt(signal: Signal, for_group: bool) {
    if for_group {
        let _ = kill_current_process_group(signal); // this process still handles it
    }
    if getpid().is_init() {
        return;
    }
    // A core dump of this process would be mistaken for the command's.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
}
