use metaq_types::TopicName;

/// The topic names with a `*` in them, best first: `*` stands for any run of characters, every other character for
/// itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns(Vec<TopicName>);

impl Patterns {
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a TopicName>) -> Patterns {
        let mut patterns: Vec<TopicName> = names.filter(|name| name.contains('*')).cloned().collect();
        patterns.sort_by(|a, b| literals(b).cmp(&literals(a)).then_with(|| a.cmp(b)));
        Patterns(patterns)
    }

    /// The best pattern that `name` fits.
    pub(crate) fn best(&self, name: &str) -> Option<&TopicName> {
        // A client may send any text; one that can be no topic fits nothing, not even `*`.
        self.0.iter().find(|pattern| fits(pattern, name)).filter(|_| TopicName::new(name).is_ok())
    }
}

fn literals(pattern: &str) -> usize {
    pattern.chars().filter(|c| *c != '*').count()
}

/// Each piece between stars is taken at its first place behind the one before it, the last at the end.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        let Some(at) = name.find(piece) else { return false };
        name = &name[at + piece.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(patterns: &[&str], name: &str, expect: Option<&str>) {
        let names: Vec<_> = patterns.iter().map(|name| TopicName::new(name).unwrap()).collect();
        let patterns = Patterns::of(names.iter());
        assert_eq!(patterns.best(name).map(TopicName::as_str), expect, "{name} in {patterns:?}");
    }

    #[test]
    fn a_star_is_any_run_and_the_rest_is_literal() {
        check(&["*"], "anything", Some("*"));
        check(&["app-*"], "app-", Some("app-*"));
        check(&["app-*"], "app-x", Some("app-*"));
        check(&["app-*"], "xapp-x", None);
        check(&["*.log"], "a.log", Some("*.log"));
        check(&["*.log"], "axlog", None);
        check(&["a*b*c"], "a-b-b-c", Some("a*b*c"));
        check(&["a*b*c"], "a-c", None);
        check(&["ab*ba"], "aba", None);
        check(&["a**b"], "ab", Some("a**b"));
        check(&["订*"], "订单", Some("订*"));
        check(&["a.b"], "axb", None);
        check(&["a(b*"], "a(b", Some("a(b*"));
    }

    #[test]
    fn the_most_literal_pattern_wins() {
        check(&["*", "app-*", "app-x*"], "app-xy", Some("app-x*"));
        check(&["*", "app-*"], "other", Some("*"));
        check(&["a*", "*b"], "ab", Some("*b"));
    }

    #[test]
    fn what_can_be_no_topic_fits_nothing() {
        for name in ["", "a/b", "..", "a b"] {
            check(&["*"], name, None);
        }
    }
}
