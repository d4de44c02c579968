//! The corpus, and random mutations of it.

use std::path::Path;
use std::{env, fs, thread};

use fastrand::Rng;

const LONGEST: usize = 2_048;

pub(crate) struct Cases {
    pub(crate) seed: u64,
    pub(crate) list: Vec<Vec<u8>>,
}

/// Returns the corpus of a target, and so many mutations of it.
pub(crate) fn cases(target: &str, mutations: usize) -> Vec<Vec<u8>> {
    seeded(target, mutations).list
}

pub(crate) fn seeded(target: &str, mutations: usize) -> Cases {
    let mutations = env::var("QUORLOCK_MUTATIONS").map_or(mutations, |text| text.parse().unwrap());
    let seed = env::var("QUORLOCK_SEED").map_or(1, |text| text.parse().unwrap());
    let mut list = corpus(target);
    let (mut rng, corpus) = (Rng::with_seed(seed), list.clone());
    list.extend((0..mutations).map(|_| mutated(&corpus, &mut rng)));
    Cases { seed, list }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/bad_replies/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus for {target}");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut data = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.usize(1..=6) {
        let at = rng.usize(0..=data.len());
        match rng.u8(0..7) {
            0 => data.insert(at, rng.u8(..)),
            1 if at < data.len() => data[at] = rng.u8(..),
            2 if at < data.len() => data[at] ^= 1 << rng.u8(0..8),
            3 if at < data.len() => drop(data.remove(at)),
            4 => data.truncate(at),
            5 => {
                let other = rng.choice(corpus).unwrap();
                let from = rng.usize(0..=other.len());
                data.truncate(at);
                data.extend(&other[from..]);
            }
            _ => {
                let again = data[at..].to_vec();
                data.extend(again);
            }
        }
    }
    data.truncate(LONGEST);
    data
}

/// Prints the case when the test panics in it.
pub(crate) struct PrintOnPanic<'a>(pub(crate) &'a [u8]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the failed case: b\"{}\"", self.0.escape_ascii());
        }
    }
}
