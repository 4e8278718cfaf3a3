/// Above this nothing is near, and comparing would only cost time.
const NAME_BYTES_MAX: usize = 64;

/// The candidate a person most likely meant by `name`, if any is near: letter case apart, at most a third of its
/// letters differ.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let wanted: Vec<char> = name.to_lowercase().chars().collect();
    candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase().chars().collect::<Vec<_>>()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's: how many insertions, deletions and substitutions make `a` of `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let keys = ["brokerId", "serverPort", "stat", "dataPath", "dataLogPath"];
        let cases = [
            ("brokerID", Some("brokerId")),
            ("borkerId", Some("brokerId")),
            ("serverport", Some("serverPort")),
            ("stats", Some("stat")),
            ("dataLogpaht", Some("dataLogPath")),
            ("frobnicate", None),
            ("", None),
        ];
        for (input, expect) in cases {
            assert_eq!(nearest(input, keys), expect, "{input}");
        }
    }
}
