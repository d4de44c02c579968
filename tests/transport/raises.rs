//! What the script does with a counter where it must not (F3, F4).

use quorlock::testbed::Testbed;

const SCRIPT: &str = include_str!("../../src/redis/lock.lua");
const OURS: &str = "11111111-1111-4111-8111-111111111111";
const OTHERS: &str = "22222222-2222-4222-8222-222222222222";

/// A raise changes a counter only that is there, and under our key; a release makes none either. Neither lowers one.
#[tokio::test]
async fn a_counter_is_raised_only_where_it_may_be() {
    let testbed = Testbed::builder().nodes(1).start().await.unwrap();
    let node = &testbed.nodes()[0];
    // Operation, what the key holds, the counter before, the answer, the counter after.
    let cases = [
        ("f", Some(OURS), Some("5"), 9, Some("9")),
        ("f", Some(OURS), Some("12"), 12, Some("12")),
        ("f", Some(OURS), None, -2, None),
        ("f", Some(OTHERS), Some("5"), -3, Some("5")),
        ("f", None, Some("5"), -2, Some("5")),
        ("r", Some(OURS), Some("5"), 0, Some("9")),
        ("r", Some(OURS), Some("12"), 0, Some("12")),
        ("r", Some(OURS), None, 0, None),
        ("r", Some(OTHERS), Some("5"), -3, Some("9")),
        ("r", None, Some("5"), -2, Some("9")),
        ("r", None, None, -2, None),
    ];
    for (operation, holder, before, answer, after) in cases {
        node.command(&["FLUSHALL"]).await.unwrap();
        for (key, value) in [("k", holder), ("k#fence", before)] {
            if let Some(value) = value {
                node.command(&["SET", key, value]).await.unwrap();
            }
        }
        let item = format!("{operation}{OURS}{:016}", 9);
        let text = format!("local replies = (function() {SCRIPT}\nend)() return replies[1]");
        let said = node.command(&["EVAL", &text, "1", "k", &item]).await.unwrap();
        let case = format!("{operation} {holder:?} {before:?}");
        assert_eq!(said.as_int(), Some(answer), "{case}: {said:?}");
        let now = node.command(&["GET", "k#fence"]).await.unwrap();
        assert_eq!(now.as_str(), after, "{case}");
    }
}
