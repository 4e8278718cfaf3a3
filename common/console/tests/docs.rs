//! docs/metrics.md lists every metric, as the code has them.

use std::path::Path;

const BEGIN: &str = "<!-- the table is generated: METAQ_WRITE_DOCS=1 cargo test -p metaq-console --test docs -->\n";

#[test]
fn the_page_lists_every_metric() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (before, _) = text.split_once(BEGIN).expect("the line before the table");
    let expect = format!("{before}{BEGIN}{}", metaq_console::describe());
    if text != expect && std::env::var_os("METAQ_WRITE_DOCS").is_some() {
        std::fs::write(&path, expect).unwrap();
        return;
    }
    assert_eq!(text, expect, "run METAQ_WRITE_DOCS=1 cargo test -p metaq-console --test docs");
}
