//! What tokens have to do with the order of grants.

/// Moments order what happens in different processes: whoever draws later from a sequence gets the larger number.
pub(crate) struct Grant {
    pub(crate) token: i64,
    /// Drawn before the attempt,
    pub(crate) began: i64,
    /// and after it.
    pub(crate) won: i64,
}

/// I2: no token twice; and whoever began after another had won has the larger one. `grants` are those of one resource, in the
/// order in which they were won.
pub(crate) fn in_order(grants: &[Grant]) {
    let mut tokens: Vec<i64> = grants.iter().map(|grant| grant.token).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "issued twice: {twice:?}");

    let mut by_beginning: Vec<&Grant> = grants.iter().collect();
    by_beginning.sort_unstable_by_key(|grant| grant.began);
    let (mut won, mut largest) = (grants.iter().peekable(), 0);
    for grant in by_beginning {
        while let Some(earlier) = won.next_if(|earlier| earlier.won < grant.began) {
            largest = largest.max(earlier.token);
        }
        assert!(
            largest < grant.token,
            "{largest} was out when the attempt for {} began",
            grant.token
        );
    }
}
