//! [`SizeClasses`]: the lengths of a pool's blocks.

/// The lengths of a pool's blocks, chosen so that a block can serve the next request of a similar length.
///
/// They are the multiples of the shortest length up to eight times that length, then eight steps per doubling, up to
/// the longest. So a block is longer than requested by at most an eighth of the request, or by at most the shortest
/// length if that is more. A length above the longest has no class.
///
/// # Examples
/// ```
/// use pagelock_memory::SizeClasses;
///
/// const CLASSES: SizeClasses = SizeClasses::new(64, 16 << 20);
/// let class = CLASSES.class_of(1_100).expect("it is shorter than the longest");
/// assert_eq!(CLASSES.len_bytes(class), 1_152);
/// assert_eq!(CLASSES.class_of((16 << 20) + 1), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClasses {
    shortest_log2: usize,
    longest: usize,
}

const STEPS: usize = 8; // classes per doubling
const STEPS_LOG2: usize = 3;

impl SizeClasses {
    /// Classes from `shortest` to `longest`, both in bytes.
    ///
    /// # Panics
    /// Unless both are powers of two and the longest is at least eight times the shortest. In a constant, this is a
    /// compile error.
    pub const fn new(shortest: usize, longest: usize) -> Self {
        assert!(shortest.is_power_of_two() && longest.is_power_of_two() && longest / STEPS >= shortest);
        Self { shortest_log2: shortest.ilog2() as usize, longest }
    }

    /// The length of the last class's blocks, in bytes.
    pub const fn longest(self) -> usize {
        self.longest
    }

    /// How many classes there are.
    pub const fn count(self) -> usize {
        self.class_below_longest(self.longest) + 1
    }

    /// The first class whose blocks have at least `len_bytes` bytes; `None` above the [longest](Self::longest).
    pub const fn class_of(self, len_bytes: usize) -> Option<usize> {
        if len_bytes > self.longest { None } else { Some(self.class_below_longest(len_bytes)) }
    }

    /// How many bytes a block of that class has, for a class below [`count`](Self::count).
    pub const fn len_bytes(self, class: usize) -> usize {
        if class < STEPS {
            return (class + 1) << self.shortest_log2;
        }
        let (doubling, step) = (class / STEPS - 1 + self.shortest_log2, class % STEPS + STEPS);
        if doubling < usize::BITS as usize - STEPS_LOG2 - 1 { (step + 1) << doubling } else { usize::MAX }
    }

    const fn class_below_longest(self, len_bytes: usize) -> usize {
        if len_bytes <= STEPS << self.shortest_log2 {
            return len_bytes.div_ceil(1 << self.shortest_log2).saturating_sub(1);
        }
        let doubling = (len_bytes - 1).ilog2() as usize - STEPS_LOG2; // the step is 1 << doubling
        let step = (len_bytes - 1) >> doubling; // 8..16
        (doubling - self.shortest_log2) * STEPS + step
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_classes() -> impl Strategy<Value = SizeClasses> {
        (0..20_usize, 3..12_usize)
            .prop_map(|(shortest, doublings)| SizeClasses::new(1 << shortest, 1 << (shortest + doublings)))
    }

    proptest! {
        #[test]
        fn every_class_serves_the_lengths_above_the_class_before(classes in any_classes()) {
            let mut longest_before = 0;
            for class in 0..classes.count() {
                let len_bytes = classes.len_bytes(class);
                prop_assert_eq!((classes.class_of(longest_before + 1), classes.class_of(len_bytes)), (Some(class), Some(class)));
                longest_before = len_bytes;
            }
            prop_assert_eq!(longest_before, classes.longest());
            prop_assert_eq!(classes.class_of(longest_before + 1), None);
        }

        #[test]
        fn a_block_is_at_most_an_eighth_longer_than_asked_or_than_the_shortest(
            classes in any_classes(),
            part in 0.0..=1.0_f64,
        ) {
            let asked = (classes.longest() as f64 * part) as usize;
            let len_bytes = classes.len_bytes(classes.class_of(asked).unwrap());
            prop_assert!(len_bytes >= asked);
            prop_assert!(len_bytes - asked <= (asked / 8).max(classes.len_bytes(0)), "{asked} became {len_bytes}");
        }
    }

    #[test]
    fn every_multiple_of_a_page_up_to_32_kib_is_a_class_above_a_cache_line() {
        let classes = SizeClasses::new(64, 16 << 20);
        let is_a_class =
            |len_bytes| classes.class_of(len_bytes).map(|class| classes.len_bytes(class)) == Some(len_bytes);
        assert!((1..=8).map(|pages| pages * 4_096).all(is_a_class));
    }

    #[test]
    #[should_panic(expected = "power_of_two")]
    fn classes_of_other_lengths_are_refused() {
        let _ = SizeClasses::new(48, 1 << 20);
    }
}
