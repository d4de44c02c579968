//! The page about stores shows the tested files word for word.

use std::fs;
use std::path::Path;

#[test]
fn the_page_shows_what_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/stores.md")).unwrap();
    let mut shown = 0;
    for entry in fs::read_dir(root.join("examples/stores")).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.extension().unwrap().to_str().unwrap();
        if matches!(kind, "sql" | "lua" | "sh") {
            let text = fs::read_to_string(&path).unwrap();
            let block = format!("```{kind}\n{text}```");
            assert!(
                page.contains(&block),
                "docs/stores.md does not show {} as it is",
                path.display()
            );
            shown += 1;
        }
    }
    assert!(shown >= 8);
}
