//! The rules, and what weaker ones leave out.

/// A rule that is left out. Each one has a world in which two clients hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Omitted {
    /// Ids are not compared when a lock is granted: any node behind a connection votes.
    IdInGrants,
    /// Ids are not compared when a lease is renewed.
    IdInRenewals,
    /// A new memory votes for new locks at once.
    Guard,
    /// The guard ends W after the memory began, as if everybody had left the old server then.
    GuardForOldUsers,
    /// A memory counts for renewals in its first P.
    FirstPart,
    /// Views are not registered: each client adopts new ids by itself.
    Registration,
    /// Views that contradict are not looked at; those that name another memory are.
    Conflict,
    /// Votes of a new id count before the view with it is registered.
    Admission,
    /// A memory votes although a live registration names another one for its address.
    Doubt,
    /// The same, for renewals only.
    DoubtInRenewals,
    /// A client that holds a lease does not register where it finds a conflict.
    HoldersRegister,
    /// A client that was stopped for longer than P counts votes before it has looked again.
    LooksEnd,
    /// A client that learns a new id replaces its old view, although its lease was confirmed under that.
    OldViewStays,
    /// A node counts for new locks as soon as the client has registered there.
    Settling,
    /// A memory that an address leads back to counts, although a newer one was used at that address.
    NewerUsed,
    /// A vote still counts after its client has learnt that the node has another memory.
    StaleVotes,
}
