//! Which nodes a client uses, and whether two clients use the same ones (M4).

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::memory::MemoryId;

/// The characters that are escaped in a written address.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'@');
/// Stands for the id of a node that was never reached.
const UNKNOWN: &str = "?";

/// The nodes of one client: the address of each, and its memory if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    /// `None` if the client never reached the node, which then has never voted.
    id: Option<MemoryId>,
    /// As this client writes it.
    address: Arc<str>,
}

/// How two views differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// The same nodes, as far as both clients know.
    SameNodes {
        /// Our addresses of the nodes at which the other client uses another memory.
        replaced: Vec<Arc<str>>,
    },
    /// Different nodes.
    OtherNodes,
}

impl View {
    pub(crate) fn new(members: impl IntoIterator<Item = (Option<MemoryId>, Arc<str>)>) -> View {
        let member = |(id, address)| Member { id, address };
        let mut members: Vec<Member> = members.into_iter().map(member).collect();
        members.sort_unstable();
        View { members }
    }

    pub(crate) fn addresses(&self) -> Vec<Arc<str>> {
        let mut addresses: Vec<Arc<str>> = self.members.iter().map(|member| member.address.clone()).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Returns how many nodes the client has reached.
    pub(crate) fn known(&self) -> usize {
        self.members.iter().filter(|member| member.id.is_some()).count()
    }

    /// Compares this client's view with another client's.
    ///
    /// Nodes with the same memory are the same, whatever their addresses. Another memory at the same address is the same node
    /// after a loss. A node that one client never reached can be any node of the other: it has never voted for that client.
    pub(crate) fn compare(&self, other: &View) -> Difference {
        if self.members.len() != other.members.len() {
            return Difference::OtherNodes;
        }
        let mut ours = self.without(other);
        let mut theirs = other.without(self);
        let mut replaced = Vec::new();
        ours.retain(|mine| {
            let Some(at) = theirs.iter().position(|their| their.address == mine.address) else {
                return true;
            };
            if mine.id.is_some() && theirs[at].id.is_some() {
                replaced.push(mine.address.clone());
            }
            theirs.swap_remove(at);
            false
        });
        // Each known node that is left must be one that the other client never reached.
        let known = |members: &[&Member]| members.iter().filter(|member| member.id.is_some()).count();
        match known(&ours) + known(&theirs) > ours.len() {
            true => Difference::OtherNodes,
            false => Difference::SameNodes { replaced },
        }
    }

    /// Returns the members whose memory is not in the other view.
    fn without(&self, other: &View) -> Vec<&Member> {
        let ids: HashSet<MemoryId> = other.members.iter().filter_map(|member| member.id).collect();
        let has = |member: &&Member| member.id.is_some_and(|id| ids.contains(&id));
        self.members.iter().filter(|member| !has(member)).collect()
    }
}

impl fmt::Display for View {
    /// Writes `id@address` of each node, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Member { id, address }) in self.members.iter().enumerate() {
            let separator = if number == 0 { "" } else { " " };
            let address = utf8_percent_encode(address, ESCAPED);
            match id {
                Some(id) => write!(f, "{separator}{id}@{address}")?,
                None => write!(f, "{separator}{UNKNOWN}@{address}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for View {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let member = |text: &str| {
            let (id, address) = text.split_once('@').ok_or(())?;
            let id = match id {
                UNKNOWN => None,
                id => Some(id.parse()?),
            };
            let address = percent_decode_str(address).decode_utf8().map_err(|_| ())?;
            Ok((id, Arc::from(&*address)))
        };
        let members = text.split(' ').map(member).collect::<Result<Vec<_>, ()>>()?;
        Ok(View::new(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `1@a` (memory 1 at address a) and `?@a` (a node that was never reached).
    fn view(text: &str) -> View {
        View::new(text.split(' ').map(|member| {
            let (id, address) = member.split_once('@').unwrap();
            let id = id.parse::<u128>().ok().map(MemoryId::from);
            (id, address.into())
        }))
    }

    /// Returns the replaced addresses; `None` for different nodes.
    fn compared(ours: &str, theirs: &str) -> Option<Vec<String>> {
        match view(ours).compare(&view(theirs)) {
            Difference::OtherNodes => None,
            Difference::SameNodes { replaced } => {
                Some(replaced.iter().map(|address| address.to_string()).collect())
            }
        }
    }

    #[test]
    fn nodes_are_the_same_by_memory_or_by_address_and_never_reached_ones_may_be_any() {
        let same = |replaced: &[&str]| Some(replaced.iter().map(|&address| address.to_owned()).collect());
        let cases = [
            ("1@a 2@b 3@c", "3@c 1@a 2@b", same(&[])),
            // Other addresses, also swapped ones.
            ("1@a 2@b 3@c", "1@x 2@y 3@z", same(&[])),
            ("1@a 2@b 3@c", "2@a 1@b 3@c", same(&[])),
            // A node that lost its memory.
            ("1@a 2@b 3@c", "1@a 9@b 3@c", same(&["b"])),
            ("1@a 2@b 3@c", "7@a 8@b 9@c", same(&["a", "b", "c"])),
            // Never reached, by one client or by both.
            ("1@a 2@b ?@c", "1@a 2@b 3@c", same(&[])),
            ("1@a 2@b ?@c", "1@a 2@b 4@d", same(&[])),
            ("1@a 2@b ?@c", "1@a 2@b ?@d", same(&[])),
            ("1@a ?@b ?@c", "?@a 2@b 3@c", same(&[])),
            // Different nodes.
            ("1@a 2@b 3@c", "1@a 2@b", None),
            ("1@a 2@b 3@c", "1@a 2@b 3@c 4@d 5@e", None),
            ("1@a 2@b 3@c", "1@a 2@b 4@d", None),
            ("1@a 2@b 3@c 4@d 5@e", "1@a 2@b 3@c 4@d 6@f", None),
            ("1@a 2@b 3@c ?@d 5@e", "1@a 2@b 3@c 4@f 6@g", None),
            // The same node at another address, after a loss: this cannot be seen.
            ("1@a 2@b 3@c", "1@a 2@b 9@z", None),
        ];
        for (ours, theirs, expected) in cases {
            assert_eq!(compared(ours, theirs), expected, "{ours} beside {theirs}");
            let back = compared(theirs, ours);
            assert_eq!(back.is_none(), expected.is_none(), "{theirs} beside {ours}");
        }
    }

    #[test]
    fn views_are_read_as_they_were_written() {
        for text in [
            "1@a",
            "1@a 2@b ?@c",
            "?@/run/re\u{20}dis@1%.sock",
            "3@[::1]:6379/2",
        ] {
            let view = View::new([
                (Some(MemoryId::from(1)), Arc::from(text)),
                (None, Arc::from("x y@\n%")),
            ]);
            let written = view.to_string();
            assert_eq!(written.split(' ').count(), 2, "{written}");
            assert!(!written.contains('\n'));
            assert_eq!(written.parse(), Ok(view));
        }
        for damaged in ["", "a", "@a", "zz@a", "1@a"] {
            assert!(damaged.parse::<View>().is_err(), "{damaged}");
        }
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter() {
        assert_eq!(view("1@a 2@b ?@c"), view("?@c 2@b 1@a"));
        assert_eq!(view("1@b 2@a").addresses(), [Arc::from("a"), Arc::from("b")]);
    }
}
