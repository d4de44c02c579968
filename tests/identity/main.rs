//! Memories, checked.
#![allow(clippy::unwrap_used)]
mod events; mod judge; mod knowledge; mod lock; mod rules; mod search; mod state; mod step; mod world;
use rules::*; use search::Outcome; use state::*; use world::World;

fn go(w: World, limit: usize) {
    let t = std::time::Instant::now();
    let filter = std::env::args().nth(1).unwrap_or_default();
    if !w.name.contains(&filter) { return }
    let (s, o, tr) = match w.search(limit) {
        Outcome::NeverTwoHolders { states } => (states, "never two holders", vec![]),
        Outcome::TooLarge { states } => (states, "TOO LARGE", vec![]),
        Outcome::TwoHolders { states, trace } => (states, "TWO HOLDERS", trace),
    };
    println!("{:60} {:?} {:?} {s:>9} {:>6.1?} {o}", w.name, w.omitted, w.settling, t.elapsed());
    for (step, st) in tr {
        let h: String = (0..st.clients.len()).filter(|c| st.clients[*c].holds()).map(|c| (b'A' + c as u8) as char).collect();
        println!("    {:60} {h}", step.to_string());
    }
}
fn faults(lost: u8, moved: u8, restarted: u8, paused: u8, cut: u8) -> Faults { Faults { lost, moved, restarted, paused, cut } }
fn main() {
    let limit = std::env::args().nth(2).and_then(|x| x.parse().ok()).unwrap_or(3_000_000);
    let run = |name, f: Faults| World { running: true, faults: f, ..World::new(name, &[&[0, 1, 2], &[0, 1, 2]]) };
    let lie = |name, f: Faults| World { lied_to: Set::of(&[1]), ..run(name, f) };
    go(run("a one lost", faults(1, 0, 0, 0, 0)), limit);
    go(run("a one moved", faults(0, 1, 0, 0, 0)), limit);
    go(lie("a one moved, B is lied to", faults(0, 1, 0, 0, 0)), limit);
    go(World::new("b 123 beside 12345", &[&[0, 1, 2], &[0, 1, 2, 3, 4]]), limit);
    let late = World { late: Set::of(&[2]), unreachable: vec![Set::EMPTY, Set::of(&[0, 1])], ..World::new("c late 123 12345", &[&[0, 1, 2], &[0, 1, 2, 3, 4]]) };
    for s in [Settling::Never, Settling::UnlessComplete, Settling::Always] { go(World { settling: s, ..late.clone() }, limit); }
    go(late.without(Omitted::HoldersRegister), limit);
    go(run("d one lost, pause", faults(1, 0, 0, 1, 0)), limit);
    go(run("d one moved, pause", faults(0, 1, 0, 1, 0)), limit);
    go(lie("d one moved, B is lied to, pause", faults(0, 1, 0, 1, 0)), limit);
    go(run("d one lost, cut", faults(1, 0, 0, 0, 1)), limit);
    go(run("d one moved, cut", faults(0, 1, 0, 0, 1)), limit);
    go(run("d two lost", faults(2, 0, 0, 0, 0)), limit);
    go(run("d two moved", faults(0, 2, 0, 0, 0)), limit);
}
