//! Checks whether a process group still runs.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};

/// Returns whether a process of the group still runs.
///
/// Zombies do not count. They keep the group in existence until their parent reaps them, which may be the system's first process.
/// Without `/proc`, zombies count as running.
pub(crate) fn is_running(group: Pid) -> bool {
    // A group of another user exists, although it may not be signalled.
    test_kill_process_group(group) != Err(Errno::SRCH) && !all_have_ended(group)
}

fn all_have_ended(group: Pid) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let states = entries.flatten().filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        state_in(group, &stat)
    });
    let mut seen = false;
    for state in states {
        seen = true;
        if !matches!(state, 'Z' | 'X') {
            return false;
        }
    }
    seen
}

/// Returns a process's state from its `/proc/<pid>/stat`. `None` if it is not in the group.
fn state_in(group: Pid, stat: &str) -> Option<char> {
    // The command's name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let its_group: i32 = fields.nth(1)?.parse().ok()?;
    (its_group == group.as_raw_nonzero().get()).then_some(state)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn start(script: &str) -> (Child, Pid) {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let group = Pid::from_child(&child);
        (child, group)
    }

    #[test]
    fn one_that_has_ended_but_was_not_waited_for_does_not_run() {
        let (mut child, group) = start("echo ready; read -r _");
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert!(is_running(group));
        drop(child.stdin.take());
        // Its output ends with it. It is not reaped yet.
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        while is_running(group) {
            std::thread::yield_now();
        }
        assert!(
            test_kill_process_group(group).is_ok(),
            "the process was reaped, so this shows nothing"
        );
        child.wait().unwrap();
        assert!(!is_running(group));
    }

    #[test]
    fn names_with_parentheses_do_not_mislead() {
        let group = Pid::from_raw(77).unwrap();
        assert_eq!(state_in(group, "9 (a) R 5 77) S 1 77 77 0"), Some('S'));
        assert_eq!(state_in(group, "9 (sh) Z 1 78 77 0"), None);
        assert_eq!(state_in(group, "nonsense"), None);
    }
}
