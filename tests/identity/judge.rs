//! Whether two views contradict (M4).

use crate::state::{Place, Set, View};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Conflict,
    /// The views agree, except on the memories at these addresses (none if empty).
    Agree {
        doubted: Set,
    },
}

/// Judges another client's view, on behalf of the client with the view `mine`.
pub(crate) fn judge(mine: View, theirs: View) -> Judgement {
    if mine.labels().count() != theirs.labels().count() {
        return Judgement::Conflict;
    }
    let is_in =
        |place: Place, view: View| place != Place::Unknown && view.labels().any(|(_, other)| other == place);
    let doubted = mine.labels().filter(|(address, place)| {
        let other = theirs.place(*address);
        let both_known = matches!((place, other), (Place::Known(_), Place::Known(_)));
        both_known && !is_in(*place, theirs) && !is_in(other, mine)
    });
    let doubted = doubted.fold(Set::EMPTY, |set, (address, _)| set.with(address));
    // A memory that only one side names must be a node that the other side never reached.
    let left = |view: View, other: View| {
        let left = view.labels().filter(move |(address, place)| {
            matches!(place, Place::Known(_)) && !is_in(*place, other) && !doubted.has(*address)
        });
        left.count()
    };
    let unknown = theirs.labels().filter(|(_, place)| *place == Place::Unknown);
    if left(mine, theirs) > unknown.count() {
        Judgement::Conflict
    } else {
        Judgement::Agree { doubted }
    }
}
