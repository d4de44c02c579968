//! The documents of the folder `docs/`.

/// Replaces the image of a chart. rustdoc copies no files, so the charts are at the end of the page.
macro_rules! elsewhere {
    () => {
        "data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'%20width='400'%20height='30'%3E%3Crect%20width='400'%20height='30'%20fill='white'/%3E%3Ctext%20x='8'%20y='20'%20font-family='sans-serif'%20font-size='14'%3EThe%20chart%20is%20at%20the%20end%20of%20this%20page.%3C/text%3E%3C/svg%3E"
    };
}

/// Embeds a chart in the page. A `pre`, because no other element may contain empty lines.
macro_rules! chart {
    ($file:literal) => {
        concat!(
            "<pre style=\"white-space: normal; padding: 0; overflow-x: auto\">\n",
            include_str!(concat!("../docs/benchmarks/", $file, ".svg")),
            "\n</pre>\n"
        )
    };
}

// The first definition of a link counts. The page's own definitions lead to files, which rustdoc does not copy.
#[doc = "[charts]: #charts"]
#[doc = "[uncontended.json]: #raw-figures-and-how-to-run-it-again"]
#[doc = "[threads.json]: #raw-figures-and-how-to-run-it-again"]
#[doc = "[contended.json]: #raw-figures-and-how-to-run-it-again"]
#[doc = "[script.md]: #raw-figures-and-how-to-run-it-again"]
#[doc = concat!("[growth]: ", elsewhere!())]
#[doc = concat!("[contended-gap]: ", elsewhere!())]
#[doc = concat!("[contended-wait]: ", elsewhere!())]
#[doc = concat!("[contended-grants]: ", elsewhere!(), "\n\n")]
#[doc = include_str!("../docs/benchmarks.md")]
#[doc = "\n## Charts\n"]
#[doc = chart!("growth")]
#[doc = chart!("contended-gap")]
#[doc = chart!("contended-wait")]
#[doc = chart!("contended-grants")]
pub mod benchmarks {}
#[doc = include_str!("../docs/design.md")]
pub mod design {}
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
#[doc = include_str!("../docs/logging.md")]
pub mod logging {}
#[doc = include_str!("../docs/metrics.md")]
pub mod metrics {}
#[doc = include_str!("../docs/operating.md")]
pub mod operating {}
#[doc = include_str!("../docs/recipes.md")]
pub mod recipes {}
#[doc = include_str!("../docs/stores.md")]
pub mod stores {}
#[doc = include_str!("../docs/tool.md")]
pub mod tool {}
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
