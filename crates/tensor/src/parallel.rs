//! Threads.
/// Threads.
pub fn set_num_threads(_n: usize) {}
/// Threads.
pub fn num_threads() -> usize {
    1
}
pub(crate) fn run(n: usize, task: impl Fn(usize) + Sync) {
    (0..n).for_each(task)
}
pub(crate) fn for_each_chunk_mut<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    out.chunks_mut(len).enumerate().for_each(|(i, c)| f(i, c))
}
