//! Counts votes: whether a round is won, lost or still open (A4).

/// What a node's answer means for the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The node did what was asked.
    Yes,
    /// The node refused: the key holds another token, or is gone.
    No,
    /// The node failed or did not answer. It may have executed the request.
    Fault,
}

/// The state of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The outstanding answers decide.
    Pending,
    /// A quorum said yes. This is final.
    Won,
    /// A quorum of yes is out of reach. This is final.
    Lost,
}

/// The state of a round about a lock that is held already (E1, E3, L1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The outstanding answers can still decide it.
    Pending,
    /// A quorum said yes.
    Confirmed,
    /// So many said no that the others cannot be a quorum, even if all of them hold the key.
    Refused,
    /// So many have failed that no answer can decide it any more.
    Unclear,
}

/// Returns N/2 + 1 of the N configured nodes: any two sets of this size share a node.
pub(crate) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The counted votes of one round. The caller records each node at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    nodes: usize,
    yes: usize,
    no: usize,
    fault: usize,
}

impl Tally {
    pub(crate) const fn new(nodes: usize) -> Self {
        Tally {
            nodes,
            yes: 0,
            no: 0,
            fault: 0,
        }
    }

    pub(crate) fn record(&mut self, vote: Vote) {
        match vote {
            Vote::Yes => self.yes += 1,
            Vote::No => self.no += 1,
            Vote::Fault => self.fault += 1,
        }
    }

    /// Returns the verdict, at the first moment possible: at the latest once every node is recorded (A4).
    pub(crate) const fn verdict(&self) -> Verdict {
        let need = quorum(self.nodes);
        if self.yes >= need {
            Verdict::Won
        } else if self.yes + self.pending() < need {
            Verdict::Lost
        } else {
            Verdict::Pending
        }
    }

    /// Returns whether a quorum has answered, and at least one node with no (W3).
    pub(crate) const fn is_contested(&self) -> bool {
        self.no > 0 && self.yes + self.no >= quorum(self.nodes)
    }

    /// Returns the state of a round about a held lock. A lease that nodes deny is gone; if nodes only fail, it is not.
    pub(crate) const fn standing(&self) -> Standing {
        let need = quorum(self.nodes);
        // Then there is no quorum, even if every silent and faulty node holds the key.
        let enough_to_refuse = self.nodes - need + 1;
        if self.yes >= need {
            Standing::Confirmed
        } else if self.no >= enough_to_refuse {
            Standing::Refused
        } else if self.yes + self.pending() < need && self.no + self.pending() < enough_to_refuse {
            Standing::Unclear
        } else {
            Standing::Pending
        }
    }

    /// Returns whether a quorum of nodes answers, with yes or no; `None` while that is open. For a lost round, this tells
    /// "held" from "out of reach" (R5). The verdict may fall before.
    pub(crate) const fn responsive(&self) -> Option<bool> {
        if self.yes + self.no >= quorum(self.nodes) {
            Some(true)
        } else if self.fault > self.nodes - quorum(self.nodes) {
            Some(false)
        } else {
            None
        }
    }

    const fn pending(&self) -> usize {
        self.nodes.saturating_sub(self.yes + self.no + self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of a node in a small world; `None`: never any.
    const ANSWERS: [Option<Vote>; 4] = [Some(Vote::Yes), Some(Vote::No), Some(Vote::Fault), None];

    fn worlds(nodes: usize) -> impl Iterator<Item = Vec<Option<Vote>>> {
        (0..4usize.pow(nodes as u32)).map(move |world| {
            (0..nodes)
                .map(|node| ANSWERS[world / 4usize.pow(node as u32) % 4])
                .collect()
        })
    }

    fn count(world: &[Option<Vote>], vote: Option<Vote>) -> usize {
        world.iter().filter(|answer| **answer == vote).count()
    }

    #[test]
    fn any_two_quorums_overlap_and_none_is_larger_than_needed() {
        for nodes in 1..=64 {
            assert!(2 * quorum(nodes) > nodes, "two disjoint quorums of {nodes}");
            assert!(
                2 * (quorum(nodes) - 1) <= nodes,
                "a smaller quorum of {nodes} would do"
            );
        }
    }

    #[test]
    fn every_world_up_to_five_nodes_is_judged_at_the_first_moment_and_for_good() {
        for nodes in 1..=5 {
            for world in worlds(nodes) {
                let mut tally = Tally::new(nodes);
                let mut settled = None;
                for (heard, vote) in world.iter().flatten().enumerate() {
                    tally.record(*vote);
                    let before = settled;
                    let verdict = tally.verdict();
                    if let Some(earlier) = before {
                        assert_eq!(verdict, earlier, "a verdict changed in {world:?}");
                    }
                    // The definition: what every continuation agrees on.
                    let heard_yes = world
                        .iter()
                        .flatten()
                        .take(heard + 1)
                        .filter(|v| **v == Vote::Yes)
                        .count();
                    let left = nodes - heard - 1;
                    let outcomes: Vec<bool> = (0..=left).map(|more| heard_yes + more > nodes / 2).collect();
                    let expected = if outcomes.iter().all(|won| *won) {
                        Verdict::Won
                    } else if outcomes.iter().all(|won| !*won) {
                        Verdict::Lost
                    } else {
                        Verdict::Pending
                    };
                    assert_eq!(verdict, expected, "{world:?} after {} answers", heard + 1);
                    if verdict != Verdict::Pending {
                        settled = Some(verdict);
                    }
                }
                if count(&world, None) == 0 {
                    assert!(settled.is_some(), "all answered and still open: {world:?}");
                }
            }
        }
    }

    #[test]
    fn order_of_answers_does_not_matter() {
        for nodes in 1..=5 {
            for world in worlds(nodes) {
                let (mut forwards, mut backwards) = (Tally::new(nodes), Tally::new(nodes));
                world.iter().flatten().for_each(|vote| forwards.record(*vote));
                world
                    .iter()
                    .rev()
                    .flatten()
                    .for_each(|vote| backwards.record(*vote));
                assert_eq!(forwards, backwards);
            }
        }
    }

    #[test]
    fn two_contenders_never_both_win_a_world() {
        // Each node says yes to at most one of two contenders.
        for nodes in 1..=5usize {
            for world in 0..3usize.pow(nodes as u32) {
                let (mut a, mut b) = (Tally::new(nodes), Tally::new(nodes));
                for node in 0..nodes {
                    let (to_a, to_b) = match world / 3usize.pow(node as u32) % 3 {
                        0 => (Vote::Yes, Vote::No),
                        1 => (Vote::No, Vote::Yes),
                        _ => (Vote::Fault, Vote::Fault),
                    };
                    a.record(to_a);
                    b.record(to_b);
                }
                assert!(!(a.verdict() == Verdict::Won && b.verdict() == Verdict::Won));
            }
        }
    }

    #[test]
    fn a_tie_on_an_even_number_settles_as_lost() {
        let mut tally = Tally::new(4);
        for vote in [Vote::Yes, Vote::Yes, Vote::No] {
            tally.record(vote);
            assert_eq!(tally.verdict(), Verdict::Pending);
        }
        tally.record(Vote::No);
        assert_eq!(tally.verdict(), Verdict::Lost);
    }

    #[test]
    fn a_standing_is_what_every_completion_of_the_world_agrees_on() {
        for nodes in 1..=5 {
            let need = nodes / 2 + 1;
            for world in worlds(nodes) {
                let mut tally = Tally::new(nodes);
                world.iter().flatten().for_each(|vote| tally.record(*vote));
                // Each completion: the silent nodes answer in every possible way.
                let mut ends: Vec<Standing> = Vec::new();
                let silent = count(&world, None);
                for completion in 0..3usize.pow(silent as u32) {
                    let (mut yes, mut no) = (count(&world, Some(Vote::Yes)), count(&world, Some(Vote::No)));
                    let mut fault = count(&world, Some(Vote::Fault));
                    for node in 0..silent {
                        match completion / 3usize.pow(node as u32) % 3 {
                            0 => yes += 1,
                            1 => no += 1,
                            _ => fault += 1,
                        }
                    }
                    ends.push(if yes >= need {
                        Standing::Confirmed
                    } else if yes + fault < need {
                        Standing::Refused
                    } else {
                        Standing::Unclear
                    });
                    assert_eq!(yes + no + fault, nodes);
                }
                let agreed = ends.iter().all(|end| *end == ends[0]).then_some(ends[0]);
                assert_eq!(tally.standing(), agreed.unwrap_or(Standing::Pending), "{world:?}");
            }
        }
    }

    #[test]
    fn responsiveness_is_final_open_only_while_undecided_and_known_in_the_end() {
        for nodes in 1..=5 {
            for world in worlds(nodes) {
                let mut tally = Tally::new(nodes);
                let mut known = None;
                for vote in world.iter().flatten() {
                    tally.record(*vote);
                    let now = tally.responsive();
                    assert!(known.is_none() || now == known, "changed its mind in {world:?}");
                    known = now;
                }
                let answers = count(&world, Some(Vote::Yes)) + count(&world, Some(Vote::No));
                let silent = count(&world, None);
                let (least, most) = (answers > nodes / 2, answers + silent > nodes / 2);
                assert_eq!(tally.responsive(), (least == most).then_some(least), "{world:?}");
            }
        }
    }
}
