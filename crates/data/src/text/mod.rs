//! Texts as data: vocabularies, byte-level pieces, normal forms, and batches of sequences of different lengths.
//!
//! - [`Vocab`] numbers tokens: words, or letters ([`Vocab::of_chars`]).
//! - [`BytePairs`] cuts any text into learned pieces of bytes, and needs no unknown token.
//! - `normalize`, `fold_to_ascii` and `words` (feature `text`) normalize texts and split them into words.
//! - [`PaddedStack`] and [`pad_sequence`] make a batch of sequences; [`BucketSampler`](crate::BucketSampler) picks batches of similar
//!   lengths; [`TokenBlocks`] cuts one long text into examples for a language model.
//!
//! # Examples
//! Letters of a text, for a model that predicts the next one:
//! ```
//! use pagelock_data::DataLoader;
//! use pagelock_data::text::{TokenBlocks, Vocab};
//!
//! let text = "to be or not to be, that is the question";
//! let letters = Vocab::of_chars(text)?;
//! let blocks = TokenBlocks::new(letters.encode_chars(text)?, 8)?;
//! let loader = DataLoader::new(blocks).batch_size(4).shuffle(1);
//! let (xb, yb) = loader.iter().next().unwrap()?; // [4, 8] each, `yb` one letter ahead
//! assert_eq!(xb.narrow(1, 1, 7)?.to_vec::<i64>()?, yb.narrow(1, 0, 7)?.to_vec::<i64>()?);
//! # Ok::<(), pagelock_data::Error>(())
//! ```

mod blocks;
mod byte_pairs;
pub(crate) mod lines;
mod padded;
#[cfg(feature = "text")]
mod unicode;
mod vocab;

pub use self::blocks::TokenBlocks;
pub use self::byte_pairs::BytePairs;
pub use self::padded::{PaddedStack, Side, pad_sequence};
#[cfg(feature = "text")]
pub use self::unicode::{NormalForm, fold_to_ascii, normalize, words};
pub use self::vocab::Vocab;
