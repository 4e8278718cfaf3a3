use metaq_types::PartitionId;
use std::path::Path;

/// Whether what the store does not serve, as its report calls it, is a directory that is no partition: somebody else's,
/// in which nothing can be missing. One whose name is that of a partition is ours, wherever it lies.
pub fn is_foreign(unserved: &str) -> bool {
    let name = Path::new(unserved).file_name().and_then(|name| name.to_str()).unwrap_or(unserved);
    // A partition's number is written one way: what is called test-00 was copied or renamed by hand.
    !name.parse::<PartitionId>().is_ok_and(|id| id.to_string() == name)
}

#[cfg(test)]
mod tests {
    use super::is_foreign;

    #[test]
    fn a_partition_is_ours_wherever_it_lies() {
        for ours in ["test-0", "/data/test-0", "/a-b/a.b-12", "/data/x-y-0"] {
            assert!(!is_foreign(ours), "{ours}");
        }
        for foreign in [
            "/data/foo-bar",
            "/data/test-0.bak",
            "/data/test-",
            "/data/test-4294967296",
            "/data/test-00",
            "/data/\u{fffd}-0 ",
        ] {
            assert!(is_foreign(foreign), "{foreign}");
        }
    }
}
