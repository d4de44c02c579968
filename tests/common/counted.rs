//! What the library has counted, as Prometheus sees it.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::PrometheusHandle;

/// Returns the value of each counter and gauge, and how many values each histogram has. The values of labels follow the name,
/// without empty ones, and without `quorlock_` in front: `attempts_total held`.
pub(crate) fn counted(prometheus: &PrometheusHandle) -> BTreeMap<String, f64> {
    let text = prometheus.render();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let is_other = labels.contains("quantile=") || name.ends_with("_seconds_sum");
        let values = labels
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|value| !value.is_empty());
        let words: Vec<&str> = [name.strip_prefix("quorlock_").unwrap()]
            .into_iter()
            .chain(values)
            .collect();
        (!is_other).then(|| (words.join(" "), value.parse().unwrap()))
    };
    lines.filter_map(read).collect()
}
