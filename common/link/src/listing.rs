//! The list of a broker's partitions, as `stats offsets` gives it (stats, "offsets").

use metaq_types::{Offset, PartitionId, TopicName};

/// One partition of a broker with the first offset it keeps and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub partition: PartitionId,
    pub first: Offset,
    pub end: Offset,
}

/// Reads the answer to `stats offsets`, ours or the original's. A line that is not a partition's is left out: a topic
/// whose name this system does not accept cannot be copied anyway.
pub fn parse(text: &str) -> Vec<Listed> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Listed> {
    // From the right, as a topic of the original may hold blanks.
    let mut words = line.trim_end().rsplitn(7, ' ');
    let end = words.next()?.parse().ok()?;
    let _ = words.next().filter(|word| *word == "max_offset")?;
    let first = words.next()?.parse().ok()?;
    let _ = words.next().filter(|word| *word == "min_offset")?;
    let number = words.next()?.parse().ok().filter(|number| *number <= i32::MAX as u32)?;
    let _ = words.next().filter(|word| *word == "part")?;
    let topic = TopicName::new(words.next()?).ok()?;
    Some(Listed {
        partition: PartitionId { topic, number },
        first: Offset::from_wire(first)?,
        end: Offset::from_wire(end)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_read_and_every_other_line_is_left_out() {
        let text = "STATS\r\ntest part 0 min_offset 0 max_offset 170\r\na-b part 12 min_offset 1024 max_offset 2048\r\n\
                    bad/name part 0 min_offset 0 max_offset 1\r\ntest part -1 min_offset 0 max_offset 1\r\n\
                    test part 1 min_offset x max_offset 1\r\nEND\r\n";
        let listed: Vec<_> =
            parse(text).iter().map(|l| (l.partition.to_string(), l.first.get(), l.end.get())).collect();
        assert_eq!(listed, [("test-0".to_owned(), 0, 170), ("a-b-12".to_owned(), 1024, 2048)]);
    }
}
