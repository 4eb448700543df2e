//! Size classes: multiples of 512 bytes up to 4 KiB, then eight steps per doubling, up to 16 MiB.

/// Blocks above this size are multiples of [`LARGE_STEP`].
pub(super) const LARGE_ABOVE: usize = 16 << 20;
pub(super) const CLASSES: usize = class_of(LARGE_ABOVE) + 1;

const LARGE_STEP: usize = 2 << 20; // the pages of a device
const SMALLEST: usize = 512; // what CUDA aligns to, and more than a kernel's widest access
const STEPS: usize = 8; // classes per doubling

/// How long the block is that serves `len_bytes`; none if that is more than can be.
pub(super) fn rounded(len_bytes: usize) -> Option<usize> {
    if len_bytes > LARGE_ABOVE {
        return len_bytes.checked_next_multiple_of(LARGE_STEP);
    }
    Some(class_len(class_of(len_bytes)))
}

/// The class that serves `len_bytes`, which is at most [`LARGE_ABOVE`].
pub(super) const fn class_of(len_bytes: usize) -> usize {
    if len_bytes <= SMALLEST * STEPS {
        return len_bytes.div_ceil(SMALLEST).saturating_sub(1);
    }
    let doubling = (len_bytes - 1).ilog2() as usize - 3; // the step is 1 << doubling
    let step = (len_bytes - 1) >> doubling; // 8..16
    STEPS + (doubling - 9) * STEPS + (step - STEPS)
}

/// How many bytes a block of this class has.
pub(super) const fn class_len(class: usize) -> usize {
    if class < STEPS {
        return (class + 1) * SMALLEST;
    }
    let (doubling, step) = ((class - STEPS) / STEPS + 9, (class - STEPS) % STEPS + STEPS);
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
        assert_eq!(longest_before, LARGE_ABOVE);
    }

    #[test]
    fn no_block_above_4_kib_is_an_eighth_longer_than_asked() {
        for len_bytes in (4096..64 << 20).step_by(4099) {
            let rounded = rounded(len_bytes).unwrap();
            assert!(rounded >= len_bytes && (rounded - len_bytes) * 8 <= len_bytes, "{len_bytes} became {rounded}");
        }
    }

    #[test]
    fn an_impossible_size_has_no_block() {
        assert_eq!(rounded(usize::MAX), None);
    }
}
