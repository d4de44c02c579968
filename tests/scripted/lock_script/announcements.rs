//! Announcements: what the script publishes, and how listeners read it (W2).

use quorlock::simulation::lock_script::Announcement;
use quorlock::simulation::{Sender, Successor, Turn, WaitNotice, WaiterId};

use super::*;

fn sender(id: u64, count: u32) -> Sender {
    Sender {
        id: WaiterId(id),
        count,
    }
}

fn turns() -> Vec<Option<Turn>> {
    let from = sender(0x0123_4567_89ab_cdef, 7);
    let next = Successor {
        id: WaiterId(u64::MAX),
        slot: ms(245),
    };
    vec![
        None,
        Some(Turn { from, next: None }),
        Some(Turn {
            from,
            next: Some(next),
        }),
    ]
}

fn published(script: &mut Script) -> String {
    let (channel, text) = script.keyspace.effects.published.remove(0);
    assert_eq!(*channel, *lock_script::channel(KEY).as_bytes());
    String::from_utf8(text.to_vec()).unwrap()
}

/// Returns every kind of announcement, with the text that the script publishes for it.
fn all() -> Vec<(Announcement, String)> {
    let mut all = Vec::new();
    for kind in [ReleaseKind::Free, ReleaseKind::HandedOver, ReleaseKind::Abandoned] {
        for turn in turns() {
            for counter in [None, Some(token(9))] {
                let notice = ReleaseNotice { kind, turn };
                let mut script = Script::held("5");
                let release = Action::Release {
                    counter,
                    notice: Some(notice),
                    keep_until: None,
                };
                assert_eq!(script.ask(release), Ok(Reply::Released { notified: false }));
                assert_eq!(script.state(), (None, Some(counter.map_or("5", |_| "9"))));
                let announced = Announcement::Release(owner(1), notice);
                all.push((announced, published(&mut script)));
            }
        }
    }
    for (from, slot) in [(sender(0, 0), ms(0)), (sender(u64::MAX, u32::MAX), ms(500))] {
        let notice = WaitNotice { from, slot };
        let mut script = Script::held("5");
        assert_eq!(script.ask(Action::Announce(notice)), Ok(Reply::Announced));
        all.push((Announcement::Wait(notice), published(&mut script)));
    }
    all
}

#[test]
fn announcements_are_read_as_they_were_written() {
    for (announced, text) in all() {
        assert_eq!(lock_script::announced(&text), Some(announced), "{text}");
    }
}

/// Earlier versions announce a letter and the token, and understand nothing else.
#[test]
fn announcements_without_a_successor_are_those_of_earlier_versions() {
    let token = owner(1).value();
    for (letter, kind) in [
        ("f", ReleaseKind::Free),
        ("p", ReleaseKind::HandedOver),
        ("g", ReleaseKind::Abandoned),
    ] {
        let notice = ReleaseNotice { kind, turn: None };
        let text = format!("{letter}{token}");
        let announced = Announcement::Release(owner(1), notice);
        assert_eq!(lock_script::announced(&text), Some(announced));
        assert!(all().contains(&(announced, text)), "{kind:?}");
    }
}

/// Any client may publish in the channel.
#[test]
fn everything_else_is_ignored() {
    let known: Vec<String> = all().into_iter().map(|(_, text)| text).collect();
    for text in &known {
        for at in 0..text.len() {
            let (before, behind) = (&text[..at], &text[at + 1..]);
            let shorter = &text[..at];
            let may_be_shorter = known.iter().any(|known| known == shorter);
            assert_eq!(
                lock_script::announced(shorter).is_some(),
                may_be_shorter,
                "{shorter}"
            );
            for other in ["+", "-", " ", "X", "G", "ü", "\0", ""] {
                let text = format!("{before}{other}{behind}");
                let is_known = known.contains(&text);
                assert_eq!(lock_script::announced(&text).is_some(), is_known, "{text}");
            }
        }
        for more in ["0", " ", "\n", "0123456789abcdef"] {
            let text = format!("{text}{more}");
            assert_eq!(lock_script::announced(&text), None, "{text}");
        }
    }
    let wait = |slot: &str| lock_script::announced(&format!("w{:024}{slot}", 1)).is_some();
    assert!(wait("500") && !wait("501") && !wait("1e2"));
}

/// Without the right to publish, requests succeed and announce nothing.
#[test]
fn without_the_right_to_publish_requests_succeed() {
    let [_, (Announcement::Wait(notice), _)] = &all()[all().len() - 2..] else {
        unreachable!()
    };
    let mut script = Script::held("5");
    script.keyspace.trouble = Trouble::Forbidden("PUBLISH");
    script.keyspace.subscribers = [(lock_script::channel(KEY), 3)].into();
    assert_eq!(script.ask(Action::Announce(*notice)), Ok(Reply::Announced));
    assert_eq!(script.state(), (Some(&*owner(1).value()), Some("5")));
    assert!(script.keyspace.effects.published.is_empty());
}
