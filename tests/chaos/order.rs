//! Compares the order of fencing tokens with the order of grants.

/// Moments are numbers from one sequence for all processes: the later one is larger.
pub(crate) struct Grant {
    pub(crate) token: i64,
    /// Drawn before the attempt.
    pub(crate) began: i64,
    /// Drawn after the attempt.
    pub(crate) won: i64,
}

/// Checks that all tokens differ, and that an attempt has a larger token than every lease won before it began (I2). `grants` are
/// those of one resource, in the order in which they were won.
pub(crate) fn in_order(grants: &[Grant]) {
    let mut tokens: Vec<i64> = grants.iter().map(|grant| grant.token).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "a token was issued twice: {twice:?}");

    let mut by_beginning: Vec<&Grant> = grants.iter().collect();
    by_beginning.sort_unstable_by_key(|grant| grant.began);
    let (mut won, mut largest) = (grants.iter().peekable(), 0);
    for grant in by_beginning {
        while let Some(earlier) = won.next_if(|earlier| earlier.won < grant.began) {
            largest = largest.max(earlier.token);
        }
        assert!(
            largest < grant.token,
            "token {largest} was issued before the attempt for token {} began",
            grant.token
        );
    }
}
