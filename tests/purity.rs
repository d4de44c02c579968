//! The shape of the code: decisions are pure, and imports point down, never in a circle.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Words that pure code must not contain: runtimes, client libraries, clocks, randomness, the network.
const IMPURE: [&str; 14] = [
    "tokio",
    "fred",
    "futures_util",
    "tracing",
    "std::time::Instant",
    "SystemTime",
    "Instant",
    "rand",
    "fastrand",
    "uuid",
    "std::net",
    "std::thread",
    "std::env",
    "async",
];

/// The folders and files of `src/`, from top to bottom. Each one imports only from rows below its own.
const ROWS: [&[&str]; 11] = [
    &["builder", "simulation"],
    &["redlock"],
    &["acquire"],
    &["lease", "waiting"],
    &["keys", "inspect"],
    &["error", "round", "clients"],
    &["votes", "context", "redis"],
    &["doctor"],
    &["node", "options", "fence_gate"],
    &["period"],
    &["protocol", "sys"],
];

/// Folders and files beside the rows. Neither side imports the other.
const ASIDE: [&str; 3] = ["docs", "testbed", "lib"];

/// The path of a module, for example `["redis", "pipeline", "state"]`.
type Module = Vec<String>;

/// Returns all modules in a folder with their code, except tests. Those of the library are without the tool's.
fn modules(folder: &str) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
        &[],
        &mut found,
    );
    found
}

fn collect(folder: &Path, path: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let inner = [path, std::slice::from_ref(&name)].concat();
        if file.is_dir() && name != "bin" {
            collect(&file, &inner, found);
        } else if file.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let module = if name == "mod" { path.to_vec() } else { inner };
            found.insert(module, code(&fs::read_to_string(&file).unwrap()));
        }
    }
}

/// Removes comments and tests. A `//` in a string cuts its line off, so a word may be missed.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether `word` occurs as a whole word or path.
fn names(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// Returns the paths in `use` declarations, with braces resolved, and those that begin with `crate` or `super` elsewhere.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for declaration in ["use ", "crate::", "super::"] {
        for (at, _) in code.match_indices(declaration) {
            if code[..at].ends_with(is_path) || code[..at].ends_with("use ") {
                continue;
            }
            match declaration {
                "use " => resolve(
                    "",
                    code[at + 4..].split(';').next().unwrap_or_default(),
                    &mut found,
                ),
                _ => {
                    let path: String = code[at..].chars().take_while(|c| is_path(*c)).collect();
                    resolve("", &path, &mut found);
                }
            }
        }
    }
    found
}

/// Resolves braces: `a::{b, c::{d}}` is `a::b` and `a::c::d`.
fn resolve(before: &str, tree: &str, found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((prefix, list)) = tree.split_once('{') else {
        let path = format!("{before}{}", tree.split(" as ").next().unwrap_or_default());
        found.push(path.split("::").map(|name| name.trim().to_owned()).collect());
        return;
    };
    let (mut depth, mut from) = (0, 0);
    let list = list.strip_suffix('}').unwrap_or(list);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !list[from..at].trim().is_empty() {
                    resolve(&format!("{before}{prefix}"), &list[from..at], found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

fn imports(module: &[String], code: &str, all: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    for path in paths(code) {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let full: Module = match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [module, &path[1..]].concat(),
            "super" => [&module[..module.len().saturating_sub(supers)], &path[supers..]].concat(),
            _ => [module, &path[..]].concat(),
        };
        let longest = (1..=full.len())
            .rev()
            .find(|length| all.contains_key(&full[..*length]));
        if let Some(length) = longest.filter(|length| full[..*length] != *module) {
            // A path of another crate resolves to no module below this one.
            let is_ours = matches!(path[0].as_str(), "crate" | "self" | "super") || length > module.len();
            if is_ours {
                found.insert(full[..length].to_vec());
            }
        }
    }
    found
}

fn row(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// Returns the imports that no row allows.
fn wrong_arrows(module: &[String], imports: &BTreeSet<Module>) -> Vec<String> {
    let from = &module[0];
    let is_wrong = |to: &&Module| match (row(from), row(&to[0])) {
        _ if *from == to[0] => false,
        (Some(from), Some(to)) => to <= from,
        (None, None) => false,
        _ => true,
    };
    let wrong = imports.iter().filter(is_wrong);
    wrong
        .map(|to| format!("{} -> {}", module.join("::"), to.join("::")))
        .collect()
}

fn circle(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    fn walk(
        at: &Module,
        graph: &BTreeMap<Module, BTreeSet<Module>>,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> Option<Vec<Module>> {
        if let Some(begin) = way.iter().position(|passed| passed == at) {
            return Some(way[begin..].to_vec());
        }
        if !done.insert(at.clone()) {
            return None;
        }
        way.push(at.clone());
        let mut next = graph.get(at).into_iter().flatten();
        let found = next.find_map(|next| walk(next, graph, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph
        .keys()
        .find_map(|start| walk(start, graph, &mut Vec::new(), &mut done))
}

#[test]
fn the_protocol_and_the_judgement_of_nodes_are_pure() {
    let all = modules("src");
    for (folder, files) in [("protocol", 4), ("doctor", 7)] {
        let pure: Vec<_> = all
            .iter()
            .filter(|(module, _)| module.first().is_some_and(|first| first == folder))
            .collect();
        assert!(pure.len() >= files, "{folder}");
        for (module, code) in pure {
            let impure: Vec<_> = IMPURE.into_iter().filter(|word| names(code, word)).collect();
            assert!(impure.is_empty(), "{module:?} names {impure:?}");
        }
    }
}

#[test]
fn imports_point_down_and_never_in_a_circle() {
    let all = modules("src");
    let mut graph = BTreeMap::new();
    for (module, code) in all
        .iter()
        .filter(|(module, _)| !module.is_empty() && module[0] != "lib")
    {
        let folder = &module[0];
        assert!(
            row(folder).is_some() || ASIDE.contains(&folder.as_str()),
            "src/{folder} is in no row: add it to `ROWS` or `ASIDE`"
        );
        let imports = imports(module, code, &all);
        let wrong = wrong_arrows(module, &imports);
        assert!(wrong.is_empty(), "{wrong:?}");
        graph.insert(module.clone(), imports);
    }
    assert!(
        graph.values().map(BTreeSet::len).sum::<usize>() > 200,
        "too few imports were found"
    );
    assert_eq!(circle(&graph), None);
}

/// Each folder counts as one module: circles inside it are not seen.
#[test]
fn the_tool_imports_in_no_circle() {
    let all = modules("src/bin/quorlock");
    let mut graph: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, code) in &all {
        let imports = imports(module, code, &all);
        let others = imports.iter().filter(|to| to[0] != module[0]);
        let others = others.map(|to| vec![to[0].clone()]);
        graph.entry(vec![module[0].clone()]).or_default().extend(others);
    }
    assert!(
        graph.values().map(BTreeSet::len).sum::<usize>() > 100,
        "too few imports were found"
    );
    assert_eq!(circle(&graph), None);
}

/// The design's layout lists what is there.
#[test]
fn the_layout_in_the_design_is_the_list_of_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let tree = design
        .split("```text\nsrc/\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let shown: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let there: BTreeSet<String> = fs::read_dir(root.join("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        // A folder beside a file of the same name is shown once.
        .filter(|path| !(path.is_dir() && path.with_extension("rs").exists()))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            match (path.is_dir(), name.as_str()) {
                (true, "bin") => "bin/quorlock/".to_owned(),
                (true, _) => format!("{name}/"),
                (false, _) if path.with_extension("").is_dir() => name.replace(".rs", "/"),
                (false, _) => name,
            }
        })
        .collect();
    assert_eq!(shown, there.iter().map(String::as_str).collect());
}

#[test]
fn the_checks_can_fail() {
    for word in ["tokio", "Instant", "std::net", "async"] {
        assert!(names(&format!("use {word}::x;"), word));
        assert!(!names(&format!("fn re{word}() {{}}"), word));
    }
    assert_eq!(
        code("let a = 1; // tokio\n#[cfg(test)]\nmod tests {}"),
        "let a = 1; "
    );

    let named = |module: &str| module.split("::").map(str::to_owned).collect::<Module>();
    let all: BTreeMap<Module, String> = [
        "lease",
        "lease::state",
        "keys::claim",
        "round",
        "node",
        "node::fault",
    ]
    .map(|module| (named(module), String::new()))
    .into();
    let imports = |module: &str, code: &str| imports(&named(module), code, &all);
    let found = imports(
        "lease::state",
        "use crate::{keys::claim::{Claim, X}, node::fault as f};\nuse super::renew;",
    );
    assert_eq!(
        found,
        [named("keys::claim"), named("node::fault"), named("lease")].into()
    );
    assert_eq!(
        imports("lease", "use state::State;\nfn f() { crate::round::ask() }"),
        [named("lease::state"), named("round")].into()
    );
    assert!(imports("lease", "use std::round::Round;\nuse keys::Map;").is_empty());

    let wrong = |module: &str, to: &str| wrong_arrows(&named(module), &[named(to)].into());
    assert_eq!(wrong("keys::claim", "lease"), ["keys::claim -> lease"]);
    assert_eq!(wrong("lease", "waiting"), ["lease -> waiting"]);
    assert_eq!(wrong("node", "unheard_of"), ["node -> unheard_of"]);
    assert_eq!(wrong("testbed", "node"), ["testbed -> node"]);
    assert!(wrong("lease", "keys::claim").is_empty() && wrong("lease", "lease::state").is_empty());

    let graph = |arrows: &[(&str, &str)]| {
        let mut graph: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in arrows {
            graph.entry(named(from)).or_default().insert(named(to));
        }
        graph
    };
    assert_eq!(
        circle(&graph(&[("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")])),
        None
    );
    let found = circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(found, Some(vec![named("b"), named("c")]));
}
