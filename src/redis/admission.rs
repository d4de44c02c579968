//! Whether a node's votes count, in view of the lists that other clients have registered (M4).

use std::sync::Arc;
use std::time::Duration;

use crate::node::{Action, Fault, ListConflict};
use crate::sys::clock::Moment;

#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// Whether the nodes know that this client uses this memory.
    pub(super) registered: bool,
    /// Until when the last look is fresh. Other clients rely on this: no vote counts after it.
    pub(super) fresh_until: Option<Moment>,
    pub(super) conflict: Option<Arc<ListConflict>>,
    /// Until when other clients get time to object, because not all nodes know of this client. `None` if they have had it.
    pub(super) settles_at: Option<Moment>,
    /// Until when a lease may live that another client holds on the memory that was here before.
    pub(super) replaced_until: Option<Moment>,
    /// Until when another client may take locks on the memory that was here before.
    pub(super) in_use_until: Option<Moment>,
}

impl Admission {
    /// Returns the admission of a memory on which this client is not registered.
    pub(super) fn pending() -> Admission {
        Admission {
            registered: false,
            fresh_until: None,
            conflict: None,
            settles_at: None,
            replaced_until: None,
            in_use_until: None,
        }
    }

    /// Returns why the node gives no lock, or why its confirmation of an extension does not count. `None` if nothing objects.
    pub(super) fn objection(&self, action: &Action, now: Moment) -> Option<Fault> {
        match action {
            Action::Acquire { guard, .. } => self.objection_to_locks(guard.is_some(), now),
            Action::Extend { guarded: true, .. } => self.objection_to_renewals(now),
            _ => None,
        }
    }

    /// Returns why the node gives no new lock; `None` if it does.
    pub(super) fn objection_to_locks(&self, guarded: bool, now: Moment) -> Option<Fault> {
        if let Some(conflict) = &self.conflict {
            return Some(Fault::OtherNodes(conflict.clone()));
        }
        if !self.registered || self.is_stale(now) {
            return Some(Fault::Unregistered);
        }
        let replaced = || left(self.replaced_until, now).map(|remaining| Fault::Replaced { remaining });
        let unsettled = || left(self.settles_at, now).map(|remaining| Fault::Unsettled { remaining });
        guarded.then(|| replaced().or_else(unsettled)).flatten()
    }

    fn objection_to_renewals(&self, now: Moment) -> Option<Fault> {
        if !self.registered || self.is_stale(now) {
            return Some(Fault::Unregistered);
        }
        left(self.in_use_until, now).map(|remaining| Fault::Replaced { remaining })
    }

    /// Returns whether votes do not count only because the last look was too long ago.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        self.registered && self.is_stale(now)
    }

    fn is_stale(&self, now: Moment) -> bool {
        left(self.fresh_until, now).is_none()
    }

    /// Returns the time limit of a request: `budget`, and if it needs a vote, no longer than the last look is fresh.
    pub(super) fn limit(&self, action: &Action, budget: Duration, now: Moment) -> Duration {
        let needs_vote = matches!(
            action,
            Action::Acquire { .. } | Action::Extend { guarded: true, .. }
        );
        match self.fresh_until {
            Some(until) if needs_vote => budget.min(until.since(now)),
            _ => budget,
        }
    }

    /// Returns whether votes that were given before do not count any more.
    pub(super) fn is_worse_than(&self, before: &Admission, now: Moment) -> bool {
        let objects = |admission: &Admission| {
            (
                admission.objection_to_locks(true, now).is_some(),
                admission.objection_to_renewals(now).is_some(),
            )
        };
        let (before, after) = (objects(before), objects(self));
        after.0 && !before.0 || after.1 && !before.1
    }
}

fn left(until: Option<Moment>, now: Moment) -> Option<Duration> {
    until.map(|until| until.since(now)).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn now() -> Moment {
        Clock::new(Arc::new(|| Duration::ZERO)).now()
    }

    fn registered(now: Moment) -> Admission {
        Admission {
            registered: true,
            fresh_until: Some(now + 10 * SECOND),
            ..Admission::pending()
        }
    }

    fn acquire(guard: Option<Duration>) -> Action {
        Action::Acquire {
            ttl: SECOND,
            fencing: None,
            guard,
        }
    }

    const EXTEND: Action = Action::Extend {
        ttl: SECOND,
        guarded: true,
    };

    fn conflict() -> Arc<ListConflict> {
        Arc::new(ListConflict {
            ours: vec!["a".into()],
            theirs: vec!["b".into()],
            user: "somebody".into(),
            remaining: SECOND,
        })
    }

    #[test]
    fn an_admission_decides_which_requests_a_node_gets() {
        let now = now();
        let (soon, good) = (now + SECOND, registered(now));
        let replaced = Some(Fault::Replaced { remaining: SECOND });
        let unsettled = Some(Fault::Unsettled { remaining: SECOND });
        let other = Some(Fault::OtherNodes(conflict()));
        let pending = Some(Fault::Unregistered);
        let cases = [
            // The admission; the objections to a lock, to a lock without a guard, and to an extension.
            (good.clone(), [None, None, None]),
            (
                Admission::pending(),
                [pending.clone(), pending.clone(), pending.clone()],
            ),
            (
                Admission {
                    fresh_until: Some(now),
                    ..good.clone()
                },
                [pending.clone(), pending.clone(), pending],
            ),
            (
                Admission {
                    replaced_until: Some(soon),
                    ..good.clone()
                },
                [replaced.clone(), None, None],
            ),
            (
                Admission {
                    in_use_until: Some(soon),
                    ..good.clone()
                },
                [None, None, replaced],
            ),
            (
                Admission {
                    replaced_until: Some(now),
                    in_use_until: Some(now),
                    ..good.clone()
                },
                [None, None, None],
            ),
            (
                Admission {
                    settles_at: Some(soon),
                    ..good.clone()
                },
                [unsettled, None, None],
            ),
            (
                Admission {
                    conflict: Some(conflict()),
                    ..good
                },
                [other.clone(), other, None],
            ),
        ];
        for (admission, expected) in cases {
            let actions = [acquire(Some(SECOND)), acquire(None), EXTEND];
            let objections = actions.map(|action| admission.objection(&action, now));
            assert_eq!(objections, expected, "{admission:?}");
            let raise = Action::Release {
                counter: None,
                notice: None,
                keep_until: None,
            };
            assert_eq!(admission.objection(&raise, now), None);
        }
    }

    #[test]
    fn votes_are_void_once_there_is_an_objection_that_was_not_there_before() {
        let now = now();
        let good = registered(now);
        let bad = Admission {
            conflict: Some(conflict()),
            ..good.clone()
        };
        let doubted = Admission {
            in_use_until: Some(now + SECOND),
            ..good.clone()
        };
        assert!(bad.is_worse_than(&good, now) && doubted.is_worse_than(&good, now));
        assert!(
            !good.is_worse_than(&good, now)
                && !good.is_worse_than(&bad, now)
                && !bad.is_worse_than(&bad, now)
        );
    }

    #[test]
    fn votes_expire_with_the_registration_of_their_node() {
        let now = now();
        let (budget, soon) = (3 * SECOND, now + SECOND);
        let admission = |fresh_until| Admission {
            fresh_until,
            ..registered(now)
        };
        let release = Action::Release {
            counter: None,
            notice: None,
            keep_until: None,
        };
        let cases = [
            (acquire(Some(SECOND)), Some(soon), SECOND),
            (acquire(None), Some(soon), SECOND),
            (EXTEND, Some(soon), SECOND),
            (EXTEND, Some(now + 10 * SECOND), budget),
            (release, Some(soon), budget),
            (EXTEND, Some(now), Duration::ZERO),
        ];
        for (action, fresh_until, expected) in cases {
            let limit = admission(fresh_until).limit(&action, budget, now);
            assert_eq!(limit, expected, "{action:?}");
        }
    }
}
