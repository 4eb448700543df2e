//! Layers that rearrange pixels and channels: [`PixelShuffle`], [`PixelUnshuffle`], [`ChannelShuffle`].

use super::{debug_is_display, one_setting};
use crate::{Forward, Module, functional as F, module_scope};
use pagelock_tensor::{Result, Tensor};

one_setting! {
    /// Turns `[batch, channels · r², height, width]` into `[batch, channels, height · r, width · r]`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, PixelShuffle};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(PixelShuffle::new(2).forward(&Tensor::zeros([1, 8, 3, 3])?)?.dims(), [1, 2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    PixelShuffle { upscale_factor: usize }, "With this factor.", F::pixel_shuffle
}

one_setting! {
    /// Turns pixels into channels: the inverse of [`PixelShuffle`].
    ///
    /// ```
    /// use pagelock_nn::{Forward, PixelUnshuffle};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(PixelUnshuffle::new(2).forward(&Tensor::zeros([1, 2, 6, 6])?)?.dims(), [1, 8, 3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    PixelUnshuffle { downscale_factor: usize }, "With this factor.", F::pixel_unshuffle
}

one_setting! {
    /// Interleaves the channels of groups, as PyTorch's `nn.ChannelShuffle`; see
    /// [`channel_shuffle`](F::channel_shuffle).
    ///
    /// ```
    /// use pagelock_nn::{ChannelShuffle, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[[1.0], [2.0], [3.0], [4.0]]])?;
    /// assert_eq!(ChannelShuffle::new(2).forward(&x)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ChannelShuffle { groups: usize }, "With this number of groups.", F::channel_shuffle
}
