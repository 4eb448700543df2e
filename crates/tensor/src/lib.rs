//! Tensors with autograd on budgeted host memory.
