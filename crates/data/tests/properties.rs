//! Samplers and splits against what they promise for any size, seed and epoch.

use std::collections::HashSet;

use pagelock_data::{
    BatchSampler, Dataset, DistributedSampler, Place, RandomSampler, Sampler, SequentialSampler, TensorDataset,
    WeightedSampler, random_split,
};
use pagelock_tensor::{Generator, Tensor};
use proptest::prelude::*;

fn epoch_of(sampler: &impl Sampler, epoch: u64, n_samples: usize) -> Vec<usize> {
    let mut indices = vec![0; n_samples];
    sampler.fill(Place { epoch, position: 0, n_samples }, &mut indices);
    indices
}

proptest! {
    #[test]
    fn a_random_epoch_visits_every_sample_once(seed: u64, epoch in 0u64..1000, n_samples in 1usize..3000) {
        let mut indices = epoch_of(&RandomSampler::new(seed), epoch, n_samples);
        indices.sort();
        prop_assert!(indices.into_iter().eq(0..n_samples));
    }

    #[test]
    fn an_order_can_be_entered_anywhere(
        seed: u64, epoch: u64, n_samples in 1usize..500, from in 0usize..500, len in 0usize..500,
    ) {
        let from = from % n_samples;
        let len = len.min(n_samples - from);
        let sampler = RandomSampler::new(seed);
        let mut part = vec![0; len];
        sampler.fill(Place { epoch, position: from, n_samples }, &mut part);
        prop_assert_eq!(&part[..], &epoch_of(&sampler, epoch, n_samples)[from..from + len]);
    }

    #[test]
    fn batches_are_the_order_cut_up(
        seed: u64, epoch: u64, n_samples in 1usize..300, batch_size in 1usize..50, drop_last: bool,
    ) {
        let batches = BatchSampler::new(RandomSampler::new(seed), batch_size).drop_last(drop_last);
        let order = epoch_of(&RandomSampler::new(seed), epoch, n_samples);
        let mut expected: Vec<Vec<usize>> = order.chunks(batch_size).map(Into::into).collect();
        if drop_last {
            expected.retain(|batch| batch.len() == batch_size);
        }
        prop_assert_eq!(batches.n_batches(n_samples).unwrap_or(0), expected.len());
        let mut indices = Vec::new();
        for (number, batch) in expected.iter().enumerate() {
            batches.fill(epoch, number, n_samples, &mut indices);
            prop_assert_eq!(&indices, batch);
        }
        batches.fill(epoch, expected.len(), n_samples, &mut indices);
        prop_assert!(indices.is_empty());
    }

    #[test]
    fn the_parts_of_a_split_are_the_whole_without_overlap(seed: u64, a in 0usize..50, b in 0usize..50, c in 0usize..50) {
        let n_samples = a + b + c;
        let dataset = || TensorDataset::new(Tensor::zeros([n_samples]).unwrap()).unwrap();
        let parts = random_split(dataset(), [a, b, c], &Generator::new(seed)).unwrap();
        prop_assert_eq!(parts.each_ref().map(Dataset::len), [a, b, c]);
        let together: HashSet<usize> = parts.iter().flat_map(|part| part.indices()).copied().collect();
        prop_assert_eq!(together, (0..n_samples).collect::<HashSet<_>>());

        let again = random_split(dataset(), [a, b, c], &Generator::new(seed)).unwrap();
        prop_assert_eq!(parts.map(|part| part.indices().to_vec()), again.map(|part| part.indices().to_vec()));
    }
}

#[test]
fn the_sequential_order_is_the_same_in_every_epoch() {
    assert_eq!(epoch_of(&SequentialSampler, 0, 5), [0, 1, 2, 3, 4]);
    assert_eq!(epoch_of(&SequentialSampler, 9, 5), [0, 1, 2, 3, 4]);
}

#[test]
fn every_index_is_equally_likely_at_every_position() {
    for n_samples in [2, 3, 5, 10, 37] {
        let n_epochs = 20_000;
        let mut counts = vec![0.0; n_samples * n_samples];
        for epoch in 0..n_epochs {
            for (position, index) in epoch_of(&RandomSampler::new(1), epoch, n_samples).into_iter().enumerate() {
                counts[position * n_samples + index] += 1.0;
            }
        }
        assert_uniform(&counts, (n_samples - 1).pow(2));
    }
}

#[test]
fn neighbors_in_one_order_are_independent() {
    // 50,000 pairs of neighbors fall evenly into 16 × 16 cells.
    let n_samples = 50_000;
    for seed in 0..4 {
        let order = epoch_of(&RandomSampler::new(seed), 0, n_samples);
        let mut counts = vec![0.0; 256];
        for pair in order.windows(2) {
            counts[pair[0] * 16 / n_samples * 16 + pair[1] * 16 / n_samples] += 1.0;
        }
        assert_uniform(&counts, 255);
    }
}

/// The chi-squared statistic of equally likely cells lies within 5 standard deviations of its mean.
fn assert_uniform(counts: &[f64], degrees: usize) {
    let expected = counts.iter().sum::<f64>() / counts.len() as f64;
    let chi2: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    let degrees = degrees as f64;
    let deviation = (chi2 - degrees) / (2.0 * degrees).sqrt();
    assert!(deviation.abs() < 5.0, "chi² is {chi2} for {degrees} degrees of freedom: {deviation} deviations off");
}

proptest! {
    #[test]
    fn the_shares_of_all_ranks_are_the_order(
        seed: u64, epoch: u64, n_samples in 1usize..300, world_size in 1usize..9,
    ) {
        let share_len = n_samples.div_ceil(world_size);
        let shares: Vec<Vec<usize>> = (0..world_size)
            .map(|rank| {
                let sampler = DistributedSampler::new(RandomSampler::new(seed), rank, world_size).unwrap();
                let mut share = vec![0; sampler.epoch_len(n_samples)];
                sampler.fill(Place { epoch, position: 0, n_samples }, &mut share);
                share
            })
            .collect();
        let together = (0..share_len * world_size).map(|position| shares[position % world_size][position / world_size]);
        let order = epoch_of(&RandomSampler::new(seed), epoch, n_samples);
        prop_assert!(together.eq(order.into_iter().cycle().take(share_len * world_size)));
    }

    #[test]
    fn samples_are_drawn_as_often_as_their_weights_say(
        seed: u64, weights in prop::collection::vec(prop_oneof![Just(0.0), 0.01_f64..10.0], 1..20), epoch in 0u64..9,
    ) {
        let sum: f64 = weights.iter().sum();
        prop_assume!(sum > 0.0);
        const N_DRAWS: usize = 20_000;
        let n_samples = weights.len();
        let sampler = WeightedSampler::new(weights.clone(), N_DRAWS, seed).unwrap();
        let mut draws = vec![0; N_DRAWS];
        sampler.fill(Place { epoch, position: 0, n_samples }, &mut draws);
        for (index, weight) in weights.iter().enumerate() {
            let (n, p) = (N_DRAWS as f64, weight / sum);
            let found = draws.iter().filter(|&&draw| draw == index).count() as f64;
            let spread = (n * p * (1.0 - p)).sqrt();
            prop_assert!((found - n * p).abs() <= 6.0 * spread + 1e-9, "{found} draws of {index}, {} expected", n * p);
        }
        let mut part = vec![0; 50];
        sampler.fill(Place { epoch, position: 777, n_samples }, &mut part);
        prop_assert_eq!(&part[..], &draws[777..827]);
    }
}
