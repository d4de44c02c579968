//! What every part needs from the machine and the runtime: clocks, timers, mutexes, spans of the log.
//!
//! Entry points: [`clock::Clock`], [`timer::sleep_until`], [`runtime::Runtime`]. Nothing here knows of locks or nodes.

pub(crate) mod clock;
pub(crate) mod mutex;
pub(crate) mod running_calls;
pub(crate) mod runtime;
pub(crate) mod spans;
pub(crate) mod timer;
