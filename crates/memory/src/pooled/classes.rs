//! Size classes: multiples of 64 bytes up to 512, then eight steps per doubling, up to 16 MiB.

/// Blocks above this size are not rounded up.
pub(super) const EXACT_ABOVE: usize = 16 << 20;
pub(super) const CLASSES: usize = class_of(EXACT_ABOVE) + 1;

const SMALLEST: usize = 64;
const STEPS: usize = 8; // classes per doubling

/// The class that serves `len_bytes`, which is at most [`EXACT_ABOVE`].
pub(super) const fn class_of(len_bytes: usize) -> usize {
    if len_bytes <= SMALLEST * STEPS {
        return len_bytes.div_ceil(SMALLEST).saturating_sub(1);
    }
    let doubling = (len_bytes - 1).ilog2() as usize - 3; // the step is 1 << doubling
    let step = (len_bytes - 1) >> doubling; // 8..16
    STEPS + (doubling - 6) * STEPS + (step - STEPS)
}

/// How many bytes a block of this class has.
pub(super) const fn class_len(class: usize) -> usize {
    if class < STEPS {
        return (class + 1) * SMALLEST;
    }
    let (doubling, step) = ((class - STEPS) / STEPS + 6, (class - STEPS) % STEPS + STEPS);
    (step + 1) << doubling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_serves_the_sizes_above_the_class_before() {
        let mut longest_before = 0;
        for class in 0..CLASSES {
            assert_eq!((class_of(longest_before + 1), class_of(class_len(class))), (class, class));
            longest_before = class_len(class);
        }
        assert_eq!(longest_before, EXACT_ABOVE);
    }

    #[test]
    fn every_multiple_of_a_page_up_to_32_kib_is_a_class() {
        assert!((1..=8).map(|pages| pages * 4_096).all(|len_bytes| class_len(class_of(len_bytes)) == len_bytes));
    }
}
