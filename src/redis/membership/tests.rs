use super::*;
use crate::sys::clock::Clock;

const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(5);
const ADDRESSES: [&str; 3] = ["a", "b", "c"];

/// A client of the nodes a, b and c, which have the memories 0, 1 and 2.
struct Client {
    membership: Membership,
    now: Moment,
}

impl Client {
    fn new() -> Client {
        let addresses = ADDRESSES.into_iter().map(Arc::from);
        Client {
            membership: Membership::new(addresses, PERIOD, Participation::Full),
            now: Clock::new(Arc::new(|| Duration::ZERO)).now(),
        }
    }

    /// Returns a client for which the votes of all nodes count.
    fn admitted() -> Client {
        let mut client = Client::new();
        let admissions = client.look([0, 1, 2].map(answer));
        assert!(
            admissions
                .iter()
                .all(|(_, it)| objection(it, client.now).is_none())
        );
        client
    }

    /// Looks while all nodes are connected and these nodes answer. Returns their admissions.
    fn look(&mut self, answers: impl IntoIterator<Item = LookAnswer>) -> Vec<(usize, Admission)> {
        let answers = Vec::from_iter(answers);
        let mut connected: Vec<(usize, MemoryId)> = (0..3).map(|number| (number, memory(number))).collect();
        for answer in &answers {
            connected[answer.number].1 = answer.memory;
        }
        let beginning = self.membership.begin(self.now, connected.iter().copied());
        self.membership.judge(self.now, &beginning.view, &answers);
        let (decisions, _) =
            self.membership
                .decide(self.now, self.now, &beginning.view, &connected, &answers);
        let admission = |(number, decision)| match decision {
            Decision::Admit(_, admission) => Some((number, admission)),
            Decision::Full => None,
        };
        decisions.into_iter().filter_map(admission).collect()
    }

    fn look_after(&mut self, pause: Duration, answer: LookAnswer) -> Option<Admission> {
        self.now = self.now + pause;
        self.look([answer]).pop().map(|(_, admission)| admission)
    }

    /// Asserts that the objection lasts until the list's end, ten seconds later, while only this node answers.
    fn objects_until_the_end_of_the_list(&mut self, number: usize, why: &str) {
        for _ in 0..3 {
            let silent = self.look_after(3 * SECOND, answer(number)).unwrap();
            assert_eq!(objection(&silent, self.now), Some(why));
        }
        let over = self.look_after(SECOND, answer(number)).unwrap();
        assert_eq!(objection(&over, self.now), None);
    }
}

fn memory(number: usize) -> MemoryId {
    MemoryId::from(number as u128)
}

/// Returns the answer of a node on which this client's list has stood for long.
fn answer(number: usize) -> LookAnswer {
    LookAnswer {
        number,
        connection: 0,
        memory: memory(number),
        counts: true,
        registered: Registered {
            added: true,
            is_full: false,
            standing: 60 * SECOND,
            registered_at_millis: 0,
            now_millis: 0,
            others: Vec::new(),
        },
    }
}

/// Adds another list to the answer, in use for ten seconds more.
fn beside(mut answer: LookAnswer, list: &[(usize, &str)]) -> LookAnswer {
    let node = |(id, address): &(usize, &str)| (Some(memory(*id)), Arc::from(*address));
    let view = View::new(list.iter().map(node));
    answer.registered.others = vec![Other {
        text: view.to_string(),
        view: Some(view),
        remaining: 10 * SECOND,
        fresh: 5 * SECOND,
        user: "somebody".into(),
    }];
    answer
}

fn objection(admission: &Admission, now: Moment) -> Option<&'static str> {
    admission.objection_to_locks(true, now).map(|fault| match fault {
        crate::node::Fault::OtherNodes(_) => "other nodes",
        crate::node::Fault::Replaced { .. } => "replaced",
        crate::node::Fault::Unsettled { .. } => "unsettled",
        crate::node::Fault::Unregistered => "unregistered",
        _ => "something else",
    })
}

#[test]
fn another_list_is_a_conflict_until_its_end_also_where_its_node_is_silent() {
    let mut client = Client::admitted();
    let other = [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")];
    let met = client.look_after(SECOND, beside(answer(0), &other)).unwrap();
    assert_eq!(objection(&met, client.now), Some("other nodes"));
    client.objects_until_the_end_of_the_list(1, "other nodes");
}

#[test]
fn a_memory_is_doubted_until_the_end_of_the_list_that_has_another_in_its_place() {
    let mut client = Client::admitted();
    let other = [(7, "a"), (1, "b"), (2, "c")];
    client.now = client.now + SECOND;
    let met = client.look([answer(0), beside(answer(1), &other)]);
    let of = |admissions: &[(usize, Admission)], number: usize| objection(&admissions[number].1, client.now);
    assert_eq!((of(&met, 0), of(&met, 1)), (Some("replaced"), None));
    client.objects_until_the_end_of_the_list(0, "replaced");
}

#[test]
fn a_doubt_ends_with_the_memory_that_it_is_about() {
    let mut client = Client::admitted();
    let other = [(7, "a"), (1, "b"), (2, "c")];
    client.now = client.now + SECOND;
    client.look([answer(0), beside(answer(1), &other)]);
    // The node has the other memory now, and the other list is gone.
    let replaced = |number| LookAnswer {
        memory: if number == 0 { memory(7) } else { memory(number) },
        ..answer(number)
    };
    client.now = client.now + SECOND;
    let after = client.look([0, 1, 2].map(replaced));
    assert_eq!(objection(&after[0].1, client.now), None);
}

#[test]
fn others_have_to_be_met_anew_over_a_new_connection() {
    let mut client = Client::new();
    let over = |connection| LookAnswer {
        connection,
        ..answer(0)
    };
    let decisions = client.look_after(SECOND, over(1)).unwrap();
    assert_eq!(objection(&decisions, client.now), Some("unsettled"));
    let settled = client.look_after(3 * SECOND, over(1)).unwrap();
    assert_eq!(objection(&settled, client.now), None);
    let again = client.look_after(SECOND, over(2)).unwrap();
    assert_eq!(objection(&again, client.now), Some("unsettled"));
    let settled = client.look_after(3 * SECOND, over(2)).unwrap();
    assert_eq!(objection(&settled, client.now), None);
}

#[test]
fn a_client_that_is_registered_everywhere_has_been_met() {
    let mut client = Client::new();
    let young = |number| LookAnswer {
        counts: false,
        ..answer(number)
    };
    let decisions = client.look([answer(0), answer(1), young(2)]);
    assert_eq!(objection(&decisions[0].1, client.now), Some("unsettled"));
    let decisions = client.look([0, 1, 2].map(answer));
    assert_eq!(objection(&decisions[0].1, client.now), None);
}

#[test]
fn a_new_memory_waits_until_all_have_heard_of_it_whose_votes_count() {
    let mut client = Client::admitted();
    let new = || LookAnswer {
        memory: memory(7),
        ..answer(0)
    };
    client.now = client.now + SECOND;
    let one_silent = client.look([new(), answer(1)]);
    assert_eq!(objection(&one_silent[0].1, client.now), Some("unregistered"));
    // After more than a period, the silent node has no votes that count.
    client.now = client.now + PERIOD;
    let still_silent = client.look([new(), answer(1)]);
    assert_eq!(objection(&still_silent[0].1, client.now), None);
}

#[test]
fn a_node_that_is_full_keeps_what_it_was_told_and_admits_nothing_new() {
    let full = || LookAnswer {
        registered: Registered {
            added: false,
            is_full: true,
            ..answer(0).registered
        },
        ..answer(0)
    };
    assert!(Client::new().look_after(SECOND, full()).is_none());
    let mut client = Client::admitted();
    let admission = client.look_after(SECOND, full()).unwrap();
    assert_eq!(objection(&admission, client.now), None);
}

#[test]
fn a_node_has_forgotten_if_it_knows_less_than_it_was_told() {
    let mut client = Client::new();
    let mut remembers = |number: usize, registered_at_millis, now_millis| {
        let registered = Registered {
            registered_at_millis,
            now_millis,
            ..answer(0).registered
        };
        client
            .membership
            .remembers(0, memory(number), &registered, 10 * SECOND)
    };
    assert!(remembers(0, 0, 1_000));
    assert!(remembers(0, 1_000, 2_000));
    // Put back to before the last registration.
    assert!(!remembers(0, 1_000, 3_000));
    // The registration of 3 s has expired by then.
    assert!(remembers(0, 0, 13_000));
    // Nothing was registered on another memory.
    assert!(remembers(7, 0, 14_000));
}
