//! Counting votes: when is a round won, lost, or still open (A4).

/// What one node's answer means for the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The node did what was asked.
    Yes,
    /// The node answered, and declined: held by someone else, or not ours any more.
    No,
    /// The node did not answer, or answered with an error. It may or may not have acted.
    Fault,
}

/// Where a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The outstanding answers can still decide either way.
    Pending,
    /// A quorum said yes. No later answer can change that.
    Won,
    /// A quorum of yes is out of reach. No later answer can change that.
    Lost,
}

/// Where a round about something already held stands (E1, E3, L1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The outstanding answers can still decide.
    Pending,
    /// A quorum said yes.
    Confirmed,
    /// So many said no that a quorum of yes is out of the question, whatever the others would say.
    Refused,
    /// Every node has answered or failed, and the failures leave it open.
    Unclear,
}

/// The smallest number of nodes of which any two sets overlap: N/2 + 1 of the *configured* N.
pub(crate) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The votes of one round, counted. Each node is recorded at most once; the caller sees to that.
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

    /// A4: falls at the first moment it can, and always once every node has been recorded.
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

    /// W3: a quorum has answered, and not all of it with yes.
    pub(crate) const fn is_contested(&self) -> bool {
        self.no > 0 && self.yes + self.no >= quorum(self.nodes)
    }

    /// Where it stands, once a refusal has to be told from mere silence: a lease that nodes deny is gone, one that they
    /// do not answer for is not.
    pub(crate) const fn standing(&self) -> Standing {
        let need = quorum(self.nodes);
        // Even if every silent and faulty node were a yes, there would be no quorum of them.
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

    /// Whether a quorum of nodes answers, whatever they say: `None` while that is open. Tells a lost round's "held" from
    /// "out of reach" (R5): the verdict may fall before either is known.
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

    /// What a node does in a small world: one of the three answers, or none ever.
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
                    // The definition, spelled out over every continuation of what was heard so far.
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
