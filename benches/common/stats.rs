use std::time::Duration;

/// Returns the median of the finite values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => (values[even / 2 - 1] + values[even / 2]) / 2.0,
    }
}

pub(crate) fn percentile(sorted: &[f64], percentile: f64) -> f64 {
    rank(sorted.len(), percentile).map_or(f64::NAN, |rank| sorted[rank])
}

pub(crate) fn percentile_us(sorted: &[Duration], percentile: f64) -> f64 {
    rank(sorted.len(), percentile).map_or(f64::NAN, |rank| sorted[rank].as_secs_f64() * 1e6)
}

fn rank(length: usize, percentile: f64) -> Option<usize> {
    let rank = (percentile / 100.0 * length as f64).ceil() as usize;
    (length > 0).then(|| rank.clamp(1, length) - 1)
}
