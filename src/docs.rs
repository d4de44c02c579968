//! What is in the folder `docs/` of the source.

#[doc = include_str!("../docs/benchmarks.md")]
pub mod benchmarks {}
#[doc = include_str!("../docs/design.md")]
pub mod design {}
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
#[doc = include_str!("../docs/operating.md")]
pub mod operating {}
#[doc = include_str!("../docs/stores.md")]
pub mod stores {}
#[doc = include_str!("../docs/tool.md")]
pub mod tool {}
