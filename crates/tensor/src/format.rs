//! How tensors print.
