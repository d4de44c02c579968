//! The rules that can be left out.

/// A rule that is left out. For each, there is a world in which two clients then hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Omitted {
    /// Ids are not compared when a lock is granted: any node behind a connection votes.
    IdInGrants,
    /// Ids are not compared when a lease is renewed.
    IdInRenewals,
    /// A new memory votes for new locks at once.
    Guard,
    /// The guard lasts only W, as if every client had left the old server when the memory began.
    GuardForOldUsers,
    /// A memory counts for renewals in its first P.
    FirstPart,
    /// Views are not registered: each client adopts new ids by itself.
    Registration,
    /// Conflicts are ignored; views that name another memory are not.
    Conflict,
    /// A new id counts before the view with it is registered.
    Admission,
    /// A memory votes although a live registration names another one for its address.
    Doubt,
    /// As `Doubt`, for renewals only.
    DoubtInRenewals,
    /// A holder that finds a conflict does not register.
    HoldersRegister,
    /// A client that was stopped for longer than P counts votes before it has looked again.
    LooksEnd,
    /// A client with a new id replaces its old view, under which its lease was confirmed.
    OldViewStays,
    /// A node counts for new locks as soon as the client has registered there.
    Settling,
    /// A memory that an address leads back to counts, although a newer one was used there.
    NewerUsed,
    /// A vote still counts after its client has learnt that the node has another memory.
    StaleVotes,
}
